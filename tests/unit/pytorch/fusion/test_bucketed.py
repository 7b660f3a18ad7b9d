"""Buckets that torch really makes, beside what the rule in bucket_partition.py says, in a group of one rank."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not in __all__

from gangline.config.optimization import Optimizations, parse_optimizations
from gangline.pytorch.fusion.bucket_partition import DEFAULT_CAPS, partition_by_caps
from gangline.pytorch.fusion.bucketed import HAS_CAP_LIST, BucketedModel
from gangline.pytorch.parallel.whole.ddp import DdpStrategy
from gangline.pytorch.parallel.whole.exchange import Exchange

pytestmark = pytest.mark.skipif(not HAS_CAP_LIST, reason="this torch takes one cap for all buckets")
_PLAIN = Optimizations()
_CAPS = (40_000, 150_000, 60_000)


@pytest.fixture(autouse=True)
def _group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Training:
    """12 layers of 64 in DDP. options: as parallelism takes them."""

    def __init__(self, *, is_half: bool = False, optimizations: Optimizations = _PLAIN, **options: Any) -> None:
        self.strategy = DdpStrategy(torch.device("cpu"), options, Exchange(optimizations))
        layers = [nn.Linear(64, 64, dtype=torch.bfloat16 if is_half and i % 2 else None) for i in range(12)]
        self.layers = layers
        self.net = self.strategy.prepare_model(Mixed(layers))

    @property
    def bucketed(self) -> BucketedModel:
        model = self.strategy.bucketed()
        assert model is not None
        return model

    def sizes(self, steps: int = 4) -> list[int]:
        """Bytes of the buckets after some steps, in the order in which they go out."""
        for _ in range(steps):
            self.net(torch.ones(1, 64)).sum().backward()
            self.net.zero_grad()
        logged = self.strategy._wrappers[0]._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # torch leaves it so
        text = str(logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"])
        return [int(size) for size in text.split(",")]


class Mixed(nn.Module):
    """Casts between layers of different types."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs.to(layer.weight.dtype))  # type: ignore[arg-type]  # a Linear's weight
        return inputs


def _predicted(model: BucketedModel, caps: tuple[int, ...]) -> list[int]:
    """Gradients come in the reverse order of layers, of each layer the weight's first."""
    count = len(model.parameters)
    order = [place for last in range(count - 2, -1, -2) for place in (last + 1, last)]
    sizes, kinds = [model.num_bytes[place] for place in order], [model.kinds[place] for place in order]
    return [sum(sizes[place] for place in bucket) for bucket in partition_by_caps(sizes, caps, kinds)]


@pytest.mark.parametrize("caps", [_CAPS, (100_000,), (1,), DEFAULT_CAPS])
def test_torch_makes_the_buckets_that_the_rule_says(caps: tuple[int, ...]) -> None:
    training = Training()
    training.bucketed.rewrap(caps)
    assert sorted(training.sizes()) == sorted(_predicted(training.bucketed, caps))


def test_buckets_of_two_types_hold_one_each() -> None:
    training = Training(is_half=True)
    training.bucketed.rewrap((20_000,))
    assert sorted(training.sizes()) == sorted(_predicted(training.bucketed, (20_000,)))


def test_wrapper_that_keeps_its_first_buckets_counts_from_the_first_parameter() -> None:
    training = Training(find_unused_parameters=True)
    assert training.bucketed.keeps_first_buckets
    sizes = training.bucketed.num_bytes[::-1]
    exact = tuple(sum(sizes[place] for place in bucket) for bucket in partition_by_caps(sizes, (60_000,)))
    training.bucketed.rewrap(exact)
    assert training.sizes() == list(exact)
    training.bucketed.rewrap(DEFAULT_CAPS)
    assert training.sizes() == [sum(sizes)]


def test_old_wrapper_is_gone_and_the_model_the_same() -> None:
    training = Training()
    training.sizes()
    names = list(training.net.state_dict())
    old = weakref.ref(training.strategy._wrappers[0])
    training.bucketed.rewrap(_CAPS)
    assert old() is None
    assert list(training.net.state_dict()) == names
    assert len(training.sizes()) > 1


@pytest.mark.parametrize("hook", ["fp16", "bf16"])
def test_compression_goes_on_with_other_buckets(hook: str) -> None:
    training = Training(optimizations=parse_optimizations({"gradient_compression": hook}))
    assert training.bucketed.wire_ratio == 0.5
    training.bucketed.rewrap(_CAPS)
    with torch.no_grad():
        training.layers[0].weight.fill_(1 / 3)
    training.net(torch.full((1, 64), 1 / 3)).sum().backward()
    gradient = training.layers[-1].bias.grad
    assert gradient is not None
    weights = training.layers[0].weight.grad
    assert weights is not None
    short = torch.float16 if hook == "fp16" else torch.bfloat16
    assert torch.equal(weights, weights.to(short).float())


@pytest.mark.parametrize(
    ("hook", "make_layer", "obstacle"),
    [
        ("powersgd", lambda: nn.Linear(600, 600), "powersgd"),
        (False, lambda: nn.EmbeddingBag(600, 600, sparse=True), "sparse"),
        (False, lambda: nn.Linear(64, 64), "one bucket"),
        (False, lambda: torch.compile(nn.Linear(600, 600)), "torch.compile"),
        (False, lambda: nn.Linear(600, 600), None),
    ],
    ids=["powersgd", "sparse", "one bucket", "compiled", "none"],
)
def test_obstacles(hook: str | bool, make_layer: Callable[[], nn.Module], obstacle: str | None) -> None:
    """The layers are made here: `torch.compile` loads much, which every collection of the tests would do."""
    optimizations = parse_optimizations({"gradient_compression": hook})
    strategy = DdpStrategy(torch.device("cpu"), {}, Exchange(optimizations))
    strategy.prepare_model(nn.Sequential(make_layer(), nn.Linear(600, 4)))
    bucketed = strategy.bucketed()
    assert bucketed is not None
    reported = bucketed.obstacle()
    assert reported is None if obstacle is None else obstacle in str(reported)


def test_no_bucketed_model_where_there_are_two_or_the_cap_is_fixed() -> None:
    two = Training()
    two.strategy.prepare_model(nn.Linear(4, 4))
    assert two.strategy.bucketed() is None
    fixed = Training(optimizations=parse_optimizations({"tensor_fusion_threshold": 8}))
    assert fixed.strategy.bucketed() is None
