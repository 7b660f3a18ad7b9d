"""A plan goes on after the first backward pass, for what strategies refuse; nothing that is measured depends on it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.pytorch.plan.measure import Measured, measure_kinds, measure_trial
from tests.support.own_optimizer import Lamb, Lars

_WIDTH = 16
_SHARDED = {"zero2", "zero3", "hsdp"}


class _Trial(pytorch.PyTorchTrial):
    """A trial that every strategy trains. Its subclasses do one thing more."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(self.make_model())
        self.optimizer = context.wrap_optimizer(self.make_optimizer())
        self.batches = 0

    def make_model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters())

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(TensorDataset(torch.ones(64, _WIDTH)), self.context.get_per_slot_batch_size())

    build_validation_data_loader = build_training_data_loader

    def loss(self, batch: Any) -> torch.Tensor:
        found: torch.Tensor = self.model(batch[0]).square().mean()
        return found

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.go_on(batch)
        return {"loss": loss}

    def go_on(self, batch: Any) -> None: ...

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {}


class _CallsAgain(_Trial):
    def go_on(self, batch: Any) -> None:
        with torch.no_grad():
            self.loss(batch)


class _GoesBackAgain(_Trial):
    def go_on(self, batch: Any) -> None:
        self.context.backward(next(self.model.parameters()).sum())


class _HandlesErrors(_Trial):
    """Would never end, if a handler could take the end of the run for an error."""

    def go_on(self, batch: Any) -> None:
        while True:
            try:
                self.context.step_optimizer(self.optimizer)
                self.context.backward(self.loss(batch))
            except Exception:  # noqa: BLE001 - as a trial may do
                continue


class _ReadsValues(_Trial):
    def go_on(self, batch: Any) -> None:
        if batch[0].sum().item() >= 0:
            raise AssertionError("values are not known on the meta device")


class _Leaves(_Trial):
    def go_on(self, batch: Any) -> None:
        raise SystemExit("no more")


class _LeavesMean(_Trial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.context.backward(self.model(batch[0]))
        return {}


class _TakesItem(_Trial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.context.backward(float(self.loss(batch).detach().nelement()))  # type: ignore[arg-type]  # the mistake
        return {}


class _Keeps(_Trial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.context.backward(self.loss(batch), retain_graph=True)
        return {}


class _Closes(_Trial):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        def closure() -> torch.Tensor:
            loss = self.loss(batch)
            self.context.backward(loss)
            return loss

        self.context.step_optimizer(self.optimizer, closure=closure)
        return {}


class _ClosesWhole(_Closes):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return Lars(list(self.model.parameters()))


class _Joins(_Trial):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return Lamb(list(self.model.parameters()))


class _JoinsAll(_Trial):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.model.parameters())


class _Strange(_Trial):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([*self.model.parameters(), nn.Parameter(torch.ones(2))], lr=0.1)


class _Tied(_Trial):
    def make_optimizer(self) -> torch.optim.Optimizer:
        self.model.get_submodule("1").bias = self.model.get_submodule("0").bias
        return super().make_optimizer()


class _Copies(_Trial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.average = AveragedModel(self.model)
        assert "__deepcopy__" not in vars(self.average.module)


class _Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, _WIDTH, sparse=True)
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.table(inputs[:, 0].long()) + inputs
        for layer in self.layers:
            found = layer(found)
        return found  # type: ignore[no-any-return]  # torch's modules return Any


class _Sparse(_Trial):
    def make_model(self) -> nn.Module:
        return _Table()


class _Spare(nn.Module):
    """Its last module takes no part in the output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(2))
        self.spare = nn.Linear(_WIDTH, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs


class _Repeated(nn.Module):
    """order: of its layers. An activation runs behind each of them."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.order = order
        self.activation: nn.Module = nn.ReLU()
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for place in self.order:
            inputs = self.activation(self.layers[place](inputs))
        return inputs


class _Norms(_Repeated):
    """A norm with parameters behind each of its layers."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__(order)
        self.activation: nn.Module = nn.LayerNorm(_WIDTH)


class _Orders(_Trial):
    order: Sequence[int] = (0, 1, 2)

    def make_model(self) -> nn.Module:
        return _Repeated(self.order)


class _NormsTrial(_Orders):
    def make_model(self) -> nn.Module:
        return _Norms(self.order)


class _InCommon(_Trial):
    """Each layer runs a norm that the model runs, too."""

    def make_model(self) -> nn.Module:
        norm = nn.LayerNorm(_WIDTH)
        layers = [nn.Sequential() for _ in range(3)]
        for layer in layers:
            layer.add_module("linear", nn.Linear(_WIDTH, _WIDTH))
            layer.add_module("norm", norm)
        model = nn.Sequential()
        model.add_module("layers", nn.Sequential(*layers))
        model.add_module("norm", norm)
        return model


class _OrdersTwice(_Orders):
    order = (0, 1, 0, 2)


class _OrdersBack(_Orders):
    order = (0, 2, 1)


class _LeavesOut(_Trial):
    def make_model(self) -> nn.Module:
        return _Spare()


class _Second(_Trial):
    """The first backward pass reaches one of two models; the other one is reached later."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.other = context.wrap_model(_Spare())


class _Unfreezes(_Second):
    """The other model is half frozen until its own pass comes."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.other.get_submodule("layers").requires_grad_(False)

    def go_on(self, batch: Any) -> None:
        self.other.requires_grad_(True)


class _Mixed(_Trial):
    def make_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH))
        model[0].bias = nn.Parameter(torch.zeros(_WIDTH, dtype=torch.float64))
        return model


def _measure(trial: Callable[[Any], Any], *, is_gpu: bool = True, **section: Any) -> Measured:
    config = {"parallelism": {"strategy": "auto", **section}}
    return measure_trial(trial, {"global_batch_size": 8}, config, 2, is_gpu=is_gpu)


@pytest.mark.parametrize(
    ("trial", "refusing", "words"),
    [
        (_CallsAgain, {"pipeline"}, "train_batch calls it again"),
        (_GoesBackAgain, {"pipeline"}, "one context.backward, and train_batch calls it again; add the losses up"),
        (_HandlesErrors, {"pipeline"}, "calls it again"),
        (_Keeps, {"pipeline"}, "cannot pass gradient or retain_graph"),
        (_Closes, {"pipeline", "zero1"}, "closure"),
        (_ClosesWhole, {"pipeline", "zero1", *_SHARDED}, "closure"),
        (_Joins, {"pipeline", "zero1", *_SHARDED}, "Lamb updates a parameter differently when it holds other"),
        (_JoinsAll, {"pipeline", "zero1", *_SHARDED}, "LBFGS joins all parameters in one row"),
        (_Strange, {"pipeline", "ddp", "zero1", *_SHARDED}, "1 of 9 parameters of SGD belong to no wrapped model"),
        (_Tied, {"pipeline", "ddp", "zero1", *_SHARDED}, "tie, add and replace parameters before context.wrap_model"),
        (_Copies, {"pipeline"}, "the trial copies the wrapped model"),
        (_Sparse, {"pipeline", "ddp", "zero1", *_SHARDED}, "sparse gradients of _Table.table"),
        (_LeavesOut, {"ddp", "zero1"}, "spare.weight, spare.bias of _Spare took no part in the loss"),
        (
            _OrdersTwice,
            {"pipeline"},
            "cannot cut _Repeated, whose forward calls layers.0 twice; let each unit run once",
        ),
        (
            _OrdersBack,
            {"pipeline"},
            "whose forward calls layers.1 after layers.2; let each unit run once, in the order",
        ),
        (_Mixed, _SHARDED, "has parameters of float32 and float64 itself"),
    ],
)
def test_what_strategies_refuse_is_seen(trial: Any, refusing: set[str], words: str) -> None:
    refused = _measure(trial).refused
    assert set(refused) == refusing
    assert all(words in reason for reason in refused.values())


@pytest.mark.parametrize("trial", [_Trial, _ReadsValues, _Leaves, _Second, _Unfreezes, _Orders, _NormsTrial, _InCommon])
def test_no_strategy_is_refused_for_what_it_can_train_or_for_what_is_not_seen(trial: Any) -> None:
    assert _measure(trial).refused == {}


def test_copies_for_a_pipeline_are_noted() -> None:
    assert _measure(_Orders).notes == _measure(_InCommon).notes == ()
    assert _measure(_InCommon).size.connections == ()
    (note,) = _measure(_NormsTrial).notes
    assert note.startswith("each slot of a pipeline has a copy of activation, which runs twice or in another order")


def test_sparse_gradients_go_through_ddp_on_cpus() -> None:
    assert set(_measure(_Sparse, is_gpu=False).refused) == {"pipeline", *_SHARDED}


@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
def test_parameters_that_are_left_out_are_no_matter_where_torch_looks_for_them(option: str) -> None:
    assert _measure(_LeavesOut, **{option: True}).refused == {}


@pytest.mark.parametrize(
    "trial", [_CallsAgain, _GoesBackAgain, _HandlesErrors, _ReadsValues, _Leaves, _Keeps, _Closes, _Copies]
)
def test_nothing_that_is_measured_depends_on_what_comes_later(trial: Any) -> None:
    plain, found = _measure(_Trial), _measure(trial)
    assert found.size == plain.size
    assert (found.notes, plain.notes) == ((), ())
    assert plain.size.moments


def test_the_run_of_train_batch_goes_on_once() -> None:
    """A trial is measured once for each kind of recomputation, and its later lines run for the first one alone."""
    went_on: list[int] = []

    class Counts(_Trial):
        def go_on(self, batch: Any) -> None:
            went_on.append(1)

    measured = measure_kinds(Counts, {"global_batch_size": 8}, {}, 2, kinds=["none", "blocks", "full"])
    assert (len(measured), len(went_on)) == (3, 1)


def test_no_scalar_of_a_planned_batch_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr("gangline.pytorch.trial.tensorboard_writer.make_writer", lambda _: made.append(1))

    class Writes(_Trial):
        def go_on(self, batch: Any) -> None:
            self.context.get_tensorboard_writer()

    assert _measure(Writes).refused == {}
    assert not made


def test_a_copy_of_a_wrapped_model_is_as_without_a_plan() -> None:
    copies: list[Any] = []

    class Twice(_Trial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            copies.extend([copy.deepcopy(self.model), copy.deepcopy({"own": self.model})["own"], self.model])

    assert set(_measure(Twice).refused) == {"pipeline"}
    assert len({id(each[0].weight) for each in copies}) == 3
    assert ["__deepcopy__" in vars(each) for each in copies] == [False, False, True]
