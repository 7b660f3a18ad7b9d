"""Measuring a trial for a plan, on the meta device where it can be and on the CPU where it must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.config.parallelism import RECOMPUTATIONS
from gangline.errors import GanglineError
from gangline.pytorch.plan import measure
from gangline.pytorch.plan.measure import Measured, measure_kinds, measure_trial

_WIDTH, _BATCH = 16, 8


class _Trial(pytorch.PyTorchTrial):
    """Four linear layers, each of 16 x 16 and 16 parameters, stepped by AdamW."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4))))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))

    def build_training_data_loader(self) -> pytorch.DataLoader:
        values = torch.ones(64, _WIDTH)
        return pytorch.DataLoader(TensorDataset(values, values), self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return self.build_training_data_loader()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        loss = (self.model(batch[0]) - batch[1]).pow(2).mean()
        self.context.backward(loss)
        raise AssertionError("a plan goes no further")

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {}


class _ReadsValues(_Trial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        assert batch[0].sum().item() == _BATCH * _WIDTH
        return super().train_batch(batch, epoch_idx, batch_idx)


class _FailsAfterModel(_Trial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        raise FileNotFoundError("no train.bin")


class _FailsBeforeModel(_Trial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        raise FileNotFoundError("no train.bin")


class _Block(nn.Module):
    """Keeps its input of 16 and two tensors of 64 numbers for a record: one of them is the input of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(_WIDTH, 64), nn.Linear(64, _WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.outer(torch.sin(self.inner(inputs)))
        return found


class _Blocks(_Trial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Sequential(*(_Block() for _ in range(4))))


class _Convolutions(_Trial):
    """Two convolutions of images of 2 x 2 points with 4 channels, the second one of single points."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        layers = nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 2, 3, padding=1), nn.Conv2d(2, 4, 1), nn.Flatten()
        self.model = context.wrap_model(nn.Sequential(*layers))


class _Half(_Trial):
    """The first half of the layers is frozen, and SGD has momentum."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        for layer in (self.model.get_submodule("0"), self.model.get_submodule("1")):
            layer.requires_grad_(False)
        context.optimizers.clear()
        context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9))


class _Twice(_Trial):
    """Calls the model once more before the backward pass, as for a target."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            self.model(batch[0])
        return super().train_batch(batch, epoch_idx, batch_idx)


def _measure(trial: Any) -> Measured:
    return measure_trial(trial, {"global_batch_size": 2 * _BATCH}, {}, 2)


def test_convolutions_have_their_part_of_the_operations() -> None:
    # The input needs no gradient, so the first one computes twice, and the second one three times.
    first, second = 2 * (4 * 2 * 9), 3 * (2 * 4)
    assert _measure(_Convolutions).size.convolved == first / (first + second)


def test_a_trial_is_measured_on_the_meta_device() -> None:
    found = _measure(_Trial)
    assert all(parameter.is_meta for parameter in found.model.parameters())
    size = found.size
    assert (size.parameters, size.largest_block) == (4 * 272, 272)
    assert (size.stored, size.gradient, size.optimizer) == (4, 4, 8)
    assert found.notes == ()
    # A multiplication and an addition for each weight and record.
    assert size.forward_flops == 4 * 2 * _WIDTH * _WIDTH
    # A layer's backward pass has two such products; the first layer's input needs no gradient.
    assert size.flop_passes == (4 + 4 * 2 - 1) / 4
    assert size.kernel_passes > 2
    # Four layers with two tensors each. AdamW reads and writes 20 numbers for each element.
    assert size.update_bytes == 20 * 4
    assert size.update_kernels > 8
    assert [unit.forward_flops for unit in size.units] == [2 * _WIDTH * _WIDTH] * 4
    # Inputs and targets. The first layer's input is one of them.
    assert size.batch_bytes == 128
    # A layer keeps its input: 16 numbers of 4 bytes a record. The loss keeps one more row of them, after the last one.
    assert [unit.activation_bytes for unit in size.units] == [0, 64, 64, 128]
    assert [unit.taken_bytes for unit in size.units] == [0, 64, 64, 64]
    assert [unit.output_bytes for unit in size.units] == [64] * 4
    assert [unit.passed_bytes for unit in size.units] == [64] * 4
    assert [unit.tensors for unit in size.units] == [(256, 16)] * 4
    assert found.refused == {}
    assert torch.get_default_device() == torch.device("cpu")


_BF16 = {"optimizations": {"mixed_precision": "bf16"}}


class _OwnRegion(_Trial):
    """Builds its model on the context's device, makes tensors there, and opens a region of autocast itself."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        with context.device:
            model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))
        self.model = context.wrap_model(model.to(context.device))
        self.region = torch.autocast(context.device.type, torch.bfloat16)
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        device = self.context.device
        with self.region:
            out = self.model(batch[0].to(device)) + torch.zeros(_WIDTH, device=device, dtype=torch.bfloat16)
            loss = (out - batch[1]).pow(2).mean()
        self.context.backward(loss)
        raise AssertionError("a plan goes no further")


@pytest.mark.parametrize(("trial", "config"), [(_Trial, _BF16), (_OwnRegion, {})])
def test_a_trial_is_measured_in_its_precision(trial: Any, config: dict[str, Any]) -> None:
    found = measure_trial(trial, {"global_batch_size": 2 * _BATCH}, config, 2)
    assert all(parameter.is_meta for parameter in found.model.parameters())
    assert found.notes == ()
    size, plain = found.size, _measure(_Trial).size
    assert (size.stored, size.gradient, size.optimizer, size.parameters) == (4, 4, 8, plain.parameters)
    # Each layer keeps its input as 16 numbers of 2 bytes; the first one's is a copy of the batch.
    assert [unit.activation_bytes for unit in size.units[:3]] == [32, 32, 32]
    assert [unit.copied_bytes for unit in size.units] == [2 * 272] * 4
    assert size.copied_bytes == 2 * plain.parameters
    assert size.forward_flops == plain.forward_flops
    # At the beginning of the backward pass copies of weights are there, without the first one's: no gradient goes on
    # from it.
    assert max(moment.copied_bytes for moment in size.moments) == 3 * 2 * _WIDTH * _WIDTH
    twice = measure_trial(trial, {"global_batch_size": 4 * _BATCH}, config, 2).size
    # What remains does grow with it, so the most for a record stays.
    assert twice.moments[0].working_bytes == pytest.approx(size.moments[0].working_bytes, rel=0.01)
    assert twice.streamed_bytes == pytest.approx(size.streamed_bytes, rel=0.3)
    assert plain.copied_bytes == 0
    assert all(moment.copied_bytes == 0 for moment in plain.moments)


class _Watching(_Trial):
    """Notes whether its backward pass runs under autocast."""

    seen: ClassVar[list[bool]] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        loss = self.model(batch[0]).pow(2).mean()
        loss.register_hook(lambda _: self.seen.append(torch.is_autocast_enabled("cpu")))
        assert torch.is_autocast_enabled("cpu")
        self.context.backward(loss)
        raise AssertionError("a plan goes no further")


def test_the_backward_pass_of_a_plan_runs_outside_of_autocast() -> None:
    _Watching.seen.clear()
    measure_trial(_Watching, {"global_batch_size": 2 * _BATCH}, _BF16, 2)
    assert _Watching.seen == [False]


class _Lstm(_Trial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Unflatten(1, (4, 4)), nn.LSTM(4, 64, batch_first=True)))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        self.context.backward(self.model(batch[0])[0].float().pow(2).mean())
        raise AssertionError("a plan goes no further")


def test_an_lstm_for_cpus_keeps_half_precision() -> None:
    hparams = {"global_batch_size": 2 * _BATCH}
    full, half = (measure_trial(_Lstm, hparams, config, 2, is_gpu=False).size for config in ({}, _BF16))
    assert half.copied_bytes == 2 * half.parameters
    # oneDNN keeps some of its workspace in fp32.
    assert half.activation_bytes < 0.9 * full.activation_bytes


class _OnCpu(_Trial):
    """Builds its model on the CPU whatever the default is."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        layers = (nn.Linear(_WIDTH, _WIDTH, device="cpu") for _ in range(4))
        self.model = context.wrap_model(nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))


def test_a_model_that_is_on_the_cpu_is_measured_there_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_physical_bytes", lambda: 100)
    found = _measure(_OnCpu)
    assert found.notes == ()
    assert found.size.activation_bytes > 0


def test_recomputed_blocks_keep_no_copies() -> None:
    trial, hparams = _Blocks, {"global_batch_size": 2 * _BATCH}
    whole, again = (measure_trial(trial, hparams, _BF16, 2, recomputation=kind).size for kind in ("none", "blocks"))
    assert whole.copied_bytes == again.copied_bytes == 2 * whole.parameters
    # Those of one block are there at the end of its backward pass, beside all gradients.
    late = [max(size.moments, key=lambda moment: moment.gradient_ratio).copied_bytes for size in (whole, again)]
    assert max(late) <= 2 * whole.parameters / 2


def test_the_peak_of_a_unit_leaves_out_what_the_others_keep() -> None:
    """Equal blocks need as much, however many come before."""
    first, *others = measure_trial(_Blocks, {"global_batch_size": 2 * _BATCH}, {}, 2).size.units
    assert [unit.peak_bytes for unit in others] == [others[0].peak_bytes] * 3
    # The output's gradient, and the weights' own before it is the parameter's, are there as well.
    assert others[0].peak_bytes > others[0].activation_bytes + 4 * _WIDTH
    # The first one's input belongs to the batch.
    assert first.peak_bytes == others[0].peak_bytes - 4 * _WIDTH


def test_a_trial_that_reads_values_is_measured_on_the_cpu() -> None:
    found = _measure(_ReadsValues)
    assert not any(parameter.is_meta for parameter in found.model.parameters())
    # Reading values makes an operation more.
    plain = _measure(_Trial).size
    assert found.size.forward_kernels > plain.forward_kernels > 0
    assert found.size.streamed_bytes > plain.streamed_bytes > 0
    first, second = (
        replace(size, forward_kernels=0, kernel_passes=0, streamed_bytes=0) for size in (found.size, plain)
    )
    assert first == second


def test_a_large_model_that_reads_values_is_not_built_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_physical_bytes", lambda: 4 * 4 * 272 * 4 - 1)
    found = _measure(_ReadsValues)
    assert all(parameter.is_meta for parameter in found.model.parameters())
    assert (found.size.parameters, found.size.activation_bytes) == (4 * 272, 0)
    assert "because the forward pass failed here: RuntimeError" in found.notes[0]


def test_without_data_the_parameters_are_known() -> None:
    found = _measure(_FailsAfterModel)
    assert (found.size.parameters, found.size.activation_bytes) == (4 * 272, 0)
    [note] = found.notes
    assert note.endswith("because __init__ after wrap_model failed here: FileNotFoundError: no train.bin")


def test_without_a_model_the_error_says_how_to_go_on() -> None:
    with pytest.raises(GanglineError, match=r"no train\.bin; call context\.wrap_model before loading data") as failure:
        _measure(_FailsBeforeModel)
    assert failure.value.code == "plan.build"
    assert torch.get_default_device() == torch.device("cpu")


def test_frozen_parameters_have_no_gradient_and_no_state() -> None:
    size = _measure(_Half).size
    assert (size.stored, size.gradient, size.optimizer) == (4, 2, 2)


def test_a_backward_pass_that_fails_is_noted() -> None:
    class NoNumber(_Trial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
            self.context.backward((self.model(batch[0]) - batch[1]).pow(2))
            return {}

    found = _measure(NoNumber)
    assert found.size.moments == ()
    assert (found.size.flop_passes, found.size.kernel_passes) == (0, 0)
    assert found.size.activation_bytes > 0
    [note] = found.notes
    assert note.endswith("because the backward pass failed here: RuntimeError: the loss is no single number")


def test_recomputation_whose_backward_pass_alone_fails_is_left_out() -> None:
    class Counts(_Block):
        """Keeps another number of tensors when it runs again. Counts in its class, which is not put back."""

        runs = 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            Counts.runs += 1
            return super().forward(inputs if Counts.runs % 2 else torch.tanh(inputs))

    class Uneven(_Trial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.context = context
            self.model = context.wrap_model(nn.Sequential(*(Counts() for _ in range(4))))

    found = measure_kinds(Uneven, {"global_batch_size": 2 * _BATCH}, {}, 2, kinds=RECOMPUTATIONS)
    assert [each.size.recomputation for each in found] == ["none"]


def test_the_named_blocks_are_gathered_and_recomputed() -> None:
    section = {"strategy": "auto", "blocks": ["Linear"]}
    hparams = {"global_batch_size": 2 * _BATCH}
    found, plain = (measure_trial(_Blocks, hparams, config, 2).size for config in ({"parallelism": section}, {}))
    assert (found.num_groups, plain.num_groups) == (8, 4)
    assert found.largest_block < plain.largest_block
    again = [
        measure_trial(_Blocks, hparams, {"parallelism": each}, 2, recomputation="blocks").size.activation_bytes
        for each in (section, "auto")
    ]
    assert again[0] > again[1]


def test_recomputed_blocks_keep_their_inputs_alone() -> None:
    config = {"global_batch_size": 2 * _BATCH}
    plain = measure_trial(_Blocks, config, {}, 2).size
    again = measure_trial(_Blocks, config, {}, 2, recomputation="blocks").size
    # The first one's input belongs to the batch.
    assert [unit.activation_bytes for unit in again.units[:3]] == [0.0, 4.0 * _WIDTH, 4.0 * _WIDTH]
    own = 4.0 * 2 * 64
    assert [unit.activation_bytes for unit in plain.units[:3]] == [own, own + 4.0 * _WIDTH, own + 4.0 * _WIDTH]
    assert max(each.working_bytes for each in again.moments) < max(each.working_bytes for each in plain.moments)
    assert (plain.recomputation, again.recomputation) == ("none", "blocks")
    assert again.forward_flops == plain.forward_flops
    # A block's second layer does not run again: nothing needs its output.
    assert again.flop_passes == plain.flop_passes + 1 / 2
    assert again.kernel_passes > plain.kernel_passes


def test_a_unit_that_keeps_its_output_passes_nothing_that_the_next_one_keeps() -> None:
    """tanh keeps its output. That of the second linear layer is kept by code behind it. A sum keeps nothing."""

    class Sum(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs + 1

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(_WIDTH, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, _WIDTH), Sum()])

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            for place, block in enumerate(self.blocks):
                values = block(values)
                if place == 2:
                    values = values * values
            return values

    class Kept(_Trial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.context = context
            self.model = context.wrap_model(Net())

    units = _measure(Kept).size.units
    assert [unit.passed_bytes for unit in units] == [64, 0, 0, 64]
    assert [unit.taken_bytes for unit in units] == [0, 0, 0, 0]
    assert [unit.activation_bytes for unit in units] == [0, 64, 64, 64]


def test_a_second_call_of_the_model_is_noticed() -> None:
    assert list(_measure(_Twice).refused) == ["pipeline"]


def test_each_kind_of_recomputation_is_measured_if_the_model_has_the_parts() -> None:
    class Lone(_Trial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.context = context
            self.model = context.wrap_model(nn.Linear(_WIDTH, _WIDTH))

    hparams = {"global_batch_size": 2 * _BATCH}
    for trial, kinds in ((_Blocks, ["none", "blocks", "full"]), (Lone, ["none"])):
        found = measure_kinds(trial, hparams, {}, 2, kinds=RECOMPUTATIONS)
        assert [each.size.recomputation for each in found] == kinds
    with pytest.raises(GanglineError, match="has no repeated blocks"):
        measure_kinds(Lone, hparams, {}, 2, kinds=["full"])


def test_a_carried_unit_that_the_model_does_not_have_is_refused() -> None:
    section = {"strategy": "pipeline", "carry": ["10"]}
    with pytest.raises(GanglineError, match=r"parallelism\.carry: there is no unit '10'; .*the units are 0, 1, 2, 3"):
        measure_trial(_Trial, {"global_batch_size": _BATCH}, {"parallelism": section}, 1)


def test_a_model_without_blocks_cannot_be_recomputed() -> None:
    class Lone(_Trial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            self.model = context.wrap_model(nn.Linear(_WIDTH, _WIDTH))

    with pytest.raises(GanglineError) as caught:
        measure_trial(Lone, {"global_batch_size": 8}, {}, 2, recomputation="blocks")
    assert caught.value.code == "parallelism.activation_checkpointing"
