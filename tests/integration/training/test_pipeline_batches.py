"""What a pipeline does with a batch: it cuts what has one entry for each record, refuses a batch that would stay whole,
and leaves an error of the trial's own as it is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gangline import pytorch
from gangline.errors import GanglineError
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang
from tests.support.pipeline_models import WIDTH, Chain
from tests.support.pipeline_trial import Alone, ChainTrial, Run, check_same, pipeline, train, train_by_name
from tests.support.points_trial import Block

_CUT = pipeline(microbatches=4)


class MaskTrial(ChainTrial):
    """Whose batches have a weight for each of 16 columns, as many as there are records, in a tensor for all records."""

    def build_training_data_loader(self) -> pytorch.DataLoader:
        def collate(records: list[Any]) -> Any:
            inputs, targets = (torch.stack(values) for values in zip(*records, strict=True))
            return {"inputs": inputs, "targets": targets, "mask": torch.linspace(0, 1, 16, dtype=self.kind)[None]}

        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(self.data(64), batch_size=size, shuffle=True, collate_fn=collate)

    def loss(self, batch: Any) -> torch.Tensor:
        if not isinstance(batch, dict):
            return super().loss(batch)
        difference = self.model(batch["inputs"]) - batch["targets"]
        loss: torch.Tensor = (difference.square().mean(1, keepdim=True) * batch["mask"]).mean()
        return loss


def test_a_tensor_for_all_records_goes_into_each_microbatch(tmp_path: Path) -> None:
    run = Run(MaskTrial, _CUT)
    results = train_by_name(2, tmp_path, {"mask": run})
    check_same(results["mask"], Alone(tmp_path / "alone")(run))


class TokenTrial(ChainTrial):
    """Whose records are counted in numbers, of which each one has 6."""

    def get_batch_length(self, batch: Any) -> int:
        return int(batch[0].numel())


class Keeping(Chain):
    """Keeps a term of the loss where its forward computes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        if self.training:
            self.size = out.square().mean()
        return out


class Wrong(Chain):
    """Whose forward reads an attribute that it has not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor  # type: ignore[operator]  # torch types attributes loosely


class _WrongBlock(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = super().forward(x)
        return out if self.calls < 3 else out * self.factor  # type: ignore[operator]  # as above


class WrongInLaterCall(Chain):
    """Whose last block reads an attribute that it has not in its third microbatch, while calls for others wait."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[3] = _WrongBlock(WIDTH)


def _with(loss: Callable[[Any, Any], torch.Tensor], model: type[nn.Module] = Chain) -> type[ChainTrial]:
    return type("Trial", (ChainTrial,), {"make": model, "loss": loss})


def _reads_size(trial: Any, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = ChainTrial.loss(trial, batch) + trial.model.size
    return loss


def _reads_of_another_module(trial: Any, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = ChainTrial.loss(trial, batch) * nn.Identity().factor  # type: ignore[operator]  # as above
    return loss


def _reads_before_the_model(trial: Any, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = trial.model.factor * ChainTrial.loss(trial, batch)
    return loss


TRIALS: dict[str, type[ChainTrial]] = {
    "counts numbers": TokenTrial,
    "reads what another slot has": _with(_reads_size, Keeping),
    "reads of a module of its own": _with(_reads_of_another_module),
    "reads before the model": _with(_reads_before_the_model),
    "error in forward": _with(ChainTrial.loss, Wrong),
    "error in a later microbatch": _with(ChainTrial.loss, WrongInLaterCall),
}


@in_folder
def refuse(directory: Path, name: str) -> tuple[str, str]:
    """Returns the class and the text of a trial's error."""
    try:
        train(Run(TRIALS[name], _CUT, batches=1))
    except (GanglineError, AttributeError, RuntimeError) as error:
        return type(error).__name__, str(error)
    return "", ""


def _errors(name: str, directory: Path) -> list[tuple[str, str]]:
    """Returns the errors of ranks that were not ended by the error of another one."""
    told = run_gang(2, directory / "gang", refuse, directory / "work", name)
    return [(kind, text) for kind, text in told if kind in (GanglineError.__name__, AttributeError.__name__)]


def test_a_batch_that_would_stay_whole_is_refused_on_all_slots(tmp_path: Path) -> None:
    text = (
        "get_batch_length returns 96, but no tensor or list of the batch has 96 entries in its first dimension, where "
        "pipeline cuts it: they have 16; return the number of records, or use ddp"
    )
    assert _errors("counts numbers", tmp_path) == [("GanglineError", text)] * 2


def test_an_attribute_that_another_slot_has_is_named_with_the_error(tmp_path: Path) -> None:
    ((kind, text),) = _errors("reads what another slot has", tmp_path)
    assert kind == "GanglineError"
    assert text == (
        "pipeline cannot run this trial: its train_batch reads size of Keeping behind the model, which this slot does "
        "not have ('Keeping' object has no attribute 'size'); where its forward keeps it on another slot, return it "
        "from forward beside the output, or give Keeping a default for it, or use ddp"
    )


@pytest.mark.parametrize("name", list(TRIALS)[2:])
def test_an_error_that_is_no_matter_of_slots_stays_as_it_is(name: str, tmp_path: Path) -> None:
    errors = _errors(name, tmp_path)
    assert errors
    assert all(kind == "AttributeError" for kind, _ in errors), errors
    assert all("object has no attribute 'factor'" in text for _, text in errors), errors


class Normalising(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[1] = nn.BatchNorm1d(WIDTH)


class NormTrial(ChainTrial):
    make = Normalising


NORM_RUNS = {
    "several microbatches": Run(NormTrial, _CUT, batches=1),
    "whole batches": Run(NormTrial, pipeline(microbatches=1, schedule="GPipe"), batches=1),
}


@in_folder
def listen(directory: Path) -> list[list[str]]:
    """Returns what each training says about batch normalisation."""
    messages: list[list[str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages[-1].append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gangline").addHandler(handler)
    for run in NORM_RUNS.values():
        messages.append([])
        train(run)
    return [[text for text in texts if "BatchNorm" in text] for texts in messages]


def test_batch_norm_is_warned_of_where_batches_are_cut(tmp_path: Path) -> None:
    told, _ = run_gang(2, tmp_path / "gang", listen, tmp_path / "work")
    assert dict(zip(NORM_RUNS, map(len, told), strict=True)) == {"several microbatches": 1, "whole batches": 0}
    run = NORM_RUNS["whole batches"]
    check_same(train_by_name(2, tmp_path / "same", {"run": run})["run"], Alone(tmp_path / "alone")(run))
