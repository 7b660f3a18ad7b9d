"""Decisions of strategies without other ranks: who owns which tensors, what is gathered together, the mesh, the
refusals.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gangline.config.optimization import Optimizations
from gangline.errors import GanglineError
from gangline.pytorch.parallel.choice import choose_strategy
from gangline.pytorch.parallel.divided.block import find_blocks
from gangline.pytorch.parallel.divided.fully_sharded import mesh_shape
from gangline.pytorch.parallel.shared.even_division import divide
from gangline.pytorch.parallel.shared.norm import clip_to_norm, gradient_norm
from gangline.pytorch.parallel.shared.ownership import WrappedModels

_CPU = torch.device("cpu")


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 2)
        self.layers = nn.ModuleList([_Layer(), _Layer(), _Layer()])
        self.head = nn.Linear(2, 4, bias=False)


@pytest.mark.parametrize(
    ("sizes", "owners"),
    [([8, 1, 1, 6], [0, 1, 1, 1]), ([5, 5, 5], [0, 1, 0]), ([], []), ([0, 0], [0, 0])],
)
def test_each_part_goes_to_whom_has_least(sizes: list[int], owners: list[int]) -> None:
    assert divide(sizes, 2) == owners


def test_repeated_members_of_a_list_are_blocks() -> None:
    model = _Model()
    assert find_blocks(model) == list(model.layers)


def test_part_that_shares_a_parameter_is_no_block() -> None:
    model = _Model()
    model.layers[1].inner[0].weight = model.layers[2].inner[0].weight  # type: ignore[union-attr, index]  # torch types modules loosely
    assert find_blocks(model) == [model.layers[0]]
    model.embedding.weight = nn.Parameter(torch.zeros(4, 2))
    model.head.weight = model.embedding.weight
    assert find_blocks(model) == [model.layers[0]]


def test_one_layer_used_many_times_is_one_block() -> None:
    layer = _Layer()
    model = nn.ModuleDict({"layers": nn.ModuleList([layer, layer]), "head": nn.Linear(2, 2)})
    assert find_blocks(model) == [layer]


def test_blocks_by_name() -> None:
    model = _Model()
    assert find_blocks(model, ["Linear"])[-1] is model.head
    assert find_blocks(model, []) == []
    with pytest.raises(
        GanglineError, match=r"_Model has no module of class 'Layer'; its classes are Embedding, Linear"
    ):
        find_blocks(model, ["Layer"])


@pytest.mark.parametrize(
    ("size", "machines", "shape"),
    [(4, 1, (2, 2)), (8, 2, (2, 4)), (12, 3, (3, 4)), (8, 8, (2, 4)), (10, 4, (2, 5))],
)
def test_mesh_has_a_copy_for_each_machine(size: int, machines: int, shape: tuple[int, int]) -> None:
    assert mesh_shape(size, machines) == shape


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_clipping_is_that_of_torch(norm_type: float) -> None:
    ours = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(1))]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    for index, (left, right) in enumerate(zip(ours[:2], theirs[:2], strict=True)):
        left.grad, right.grad = torch.full_like(left, 3.0 + index), torch.full_like(right, 3.0 + index)
    norm = clip_to_norm(ours, 0.5, norm_type)
    assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(theirs, 0.5, norm_type)))
    for left, right in zip(ours[:2], theirs[:2], strict=True):
        assert left.grad is not None
        assert right.grad is not None
        assert torch.allclose(left.grad, right.grad)
    assert float(gradient_norm(ours, norm_type)) <= 0.5 + 1e-6
    assert float(gradient_norm([], norm_type)) == 0


@pytest.mark.parametrize(
    ("parallelism", "size", "words"),
    [
        ("zero9", 2, "there is no strategy 'zero9'; did you mean zero3 or zero2. this version has none, ddp, zero1"),
        ({"strategy": "auto", "bucket": 1}, 2, "parallelism.bucket: "),
        ({"strategy": "auto", "schedule": "2F2B"}, 2, "there is no schedule '2F2B'"),
        ("none", 2, "none trains on one slot, but the slots of this trial are 2; use ddp"),
        (
            "hsdp",
            3,
            "hsdp needs an even number of slots, at least 4, .* but the slots of this trial are 3; use zero3, or 4",
        ),
        ({"strategy": "zero3", "static_graph": True}, 2, "parallelism.static_graph: zero3 knows blocks"),
        ({"strategy": "none", "blocks": []}, 1, "parallelism.blocks: none has no options"),
        ({"strategy": "ddp", "bucket": 1}, 2, "ddp knows find_unused_parameters, static_graph, broadcast_buffers"),
    ],
)
def test_refused_before_anything_is_wrapped(parallelism: object, size: int, words: str) -> None:
    with pytest.raises(GanglineError, match=words):
        choose_strategy(parallelism, size, _CPU, Optimizations())  # type: ignore[arg-type]  # as a script may pass it


def test_compression_is_refused_where_gradients_go_in_shards() -> None:
    optimizations = Optimizations.model_validate({"gradient_compression": "fp16"})
    with pytest.raises(GanglineError, match="fp16 works with ddp and zero1, but parallelism is zero3"):
        choose_strategy("zero3", 2, _CPU, optimizations)


def test_one_slot_has_nothing_to_divide() -> None:
    assert choose_strategy("zero3", 1, _CPU, Optimizations()).name == "none"


def test_optimizer_of_other_parameters_is_refused() -> None:
    model, other_model = nn.Linear(1, 1), nn.Linear(1, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *other_model.parameters()], lr=1.0)
    for replaces, words in ((False, "ranks would train them apart"), (True, "build the optimizer after that")):
        wrapped = WrappedModels("zero3", replaces)
        wrapped.add(model)
        with pytest.raises(GanglineError, match=f"2 of 4 parameters of SGD belong to no wrapped model.*{words}"):
            wrapped.check(optimizer)


def test_model_that_changed_after_wrapping_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    wrapped = WrappedModels("zero3", replaces=True)
    wrapped.add(model)
    model[1].weight = model[0].weight
    with pytest.raises(GanglineError, match=r"Sequential had 2 parameters when it was wrapped and has others now; tie"):
        wrapped.check(torch.optim.SGD(model.parameters(), lr=1.0))
