"""Chooses the strategy of a trial under `parallelism: auto`. Called by gangline.pytorch.init on every rank.

The chief builds and measures the trial before the process group is open, as a process alone: code of the trial that
exchanges with other ranks fails there at once, and cannot wait for ranks that do not build the trial. Then all ranks
measure the slots, the chief decides, and every rank gets the record, or the chief's error.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gangline.config.parallelism import Parallelism, parse_parallelism
from gangline.config.strategy_choice import (
    StrategyChoice,
    choice_in,
    is_refusal,
    parse_choice,
    table_lines,
    way_out,
)
from gangline.core import Context, DistributedContext
from gangline.domain.state import ExitKind
from gangline.domain.storage.foreign_checkpoint import TRIAL_ID
from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.launch.failure import describe
from gangline.pytorch.checkpoint.content import is_of_another_trial
from gangline.pytorch.parallel.shared.ownership import LAZY_MODEL
from gangline.pytorch.plan.decision import (
    decide,
    explain_failure,
    recomputations_of,
    record_of,
    settled_section,
    work_of,
)
from gangline.pytorch.plan.measure import measure_kinds
from gangline.pytorch.plan.model_size import ModelSize
from gangline.pytorch.plan.place import measure_place
from gangline.pytorch.trial.setting import TrialSetting

_log = logging.getLogger("gangline")
_DTYPES = {None: torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_WAY_OUT = "name a strategy instead, such as parallelism: ddp"
MakeTrial = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Measurement:
    """Result of measuring the trial, which has a problem or sizes."""

    problem: str = ""  # why the trial cannot be measured; empty if it was measured
    cause: BaseException | None = None  # the exception of the trial's own code; None if there was none
    # sizes of the model, one for each possible recomputation; empty where there is a problem
    sizes: tuple[ModelSize, ...] = ()
    num_models: int = 0
    notes: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


class AutomaticChoice:
    """The choice for one trial. Made before the process group is open, where the chief measures the trial.

    slots: ranks of this attempt. rounds: batches that each of them trains one after another.
    """

    def __init__(
        self,
        make_trial: MakeTrial | None,
        setting: TrialSetting,
        device: torch.device,
        *,
        slots: int,
        rank: int,
        rounds: int = 1,
    ) -> None:
        if make_trial is None:
            raise invalid(
                "parallelism.trial_class",
                "parallelism: auto measures the trial before it is built; call "
                f"gangline.pytorch.init(trial_class=MyTrial), or {_WAY_OUT}",
            )
        self._setting = setting
        self._device = device
        self._rounds = rounds
        self.section = section_of(setting.parallelism)
        is_gpu = device.type == "cuda"
        self._measured = _measure(make_trial, setting, slots * rounds, self.section, is_gpu) if rank == 0 else None

    def settle(self, core: Context) -> StrategyChoice:
        """Returns the record, the same on all ranks, which call it in step. Raises
        GanglineError `parallelism.auto` on all ranks where the trial cannot be measured, or where nothing fits."""
        distributed = core.distributed
        self._check_measured(distributed)
        place = measure_place(distributed, self._device, _DTYPES[self._setting.optimizations.autocast_type])
        answer: dict[str, str] | None = None
        if self._measured is not None:
            batch = self._setting.hparams.get("global_batch_size")
            optimizations = self._setting.optimizations
            work = work_of(
                self.section,
                optimizations,
                batch,
                self._measured.num_models,
                self._rounds,
                refused=self._measured.refused,
            )
            decision = decide(self._measured.sizes, work, place, _earlier_choice(core))
            record = record_of(decision, place, self._measured.notes)
            lines = [*table_lines(record), *(f"note: {note}" for note in record.notes)]
            for line in lines:
                _log.log(logging.INFO if decision.chosen else logging.ERROR, "%s", line)
            for name, line in record.refused.items():
                _log.info("parallelism: auto goes on without %s, which refused the trial: %s", name, line)
            if decision.is_kept:
                _log.info("parallelism: auto keeps the choice of the attempt before, which had as many slots")
            if decision.chosen is None:
                answer = {"problem": explain_failure(decision, self._measured.sizes, work, place).message}
            else:
                answer = {"record": record.to_json()}
                core.link.send_strategy_choice(answer["record"])
        settled: dict[str, str] = distributed.broadcast(answer)
        if "problem" in settled:
            raise invalid("parallelism.auto", settled["problem"])
        return parse_choice(settled["record"])

    def _check_measured(self, distributed: DistributedContext) -> None:
        """Raises the chief's error on all ranks, on the chief with the traceback into the trial. A condition outside of
        the trial, as data that is away, may be gone in the next attempt."""
        cause = self._measured.cause if self._measured else None
        may_pass = cause is not None and describe(cause).kind is ExitKind.UNAVAILABLE
        problem, may_pass = distributed.broadcast([self._measured.problem, may_pass] if self._measured else None)
        if problem:
            kind = ErrorKind.UNAVAILABLE if may_pass else ErrorKind.INVALID
            raise GanglineError("parallelism.auto", problem, kind) from cause

    def section_for(self, record: StrategyChoice) -> dict[str, Any]:
        """Returns the section `parallelism` that names the chosen strategy."""
        return settled_section(record.chosen, self.section)

    def with_way_out(self, error: GanglineError, record: StrategyChoice) -> GanglineError:
        """Returns the error of a trial that trains without a scheduler, which would start it again with another
        strategy. One that a strategy raises for the trial's code names the next candidate."""
        name = way_out(record, error.code) if is_refusal(error.code) else ""
        if not name:
            return error
        text = f"{error.message}; auto has chosen {record.choice}, name {name} instead"
        return error.reworded(text).with_traceback(error.__traceback__)


def _earlier_choice(core: Context) -> StrategyChoice | None:
    """Returns the record of the attempt before, as the scheduler has it; else the one in the checkpoint from which this
    trial goes on, if the trial saved it itself. What cannot be read is no record here; restoring the checkpoint reports
    it."""
    info = core.info
    if info is None:
        return None
    try:
        if info.trial.strategy_choice_json:
            return parse_choice(info.trial.strategy_choice_json)
        if info.latest_checkpoint is None:
            return None
        metadata = core.checkpoint.get_metadata(info.latest_checkpoint)
        own = not is_of_another_trial(str(metadata.get(TRIAL_ID, "")), info.trial.trial_id)
        return choice_in(metadata) if own else None
    except (GanglineError, OSError) as error:
        _log.warning("parallelism: auto chooses anew, because the choice before cannot be read: %s", error)
        return None


def section_of(parallelism: Any) -> Parallelism:
    """Returns the checked section. Raises GanglineError `config.*`."""
    return parse_parallelism(parallelism if isinstance(parallelism, str) else dict(parallelism))


def _measure(
    make_trial: MakeTrial, setting: TrialSetting, slots: int, section: Parallelism, is_gpu: bool
) -> _Measurement:
    """Measures the trial and lets go of its memory. The caller seeds the generators afterwards."""
    before = torch.get_default_device()
    try:
        return _measure_all(make_trial, setting, slots, section, is_gpu)
    except GanglineError as error:
        # All strategies refuse a model without shapes, so only its own way out helps.
        other = "" if error.code == LAZY_MODEL else f"; or {_WAY_OUT}"
        return _Measurement(f"parallelism: auto cannot measure the trial: {error.message}{other}", error.__cause__)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - all ranks must learn of it, whatever the user's code does
        why = next(iter(str(error).strip().splitlines()), "")
        return _Measurement(
            f"parallelism: auto cannot measure the trial: {type(error).__name__}: {why}; {_WAY_OUT}", error
        )
    finally:
        if before.type != "cpu":
            torch.set_default_device(before)
        # A model and its graph may form cycles, and the real trial needs their memory.
        gc.collect()


def _measure_all(
    make_trial: MakeTrial, setting: TrialSetting, slots: int, section: Parallelism, is_gpu: bool
) -> _Measurement:
    measured = measure_kinds(
        make_trial,
        setting.hparams,
        setting.config,
        slots,
        kinds=recomputations_of(section),
        is_gpu=is_gpu,
    )
    first = measured[0]
    sizes = tuple(each.size for each in measured)
    return _Measurement("", None, sizes, first.num_models, first.notes, first.refused)
