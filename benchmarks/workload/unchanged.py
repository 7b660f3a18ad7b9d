"""One rank that trains a small net twice on the same data, once with torch's own buckets and once with buckets that
change every third step. Prints on rank 0 the largest difference in parameters and optimizer state as JSON."""

from __future__ import annotations

import json

import torch
from torch import nn

from gangline import pytorch

_STEPS = 24
_WIDTH = 128
_CAPS = [(1 << 14,), (1 << 20, 25 << 20), (70_000, 200_000), (1 << 18,), (1,), (1 << 22,)]


def main() -> None:
    torch.set_num_threads(1)
    with pytorch.init() as context:
        states = [_train(context, changes) for changes in (False, True)]
        difference = max(float((one - other).abs().max()) for one, other in zip(*states, strict=True))
        worst = max(context.distributed.allgather(difference))
        if context.distributed.is_chief:
            print(json.dumps({"difference": worst, "ranks": context.distributed.size}), flush=True)


def _train(context: pytorch.PyTorchTrialContext, changes: bool) -> list[torch.Tensor]:
    """All that training changed, one tensor after another."""
    torch.manual_seed(5)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()) for _ in range(12)))
    # A context holds one trial; the strategy that a trial would get is made for each net.
    strategy = type(context.strategy)(context.device, {}, context.strategy._exchange)  # type: ignore[attr-defined,call-arg]  # see above
    model = strategy.prepare_model(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(context.distributed.rank)
    for step in range(_STEPS):
        if changes and step % 3 == 0:
            bucketed = strategy.bucketed()
            assert bucketed is not None
            bucketed.rewrap(_CAPS[step // 3 % len(_CAPS)])
        loss = model(torch.randn(16, _WIDTH, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [parameter.detach() for parameter in net.parameters()] + [value.float() for value in states]


if __name__ == "__main__":
    main()
