"""Connects Hugging Face's `transformers.Trainer` with the Core API, as Determined's module of this name does.

Owns one callback, `DetCallback`: metrics, checkpoints, resume, preemption and the length of training. Needs the
packages transformers and accelerate; nothing else of Gangline imports this module. `determined.transformers` is an
alias of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers

from gangline.core.context import Context
from gangline.core.searcher import Unit
from gangline.domain.experiment import STEPS_COMPLETED
from gangline.domain.settled.searcher import SettledLength, SettledSearcher
from gangline.domain.storage.foreign_checkpoint import TRIAL_ID
from gangline.errors import GanglineError, invalid

__all__ = ["DetCallback", "GanglineCallback"]

USER_DATA_FILE = "my_data.json"
# Names by which the Trainer tells apart what it logs.
_GROUP_BY_PREFIX = {"eval_": "validation", "test_": "test"}
# Measures of speed and the rounded epoch, which say nothing about the model.
_SPEEDS = ("_runtime", "_per_second", "_compilation_time")
_DEFAULT_EPOCHS = 3.0
# Key in a checkpoint's metadata: the step and the id of the best checkpoint so far, where that is an earlier one.
_BEST = "transformers_best_checkpoint"
_log = logging.getLogger("gangline")


@dataclass(slots=True)
class _Validation:
    """Metrics of one step. The Trainer logs each of several eval sets by itself."""

    step: int
    epochs: float = 0.0
    units: float | None = None  # progress in the searcher's unit; None if not known
    metrics: dict[str, Any] = field(default_factory=dict)
    is_open: bool = False  # whether some metrics have not been reported yet


class DetCallback(transformers.TrainerCallback):  # type: ignore[misc]  # its base is untyped here
    """Pass it in `callbacks` of a `transformers.Trainer`, on every rank. It sets `args.resume_from_checkpoint`, which
    the script passes on: `trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)`.

    core_context: of `core.init()`. args: the TrainingArguments of the same Trainer; `searcher.max_length` in batches or
    epochs sets `max_steps` or `num_train_epochs` where the script leaves them at their defaults. filter_metrics:
    reports only metrics with one of these texts in their names, and the searcher's; None for all. user_data: a JSON
    document that each checkpoint gets as `my_data.json`.

    Raises GanglineError `transformers.length` where args and the experiment give different lengths.
    """

    def __init__(
        self,
        core_context: Context,
        args: Any,
        filter_metrics: Sequence[str] | None = None,
        user_data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._core = core_context
        self._user_data = user_data
        info = core_context.info
        searcher = info.trial.settled.searcher if info is not None else SettledSearcher()
        self._unit = _set_length(args, searcher.operation_length)
        self._metric = searcher.metric or None
        decisive = filter(None, (self._metric, searcher.time_metric))
        self._filter = (*filter_metrics, *decisive) if filter_metrics else None
        self._reported: dict[str, int] = {}
        self._validation = _Validation(-1)
        self._has_warned_of_metric = False
        self._saved = self._percent = -1
        self._is_training = self._is_preempted = False
        # Ids of checkpoints by their steps.
        self._ids: dict[int, str] = {}
        self._resumed_steps = self._restore(args)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._is_training = True
        if self._resumed_steps and not state.global_step:
            raise invalid(
                "transformers.not_resumed",
                f"this trial has a checkpoint of step {self._resumed_steps}, and the Trainer begins at step 0; call "
                "trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)",
            )
        self._saved = state.global_step
        self._find_best(args, state)
        if self._metric is not None and not _validates(args) and self._core.distributed.is_chief:
            _log.warning(
                "the Trainer never validates, so nothing reports searcher.metric %s; set eval_strategy, eval_dataset",
                self._metric,
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **others: Any) -> None:
        """Reports what the Trainer logs. A second log of the same step and group is its summary, which repeats it."""
        if not logs:
            return
        group = next((_GROUP_BY_PREFIX[name[:5]] for name in logs if name[:5] in _GROUP_BY_PREFIX), "training")
        metrics = {name: value for name, value in logs.items() if name != "epoch" and not name.endswith(_SPEEDS)}
        if self._filter is not None:
            metrics = {name: value for name, value in metrics.items() if any(text in name for text in self._filter)}
        if group == "validation":
            self._add_validation(state, metrics)
            return
        self._end_validation()
        if self._reported.get(group) == state.global_step:
            return
        self._reported[group] = state.global_step
        self._report(group, state.global_step, state.epoch or 0.0, metrics)

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._end_validation()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._end_validation()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Asks for a preemption, on all ranks in step. A preempted trial saves at once and stops."""
        self._end_validation()
        self._report_progress(state)
        if self._core.preempt.should_preempt():
            self._is_preempted = control.should_training_stop = True
            control.should_save = state.global_step > self._saved

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Asks for the last checkpoint, and for the last validation where the script validates at all."""
        self._end_validation()
        is_over = control.should_training_stop or state.global_step >= state.max_steps
        if not is_over or self._is_preempted:
            return
        if _validates(args) and self._validation.step != state.global_step:
            control.should_evaluate = True
        control.should_save = control.should_save or state.global_step > self._saved

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Uploads the checkpoint that the Trainer has written, on all ranks together."""
        self._end_validation()
        step = state.global_step
        self._saved = step
        distributed, folder = self._core.distributed, f"checkpoint-{step}"
        if self._user_data is not None and state.is_world_process_zero:
            Path(args.output_dir, folder, USER_DATA_FILE).write_text(json.dumps(self._user_data))
        # Every rank writes its random numbers, and some files come from one rank alone: none uploads before all wrote.
        distributed.allgather(None)
        metadata: dict[str, Any] = {STEPS_COMPLETED: step}
        if self._core.info is not None:
            metadata[TRIAL_ID] = self._core.info.trial.trial_id
        best = _best_step_of(state)
        if best in self._ids:
            metadata[_BEST] = {"step": best, "id": self._ids[best]}
        self._ids[step] = self._core.checkpoint.upload(
            # The ranks of a machine share the folder.
            args.output_dir if distributed.local_rank == 0 else None,
            metadata,
            shard=True,
            selector=lambda path: path.startswith(f"{folder}/"),
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._end_validation()
        self._is_training = False
        if self._core.distributed.is_chief and not self._is_preempted:
            self._core.train.report_trainers_progress(state.global_step, state.global_step)

    def _add_validation(self, state: Any, metrics: Mapping[str, Any]) -> None:
        """Adds the metrics of an eval set to those of the others of the same step."""
        if self._validation.step != state.global_step:
            self._end_validation()
            units = _units_of(state, self._unit)
            self._validation = _Validation(state.global_step, state.epoch or 0.0, units, is_open=True)
        elif metrics.keys() <= self._validation.metrics.keys():
            return
        self._validation.metrics.update(metrics)
        self._validation.is_open = True
        if not self._is_training:
            # No later event shows that this was the last eval set.
            self._end_validation()

    def _end_validation(self) -> None:
        """Reports the validation whose last eval set has been logged, if any. Every event but a log of another eval set
        shows that."""
        validation = self._validation
        if not validation.is_open:
            return
        validation.is_open = False
        if self._core.distributed.is_chief:
            self._core.train.note_units(validation.units)
            self._warn_of_metric(validation)
        self._report("validation", validation.step, validation.epochs, validation.metrics)

    def _report(self, group: str, step: int, epochs: float, metrics: Mapping[str, Any]) -> None:
        if self._core.distributed.is_chief:
            self._core.train.report_metrics(group, step, {"batches": step, "epochs": epochs, **metrics})

    def _warn_of_metric(self, validation: _Validation) -> None:
        if self._metric is None or self._metric in validation.metrics or self._has_warned_of_metric:
            return
        self._has_warned_of_metric = True
        _log.warning(
            "searcher.metric is %s, but the validation of step %d reports %s; nothing decides which checkpoint is best",
            self._metric,
            validation.step,
            ", ".join(sorted(validation.metrics)) or "nothing",
        )

    def _find_best(self, args: Any, state: Any) -> None:
        """Tells a Trainer that has resumed where the best checkpoint of before is now, for load_best_model_at_end."""
        step = _best_step_of(state)
        if not self._resumed_steps or not args.load_best_model_at_end or step <= 0:
            return
        folder = Path(args.output_dir, f"checkpoint-{step}")
        if folder.is_dir():
            state.best_model_checkpoint = str(folder)
        elif self._core.distributed.is_chief:
            _log.warning(
                "the best checkpoint before this attempt, %s with %s = %s, is not in storage any more, so "
                "load_best_model_at_end cannot load it; checkpoint_policy keeps those that are best by searcher.metric",
                folder.name,
                args.metric_for_best_model,
                state.best_metric,
            )

    def _restore(self, args: Any) -> int:
        """Fetches the trial's latest checkpoint and makes the Trainer resume from it. Returns its steps, or 0."""
        latest = self._core.info.latest_checkpoint if self._core.info is not None else None
        if latest is None:
            return 0
        self._core.checkpoint.download(latest.id, args.output_dir)
        folders = {_step_of(path): path for path in Path(args.output_dir).glob("checkpoint-*")}
        metadata = self._core.checkpoint.get_metadata(latest.id)
        saved = metadata.get(STEPS_COMPLETED)
        if saved not in folders:
            raise invalid(
                "transformers.checkpoint",
                f"checkpoint {latest.id} has no folder checkpoint-{saved} of a transformers.Trainer; begin from a "
                "checkpoint that DetCallback saved",
            )
        args.resume_from_checkpoint = str(folders[saved])
        self._ids[int(saved)] = latest.id
        self._restore_best(args, metadata.get(_BEST))
        _log.info("the Trainer resumes from step %d of checkpoint %s", saved, latest.id)
        return int(saved)

    def _restore_best(self, args: Any, best: Any) -> None:
        """Fetches the best checkpoint of before too, where the Trainer loads it at the end. best: as in the metadata of
        the latest one."""
        if not isinstance(best, Mapping):
            return
        self._ids[int(best["step"])] = str(best["id"])
        if args.load_best_model_at_end:
            try:
                self._core.checkpoint.download(best["id"], args.output_dir)
            except GanglineError as error:
                _log.warning("%s", error.message)

    def _report_progress(self, state: Any) -> None:
        """Reports each whole percent."""
        if not self._core.distributed.is_chief or state.max_steps <= 0:
            return
        percent = min(100, 100 * state.global_step // state.max_steps)
        if percent > self._percent:
            self._percent = percent
            self._core.train.report_trainers_progress(state.global_step, max(state.global_step, state.max_steps))


# The same under the name of this project.
GanglineCallback = DetCallback


def _set_length(args: Any, length: SettledLength | None) -> Unit | None:
    """Gives the Trainer the experiment's length. Returns its unit, or None where the script sets its own length."""
    if length is None:
        return None
    if length.unit == "batches":
        if args.max_steps not in (-1, length.units):
            raise _other_length(f"max_steps is {args.max_steps}", length)
        args.max_steps = length.units
        return Unit.BATCHES
    if length.unit == "epochs":
        if args.max_steps > 0 or args.num_train_epochs not in (_DEFAULT_EPOCHS, length.units):
            given = (
                f"max_steps is {args.max_steps}"
                if args.max_steps > 0
                else f"num_train_epochs is {args.num_train_epochs:g}"
            )
            raise _other_length(given, length)
        args.num_train_epochs = float(length.units)
        return Unit.EPOCHS
    if length.unit == "records":
        raise invalid(
            "transformers.length",
            "a transformers.Trainer counts no records; give searcher.max_length in batches or epochs",
        )
    return None


def _other_length(given: str, length: SettledLength) -> Exception:
    return invalid(
        "transformers.length",
        f"{given}, and the experiment trains {length.units:g} {length.unit}; give one length: leave it out of "
        "TrainingArguments, or make both equal",
    )


def _validates(args: Any) -> bool:
    return str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no"


def _units_of(state: Any, unit: Unit | None) -> float | None:
    by_unit = {Unit.BATCHES: float(state.global_step), Unit.EPOCHS: float(state.epoch or 0.0)}
    return by_unit.get(unit) if unit is not None else None


def _best_step_of(state: Any) -> int:
    """Returns the step with the best validation, -1 before the first. A Trainer that resumes keeps it, but forgets
    a folder that is absent."""
    return int(getattr(state, "best_global_step", None) or _step_of(state.best_model_checkpoint))


def _step_of(path: str | Path | None) -> int:
    """Returns the step of a folder `checkpoint-STEP`, -1 for any other."""
    text = Path(path or "").name.rpartition("-")[2]
    return int(text) if text.isdigit() else -1
