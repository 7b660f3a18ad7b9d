"""Gathering in half precision on a GPU, in a group of one: the same losses and parameters bit for bit, also where a
parameter is needed in its own type later.

What it saves needs several GPUs; that the driver's kernels accept the parameters does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__

from gangline.pytorch.parallel.divided.fully_sharded import Zero2Strategy, Zero3Strategy
from gangline.pytorch.parallel.divided.half_gathering import HalfGathering
from gangline.pytorch.parallel.divided.half_parameter import WholeParameter

_WIDTH = 64


@pytest.fixture(scope="module")
def device() -> Iterator[torch.device]:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    dist.init_process_group("cpu:gloo,cuda:nccl", store=HashStore(), rank=0, world_size=1)
    yield torch.device("cuda", 0)
    dist.destroy_process_group()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, dropout=0.0, batch_first=True)
        self.convolution = nn.Conv1d(_WIDTH, _WIDTH, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) + self.convolution(x.mT).mT
        return out


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [Zero2Strategy, Zero3Strategy])
def test_training_is_the_same_bit_for_bit(
    device: torch.device, kind: type[Zero2Strategy | Zero3Strategy], half: torch.dtype
) -> None:
    outcomes = []
    for is_on in (False, True):
        with nullcontext() if is_on else mock.patch.object(HalfGathering, "watch"):
            torch.manual_seed(3)
            net = nn.Sequential(*(Block() for _ in range(3))).to(device)
            strategy = kind(device)
            strategy.prepare_model(net)
            optimizer = strategy.prepare_optimizer(torch.optim.AdamW(net.parameters(), lr=1e-3))
            generator = torch.Generator(device).manual_seed(1)
            losses, halved = [], 0
            for step in range(6):
                inputs = torch.randn(4, 16, _WIDTH, device=device, generator=generator)
                with torch.autocast("cuda", dtype=half):
                    loss = net(inputs).float().square().mean()
                if step == 4:
                    loss = loss + net(inputs).square().mean()
                whole = (
                    getattr(group, "_unsharded_param", None)
                    for each in strategy._all_groups()
                    for group in each.fsdp_params
                )
                halved = max(
                    halved, sum(isinstance(each, WholeParameter) and each.whole_values.half is half for each in whole)
                )
                strategy.before_backward(is_first=True)
                loss.backward()
                strategy.after_backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss))
            outcomes.append((losses, strategy.full_model_state(net), halved))
    (losses, model, none), (half_losses, half_model, some) = outcomes
    assert none == 0
    # Of each block the products of attention, of the layer and of the convolution, with their biases.
    assert some == 3 * 10
    assert losses == half_losses
    assert all(torch.equal(value, half_model[name]) for name, value in model.items())
