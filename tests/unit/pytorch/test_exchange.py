"""Which gradients an optimizer has sent in fp16, in a group of one rank: what went over the wire is rounded to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__

from gangline.config.optimization import parse_optimizations
from gangline.errors import GanglineError
from gangline.pytorch.parallel.whole.ddp import DdpStrategy
from gangline.pytorch.parallel.whole.exchange import Exchange


@pytest.fixture(autouse=True)
def _group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _strategy() -> DdpStrategy:
    return DdpStrategy(torch.device("cpu"), {}, Exchange(parse_optimizations(None)))


def _sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for model in models for parameter in model.parameters()], lr=0.1)


def _is_half(model: nn.Module) -> bool:
    model.zero_grad()
    model(torch.full((1, 4), 1 / 3)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return all(torch.equal(gradient, gradient.half().float()) for gradient in gradients)


def test_each_model_goes_as_its_optimizer_says() -> None:
    strategy = _strategy()
    halved, full, unasked = (strategy.prepare_model(nn.Linear(4, 2)) for _ in range(3))
    strategy.compress_gradients(_sgd(halved), True)
    strategy.compress_gradients(_sgd(full), False)
    assert [_is_half(model) for model in (halved, full, unasked)] == [True, False, False]


def test_one_optimizer_speaks_for_all_its_models() -> None:
    strategy = _strategy()
    models = [strategy.prepare_model(nn.Linear(4, 2)) for _ in range(2)]
    strategy.compress_gradients(_sgd(*models), True)
    assert [_is_half(model) for model in models] == [True, True]


def test_buckets_that_are_changed_stay_in_fp16() -> None:
    strategy = _strategy()
    model = strategy.prepare_model(nn.Linear(4, 2))
    strategy.compress_gradients(_sgd(model), True)
    bucketed = strategy.bucketed()
    assert bucketed is not None
    assert bucketed.wire_ratio == 0.5
    bucketed.rewrap((1, 2))
    assert _is_half(model)


@pytest.mark.parametrize("first", [True, False])
def test_optimizers_of_one_model_agree(first: bool) -> None:
    strategy = _strategy()
    layers = [nn.Linear(4, 4), nn.Linear(4, 2)]
    model = strategy.prepare_model(nn.Sequential(*layers))
    for layer in layers:
        strategy.compress_gradients(_sgd(layer), first)
    assert _is_half(model) is first
    with pytest.raises(GanglineError) as caught:
        strategy.compress_gradients(_sgd(layers[1]), not first)
    assert caught.value.message == (
        "wrap_optimizer: one optimizer of Sequential has fp16_compression=True and another one has not, but the "
        "gradients of a model travel together; pass it to both, or to none"
    )


def test_sparse_gradients_stay_off_gpus() -> None:
    strategy = DdpStrategy(torch.device("cuda", 0), {}, Exchange(parse_optimizations(None)))
    with pytest.raises(GanglineError) as caught:
        strategy.prepare_model(nn.Sequential(nn.Embedding(3, 2, sparse=True)))
    assert caught.value.message == (
        "ddp cannot exchange the sparse gradients of Sequential.0 between GPUs, as NCCL carries no sparse tensors; "
        "make it with sparse=False"
    )


@pytest.mark.parametrize("hook", ["fp16", "bf16"])
def test_sparse_gradients_are_compressed_where_torch_can(hook: str) -> None:
    strategy = DdpStrategy(torch.device("cpu"), {}, Exchange(parse_optimizations({"gradient_compression": hook})))
    model = nn.Embedding(3, 2, sparse=True)
    strategy.prepare_model(model)(torch.tensor([0, 0, 2])).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.to_dense().tolist() == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]


def test_powersgd_takes_no_sparse_gradients() -> None:
    strategy = DdpStrategy(torch.device("cpu"), {}, Exchange(parse_optimizations({"gradient_compression": "powersgd"})))
    with pytest.raises(GanglineError) as caught:
        strategy.prepare_model(nn.Embedding(3, 2, sparse=True))
    assert caught.value.message == (
        "optimizations.gradient_compression: powersgd cannot send the sparse gradients of Embedding; make it with "
        "sparse=False, or use fp16"
    )
