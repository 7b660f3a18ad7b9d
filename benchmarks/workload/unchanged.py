"""Runs one rank that trains a small net, with the tuner or without.

Rank 0 writes all that training changed, parameters and optimizer state, to a file, and prints the number of bucket
changes as JSON.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn

from gangline import pytorch
from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.training.fusion_opening import open_fusion

_STEPS = 80
_WIDTH = 256
_LAYERS = 24
# Enough remaining steps that tuning is worth its time.
_TRIAL_STEPS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", required=True)
    parser.add_argument("--tune", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    configuration = {"optimizations": {"auto_tune_tensor_fusion": arguments.tune}}
    with pytorch.init(exp_conf=configuration) as context:
        num_changes = _count_changes()
        trained = _train(context)
        if context.distributed.is_chief:
            torch.save(trained, arguments.file)
            print(json.dumps({"num_changes": len(num_changes)}), flush=True)


def _count_changes() -> list[None]:
    """Returns a list that grows by one with each change of the buckets."""
    changes: list[None] = []
    rewrap = BucketedModel.rewrap

    def counted(*arguments: object, **options: object) -> None:
        changes.append(None)
        rewrap(*arguments, **options)  # type: ignore[arg-type]  # what the caller gave

    BucketedModel.rewrap = counted  # type: ignore[method-assign]  # to count it
    return changes


def _train(context: pytorch.PyTorchTrialContext) -> list[torch.Tensor]:
    torch.manual_seed(5)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()) for _ in range(_LAYERS)))
    model = context.wrap_model(net)
    optimizer = context.wrap_optimizer(torch.optim.AdamW(net.parameters(), lr=0.01))
    fusion = open_fusion(context, _TRIAL_STEPS, batch_size=1, saved={})
    generator = torch.Generator().manual_seed(context.distributed.rank)
    for _ in range(_STEPS):
        context.backward(model(torch.randn(16, _WIDTH, generator=generator)).square().mean())
        context.step_optimizer(optimizer)
        fusion.on_step()
    fusion.close()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [parameter.detach().clone() for parameter in net.parameters()] + [value.float() for value in states]


if __name__ == "__main__":
    main()
