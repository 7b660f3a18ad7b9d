"""Outputs of earlier units that go over the borders of a pipeline's parts, found on the meta device and the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.pytorch.plan.connections import ConnectionWatch
from gangline.pytorch.plan.measure import Measured, measure_trial
from gangline.pytorch.plan.model_size import Connection

_WIDTH, _BATCH = 16, 8
# Bytes of a record of an output.
_ROW = 4.0 * _WIDTH


class _Net(nn.Module):
    """A stem, blocks 0 to 4 and a head: units 0 to 6."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(_WIDTH, _WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(5))
        self.head = nn.Linear(_WIDTH, _WIDTH)


class _InPlace(_Net):
    """Units that change their input in place, return it, or return a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1], self.blocks[2], self.blocks[3] = nn.ReLU(inplace=True), nn.Identity(), nn.Flatten()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class _Sums(_Net):
    """Each block gets a sum of all outputs before it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).sin()
        for block in self.blocks:
            x = x + block(x) * 0.5
        out: torch.Tensor = self.head(x)
        return out


class _Chain(_Net):
    """Nothing but the output of the block before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).sin()
        for block in self.blocks:
            # A shape needs no values.
            x = block(x * 2 + torch.zeros_like(x))
        out: torch.Tensor = self.head(x)
        return out


class _Sharing(_Net):
    """One activation for all layers. place: where it is among the modules."""

    def __init__(self, place: int) -> None:
        super().__init__()
        modules = list(self.named_children())
        modules.insert(place, ("activation", nn.GELU()))
        for name, module in modules:
            self._modules.pop(name, None)
            self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.get_submodule("activation")(self.stem(x))
        for block in self.blocks:
            x = self.get_submodule("activation")(block(x))
        out: torch.Tensor = self.head(x)
        return out


class _TwoStems(_Net):
    """The second module before the list adds the same small row to all records."""

    def __init__(self) -> None:
        super().__init__()
        blocks, head = self.blocks, self.head
        del self.blocks, self.head
        self.offset, self.blocks, self.head = nn.Linear(1, _WIDTH), blocks, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x) + self.offset(torch.ones(1, 1, device=x.device))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class _Skips(_Net):
    """Block 0 reaches block 3, and block 1 reaches block 2 as it is and the head."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](self.stem(x))
        second = self.blocks[1](first)
        third = self.blocks[2](second)
        fourth = self.blocks[3](torch.cat((third, first), 1)[:, :_WIDTH])
        out: torch.Tensor = self.head(self.blocks[4](fourth)) + second
        return out


class _Masked(_Net):
    """A mask from the stem is a further argument of the last block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[4] = _Gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        mask = x > 0
        for block in self.blocks[:4]:
            x = block(x)
        out: torch.Tensor = self.head(self.blocks[4](x, mask=mask))
        return out


class _Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x) * mask
        return found


class _Decides(_Net):
    """The code decides by the value of block 0. Every part runs that code."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](self.stem(x))
        scale = 2.0 if x.mean() > 100 else 1.0
        for block in self.blocks[1:]:
            x = block(x * scale)
        out: torch.Tensor = self.head(x)
        return out


class _Lists(_Decides):
    """Reads the value without an operation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](self.stem(x))
        scale = 2.0 if x.detach().numpy().mean() > 100 else 1.0
        for block in self.blocks[1:]:
            x = block(x * scale)
        out: torch.Tensor = self.head(x)
        return out


def _trial_of(make: Callable[[], nn.Module], *, reads: bool = False) -> Any:
    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.context = context
            self.model = context.wrap_model(make())
            self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))

        def build_training_data_loader(self) -> pytorch.DataLoader:
            values = torch.ones(64, _WIDTH)
            return pytorch.DataLoader(TensorDataset(values, values), self.context.get_per_slot_batch_size())

        def build_validation_data_loader(self) -> pytorch.DataLoader:
            return self.build_training_data_loader()

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
            assert not reads or batch[0].sum().item() > 0
            loss = (self.model(batch[0]) - batch[1]).pow(2).mean()
            self.context.backward(loss)
            return {"loss": loss}

        def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            return {}

    return Trial


def _measure(
    make: Callable[[], nn.Module], *, reads: bool = False, recomputation: str = "none", section: Any = "auto"
) -> Measured:
    trial = _trial_of(make, reads=reads)
    hparams = {"global_batch_size": 2 * _BATCH}
    found = measure_trial(trial, hparams, {"parallelism": section}, 2, recomputation=recomputation)
    assert len(found.units) == 7
    assert found.notes == ()
    return found


def _found(make: Callable[[], nn.Module], **options: Any) -> list[Connection]:
    return [replace(each, keeper=None) for each in _measure(make, **options).size.connections]


@pytest.mark.parametrize("reads", [False, True])
def test_a_plain_chain_has_no_connections(reads: bool) -> None:
    assert _found(_Chain, reads=reads) == []


@pytest.mark.parametrize("place", range(4))
def test_an_activation_for_all_layers_makes_no_connections(place: int) -> None:
    assert _found(lambda: _Sharing(place)) == []


def test_units_that_return_the_storage_of_their_input_take_it_over() -> None:
    assert _found(_InPlace) == []


@pytest.mark.parametrize("reads", [False, True])
def test_skip_connections_on_the_meta_device_and_the_cpu(reads: bool) -> None:
    found = _measure(_Skips, reads=reads)
    assert all(parameter.is_meta is not reads for parameter in found.model.parameters())
    # Blocks 0 and 1 are units 1 and 2. Block 0 is needed by unit 4, and block 1 by the code after the head, unit 6.
    assert found.size.connections == (
        Connection("blocks.0", _ROW, 1, 2, 4, 1),
        Connection("blocks.1", _ROW, 2, 3, 6, 2),
    )


@pytest.mark.parametrize("reads", [False, True])
def test_a_mask_made_from_an_early_output_needs_it_where_it_is_used(reads: bool) -> None:
    # The stem has no place in a list: the code after it makes the first block's input, and needs the stem for more.
    assert _found(_Masked, reads=reads) == [Connection("stem", _ROW, 0, 0, 5)]


@pytest.mark.parametrize("make", [_Decides, _Lists])
def test_all_later_parts_repeat_a_decision_by_values(make: Callable[[], nn.Module]) -> None:
    assert _found(make) == [Connection("blocks.0", _ROW, 1, 2, 6)]


def test_configured_outputs_go_along_to_all_later_parts() -> None:
    section = {"strategy": "auto", "carry": ["stem", "blocks.0", "blocks.4"]}
    # The output of block 4 is needed by the unit behind it alone, which is the last one.
    assert _found(_Skips, section=section) == [
        Connection("stem", _ROW, 0, 0, 6),
        Connection("blocks.0", _ROW, 1, 2, 6),
        Connection("blocks.1", _ROW, 2, 3, 6),
    ]


def test_sums_of_the_model_s_own_code_need_all_their_terms() -> None:
    found = _found(_Sums)
    assert [(each.path, each.first, each.last) for each in found] == [
        ("stem", 0, 6),
        *((f"blocks.{number}", number + 2, 6) for number in range(4)),
    ]


@pytest.mark.parametrize("kind", ["blocks", "full"])
def test_recomputation_changes_the_unit_that_keeps_an_output_alone(kind: str) -> None:
    plain, again = (_measure(_Skips, recomputation=each).size.connections for each in ("none", kind))
    # A block that runs again keeps its input, so the one before it keeps nothing of its own.
    assert [each.keeper for each in again] == [2, 3]
    assert [replace(each, keeper=None) for each in again] == [replace(each, keeper=None) for each in plain]


@pytest.mark.parametrize("reads", [False, True])
def test_no_other_figure_changes(reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with_watch = [_measure(make, reads=reads).size for make in (_Skips, _Sums, _Masked)]
    monkeypatch.setattr(ConnectionWatch, "watching", lambda _: nullcontext())
    without = [_measure(make, reads=reads).size for make in (_Skips, _Sums, _Masked)]
    assert all(size.connections for size in with_watch)
    assert [replace(size, connections=()) for size in with_watch] == without


def test_the_output_of_modules_before_the_first_list_is_the_input_of_the_next_unit() -> None:
    assert _measure(_TwoStems).size.units[0].output_bytes == _ROW
