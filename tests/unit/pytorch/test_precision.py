"""Mixed precision: by the configuration, by the trial's own scaler, and by the names of old trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gangline import pytorch
from gangline.errors import GanglineError
from gangline.pytorch.plan.live_bytes import ByteLedger, LiveBytes
from gangline.pytorch.trial.update import Precision
from tests.support.small_trial import SmallTrial, fit


class _Typed(SmallTrial):
    """Notes in which type its forward passes, backward passes and updates run."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.types: set[tuple[str, str]] = set()
        self.model.register_forward_hook(lambda _module, _inputs, output: self._note("forward", output.dtype))

    def _note(self, what: str, dtype: torch.dtype) -> None:
        self.types.add((what, str(dtype).removeprefix("torch.")))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = (self.model(batch[0]).float() ** 2).mean()
        loss.register_hook(lambda gradient: self._note("autocast", gradient.dtype) if _is_cast() else None)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda _: self._note("autocast", torch.float16) if _is_cast() else None
        )
        return loss


def _is_cast() -> bool:
    return torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("level", "dtype_name"), [("O0", "float32"), ("bf16", "bfloat16"), ("fp16", "float16"), ("O2", "float16")]
)
def test_forward_passes_run_in_the_named_type(level: str, dtype_name: str) -> None:
    init = {"exp_conf": {"optimizations": {"mixed_precision": level}}}
    trial = fit(_Typed, max_length=pytorch.Batch(2), init=init)
    assert trial.types == {("forward", dtype_name)}
    assert trial.model.weight.dtype == torch.float32


def test_fp16_scales_the_loss_and_keeps_its_scale() -> None:
    config = {"exp_conf": {"optimizations": {"mixed_precision": "fp16"}}}
    trial = fit(_Slow, max_length=pytorch.Batch(8), init=config)
    assert trial.losses[-1] < trial.losses[0] / 2
    (folder,) = Path("checkpoints").iterdir()
    kept = trial.context.scalers[0].state_dict()
    resumed = fit(_Slow, max_length=pytorch.Batch(9), init=config, latest_checkpoint=folder.name)
    scaler_state = resumed.context.scalers[0].state_dict()
    assert (scaler_state["scale"], scaler_state["_growth_tracker"]) == (kept["scale"], kept["_growth_tracker"] + 1)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (("O0", "fp16"), "holds 0, this trial has 1; it starts with a fresh scale"),
        (("fp16", "O0"), "holds 1, this trial has 0; its scale is left out"),
    ],
)
def test_fp16_may_be_turned_on_or_off_between_runs(
    levels: tuple[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    latest = None
    for batches, level in enumerate(levels, 2):
        init = {"exp_conf": {"optimizations": {"mixed_precision": level}}}
        trial = fit(_Slow, max_length=pytorch.Batch(batches), init=init, latest_checkpoint=latest)
        latest = next(Path("checkpoints").iterdir()).name
    assert len(trial.losses) == 1
    assert [text for text in caplog.messages if "scaler" in text] == [f"scalers of gradients: the checkpoint {message}"]


class _Slow(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.losses: list[float] = []
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = super().train_batch(batch, epoch_idx, batch_idx)
        self.losses.append(float(loss.detach()))
        return loss


class _OwnScaler(SmallTrial):
    """As trials of Determined do it: autocast and scaler are theirs, two optimizers share the scaler."""

    updates_itself = False

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.other = context.wrap_model(nn.Linear(1, 1))
        self.second = context.wrap_optimizer(torch.optim.SGD(self.other.parameters(), lr=0.1))
        self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (self.model(batch[0]) ** 2).mean() + (self.other(batch[0]) ** 2).mean()
        self.context.backward(self.scaler.scale(loss))
        for optimizer in (self.optimizer, self.second):
            self.context.step_optimizer(optimizer, scaler=self.scaler)
        if self.updates_itself:
            self.scaler.update()
        return {"loss": loss}


class _OwnUpdates(_OwnScaler):
    updates_itself = True


@pytest.mark.parametrize("make", [_OwnScaler, _OwnUpdates])
def test_scaler_of_the_trial_learns_once_a_batch(make: type[_OwnScaler]) -> None:
    trial = fit(make, max_length=pytorch.Batch(4))
    assert trial.scaler.get_scale() == 16.0


class _OldNames(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        models, optimizers = context.configure_apex_amp([self.model], [self.optimizer], opt_level="O1")
        assert (models, optimizers) == ([self.model], [self.optimizer])


class _UseAmp(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.experimental.use_amp()


@pytest.mark.parametrize("make", [_OldNames, _UseAmp])
def test_old_switches_turn_fp16_on(make: type[SmallTrial]) -> None:
    trial = fit(make, max_length=pytorch.Batch(1))
    assert (trial.context.precision.kind, len(trial.context.scalers)) == ("fp16", 1)


def test_two_scalers_are_refused() -> None:
    init = {"exp_conf": {"optimizations": {"mixed_precision": "fp16"}}}
    with pytest.raises(GanglineError, match="the trial wraps a GradScaler, but mixed_precision fp16 brings its own"):
        fit(_OwnScaler, max_length=pytorch.Batch(1), init=init)


class _Closing(SmallTrial):
    """Steps with a closure."""

    options: dict[str, Any] = {}  # noqa: RUF012  set once

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, **self.options)
        self.num_closures = 0

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        def closure() -> Any:
            self.num_closures += 1
            return loss

        loss = (self.model(batch[0]) ** 2).mean()
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler, closure=closure)
        return {"loss": loss}


class _ClosingInHalf(SmallTrial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = (self.model(batch[0]) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, closure=lambda: loss)
        return {"loss": loss}


class _ClosingWithoutScale(_Closing):
    options = {"enabled": False}  # noqa: RUF012  set once


_SCALED_CLOSURE = (
    "step_optimizer has a closure, and {}, with which torch cannot use closures; call it without a closure, or train "
    "in bf16 or full precision, without a scaler"
)


@pytest.mark.parametrize(
    ("make", "kind", "origin"),
    [
        (_Closing, "O0", "it is called with a GradScaler"),
        (_ClosingInHalf, "fp16", "mixed_precision fp16 adds a GradScaler"),
    ],
)
def test_a_closure_with_a_scaler_is_refused_as_torch_refuses_it(make: type[SmallTrial], kind: str, origin: str) -> None:
    layer = nn.Linear(1, 1)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(layer(torch.ones(1, 1)).sum()).backward()
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=lambda: None)
    with pytest.raises(GanglineError) as refusal:
        fit(make, max_length=pytorch.Batch(1), init={"exp_conf": {"optimizations": {"mixed_precision": kind}}})
    assert (refusal.value.code, refusal.value.message) == ("pytorch.scaled_closure", _SCALED_CLOSURE.format(origin))


def test_a_scaler_that_is_off_steps_with_the_closure() -> None:
    assert fit(_ClosingWithoutScale, max_length=pytorch.Batch(2)).num_closures == 2


def test_a_backward_pass_runs_without_the_copies_of_the_weights() -> None:
    """A region of autocast keeps a copy of each weight until it ends, and train_batch runs in one."""
    precision, layer, ledger = Precision(torch.device("cpu"), "bf16"), nn.Linear(8, 8), ByteLedger("cpu")
    text = torch.ones(2, 8)
    with LiveBytes(ledger), precision.autocast(), precision.autocast():
        layer(text)
        copies = 2 * (8 * 8 + 8)
        assert ledger.live >= copies
        with precision.outside():
            assert ledger.live < copies
            assert not _is_cast()
            assert layer(text).dtype == torch.float32
            with precision.outside():
                assert not _is_cast()
        assert layer(text).dtype == torch.bfloat16
    assert not _is_cast()


def test_a_backward_pass_in_a_region_of_the_trial_runs_without_autocast() -> None:
    precision = Precision(torch.device("cpu"), "bf16")
    with precision.autocast(), torch.autocast("cpu", torch.float16):
        with precision.outside():
            assert not _is_cast()
        assert (_is_cast(), torch.get_autocast_dtype("cpu")) == (True, torch.float16)
    with precision.autocast(), torch.autocast("cpu", enabled=False):
        with precision.outside():
            assert not _is_cast()
        assert not _is_cast()
    assert not _is_cast()


class _Copied(SmallTrial):
    """Notes the live bytes of its tensors before and in its backward pass. A forward pass without a use leaves copies
    of the weights that no graph needs."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.wide = context.wrap_model(nn.Linear(1, 5000))
        context.wrap_optimizer(torch.optim.SGD(self.wide.parameters(), lr=0.0))
        self.ledger = ByteLedger("cpu")
        self.live: list[int] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        with LiveBytes(self.ledger):
            loss = (self.model(batch[0]).float() ** 2).mean() + 0 * self.wide(batch[0]).mean()
            self.live.append(self.ledger.live)
            loss.register_hook(lambda _: self.live.append(self.ledger.live))
            self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss


def test_a_batch_drops_the_copies_of_the_weights_before_its_backward_pass() -> None:
    init = {"exp_conf": {"optimizations": {"mixed_precision": "bf16"}}}
    before, within = fit(_Copied, max_length=pytorch.Batch(1), init=init).live
    assert before - within >= 2 * (5000 + 5000)
