"""Training loop: trains batch after batch until the schedule is over, a stop is requested, or the trial is preempted.

Owns the position in the data, the moments to report, validate and save, and the agreement of all ranks on when to check
for a stop. It calls the user's trial and callbacks, which decide how a batch changes the model. Made and run by the
Trainer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gangline.core.beat import BETWEEN, DATA, EXCHANGE, FORWARD, TRACE
from gangline.core.closing import ending
from gangline.errors import invalid
from gangline.pytorch.checkpoint import Keeper, Source
from gangline.pytorch.data import seed
from gangline.pytorch.data.foreign_loader import ForeignLoader
from gangline.pytorch.data.loader import DataLoader
from gangline.pytorch.data.torch_error import explain
from gangline.pytorch.profile.profile import Profile
from gangline.pytorch.training.evaluation import Evaluation
from gangline.pytorch.training.fusion_opening import Fusion, Untuned, open_fusion
from gangline.pytorch.training.metric_report import TrainingReports
from gangline.pytorch.training.part_state import PartState
from gangline.pytorch.training.schedule import BestMetric, Pace, Schedule
from gangline.pytorch.trial.callback import PyTorchCallback, call_all, start_epoch
from gangline.pytorch.trial.calling import train_call
from gangline.pytorch.trial.context import PyTorchTrialContext
from gangline.pytorch.trial.trial import PyTorchTrial
from gangline.pytorch.trial.unit import Position

# Least time between two progress messages, so that short batches do not flood the link.
_PROGRESS_SECONDS = 1.0
# Index of the trace order in the numbers that the ranks agree on (_ask).
_TRACE = 2
_NOTHING: AbstractContextManager[None] = nullcontext()
_log = logging.getLogger("gangline")


class TrainingLoop:
    """Trains one trial. All ranks run it in step. is_preempted: whether it ended because the slots are needed."""

    def __init__(
        self,
        *,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        callbacks: Mapping[str, PyTorchCallback],
        schedule: Schedule,
        loader: DataLoader | ForeignLoader,
        evaluation: Evaluation,
        profile: Profile,
    ) -> None:
        self.is_preempted = False
        self._trial = trial
        self._call_train = train_call(trial)
        self._context = context
        self._distributed = context.distributed
        self._link = context.core.link
        self._beat = context.core.beat
        self._callbacks = callbacks
        self._schedule = schedule
        self._loader = loader
        self._evaluation = evaluation
        self._profile = profile
        self._trace = context.trace
        self._is_profiled = context.profiling.enabled
        self._aggregation_frequency = context.setting.optimizations.aggregation_frequency
        searcher = context.setting.settled.searcher
        self._best = BestMetric(searcher.metric or None, searcher.smaller_is_better)
        self._has_warned_of_metric = self._has_stepped = False
        self._keeper = Keeper(context, callbacks)
        self._reports = TrainingReports(
            context, callbacks, profile, self._check_finite, self._keeper.settle_and_describe
        )
        self._fusion: Fusion = Untuned()
        self._saved_fusion: dict[str, Any] = {}
        self._next_event = 0
        self._pace = Pace()
        self._question: Callable[[], list[int]] | None = None
        # Agreed by all ranks: whether the slots are needed, and whether one rank wants to end.
        self._stop: tuple[bool, bool] | None = None
        self._looked_at = self._told_at = (0, 0.0)
        self._records = 0
        self._newest_checkpoint = self._newest_validation = -1
        self._newest_metrics: dict[str, float] = {}
        self._has_its_validation = False
        self._part_state = PartState(trial, context.lr_schedulers)
        self._rounds = context.rounds
        self._replica = context.replica
        # Replicas of the full gang. Positions and batches are counted as the full gang would make them.
        self._full_size = self._replica.count * self._rounds
        self._steps_per_epoch = loader.steps_per_epoch(self._replica.count, self._rounds)
        shortage = loader.describe_shortage(self._full_size)
        if shortage is not None and self._distributed.is_chief:
            _log.warning("%s", shortage)
        note = loader.describe_last_step(self._full_size) if shortage is None else None
        if note is not None and self._distributed.is_chief:
            _log.info("training data: %s", note)
        self._position = Position(self._steps_per_epoch, (loader.batch_size or 0) * self._full_size)
        context.position, context.is_positioned = self._position, True

    def restore(self, source: Source) -> None:
        """Continues where a checkpoint was saved. From a checkpoint of another trial it takes everything but the
        position. All ranks call it in step, before `run`."""
        if not self._keeper.restore(source):
            return
        progress = source.trainer["progress"]
        position = self._position
        position.batches = progress["batches"]
        position.go_on(progress["epoch"], *_place_here(progress, self._loader, self._full_size))
        self._best.value = progress["best_validation"]
        self._saved_fusion = progress.get("fusion", {})
        self._newest_checkpoint, self._newest_validation = position.batches, progress["newest_validation"]
        self._has_its_validation = self._newest_validation == position.batches

    def run(self, source: Source | None = None, validate_first: bool = False) -> None:
        """Trains to the end. source: the restored checkpoint, for its random numbers, which are restored when
        everything else is in place. validate_first: validate before the first batch of a new trial."""
        self._beat.begin(self._position.batches)
        self._call(lambda callback: callback.on_training_start())
        for model in self._context.models:
            model.train()
        # The ranks of a replica share the stream: a dataset's random changes must be the same on all of them.
        seed.seed_training(self._context.get_trial_seed(), self._replica.index)
        if source is not None:
            self._keeper.restore_random(source)
        if validate_first and self._position.batches == 0:
            self._validate()
        self._pace.agree(self._position.batches, 1)
        self._looked_at = self._told_at = (self._position.batches, time.perf_counter())
        self._reports.start(self._position.batches)
        self._context.strategy.begin_training(self._beat)
        self._fusion = open_fusion(self._context, self._steps_left(), self._loader.batch_size or 0, self._saved_fusion)
        self._link.takes_traces = True
        with ending(traces=self._refuse_traces, fusion=self._fusion.close):
            self._train()
        self._end()

    def _refuse_traces(self) -> None:
        self._link.takes_traces = False

    def settle(self) -> None:
        """Waits for the save under way after training has failed, as it may still become a checkpoint."""
        self._keeper.settle()

    def _train(self) -> None:
        position, schedule, pace = self._position, self._schedule, self._pace
        if schedule.is_over(position):
            return
        batches = self._batches()
        while True:
            if position.batches >= self._next_event:
                if schedule.is_over(position):
                    break
                self._next_event = schedule.next_event(position)
            if self._is_profiled:
                self._profile.begin_batch(position.batches)
            self._train_batch(batches)
            self._after_batch()
            if position.batches >= pace.next_look and self._should_stop():
                return

    def _batches(self) -> Iterator[tuple[Any, float]]:
        """Returns this rank's endless stream of batches with their weights, from the present position on. Each step
        takes one batch for each round."""
        return self._loader.training_batches(
            skip=self._position.loader_step,
            shift=self._position.shift,
            num_replicas=self._replica.count,
            rank=self._replica.index,
            rounds=self._rounds,
            seed=self._context.get_trial_seed(),
        )

    def _train_batch(self, batches: Iterator[tuple[Any, float]]) -> None:
        """Trains one batch of each rank of the full gang. This rank trains its part in one or several rounds and
        aggregates their gradients."""
        position = self._position
        is_step = (position.batches + 1) % self._aggregation_frequency == 0
        records = 0
        for number in range(1, self._rounds + 1):
            self._beat.enter(DATA)
            if self._context.clock.is_running:
                with self._context.clock.phase("data"):
                    batch, weight = next(batches)
            else:
                batch, weight = next(batches)
            if position.offset == 0 and number == 1:
                self._call(lambda callback: start_epoch(callback, position.epoch))
            ends_step = is_step and number == self._rounds
            if weight:
                result = self._update_model(batch, weight, ends_step)
                records += self._trial.get_batch_length(batch)
            else:
                # The batch belongs to another rank or round, so reducers must not see its records.
                with self._context.reducers.unchanged(self._context.models):
                    result = self._update_model(batch, weight, ends_step)
            self._reports.add(result, weight)
        self._records += records
        if self._is_profiled:
            self._profile.end_batch(records, is_step)
        if self._trace.is_on:
            # A call may write a trace, whose duration has no bound, so the hang watchdog must not count it.
            self._beat.rest(TRACE)
            self._trace.step()
            self._beat.resume()
        if is_step:
            self._fusion.on_step()
            if not self._has_stepped:
                self._has_stepped = True
                self._link.send_first_step()

    def _update_model(self, batch: Any, weight: float, is_step: bool) -> Any:
        """Calls train_batch and returns its result. Raises a GanglineError with advice for a known error of torch."""
        context = self._context
        self._beat.enter(FORWARD)
        if context.experimental.moves_batches:
            if context.clock.is_running:
                with context.clock.phase("data"):
                    batch = context.to_device(batch)
            else:
                batch = context.to_device(batch)
        is_plain = context.update.begin_batch(is_step, weight)
        try:
            if is_plain:
                result = self._call_train(batch, self._position.epoch, self._position.batches)
            else:
                exchange = _NOTHING if is_step else context.strategy.accumulate()
                with exchange, context.clock.phase("forward"), context.autocast():
                    result = context.strategy.run_batch(self._train_part, batch, self._trial.get_batch_length)
        except (RuntimeError, ValueError) as error:
            meaning = explain(error, context.strategy.name)
            if meaning is None:
                raise
            raise meaning from error
        finally:
            context.update.leave_batch()
        if context.update.scalers:
            context.update.end_batch()
        return result

    def _train_part(self, batch: Any, is_last: bool) -> Any:
        """Calls train_batch with a batch, or with a part of one. is_last: of the calls for this batch."""
        if is_last:
            return self._call_train(batch, self._position.epoch, self._position.batches)
        with self._context.update.without_step(), self._part_state.unchanged():
            return self._call_train(batch, self._position.epoch, self._position.batches)

    def _after_batch(self) -> None:
        position = self._position
        if self._context.lr_schedulers:
            self._step_schedulers()
        position.advance()
        self._beat.step(position.batches)
        self._reports.end()
        if position.offset == 0:
            self._call(lambda callback: callback.on_training_epoch_end(position.epoch - 1))
        if position.batches < self._next_event:
            return
        is_validated = self._schedule.has_validation(position)
        is_joined = is_validated or self._schedule.has_checkpoint(position)
        if is_joined or self._schedule.has_report(position):
            # Where batches are long, one batch later is too late for a report. So it is beside a validation or a
            # checkpoint, for which the ranks wait anyway.
            self._reports.begin(position.batches, may_wait=self._pace.distance > 1 and not is_joined)
        if is_validated and not self._schedule.is_over(position):
            self._validate()
            if self._schedule.has_rung(position):
                # The searcher may stop this trial now.
                self._pace.hurry(position.batches, is_asked=self._question is not None)
        if self._schedule.has_checkpoint(position) and not self._schedule.is_over(position):
            self._save()

    def _call(self, hook: Callable[[PyTorchCallback], None]) -> None:
        call_all(self._callbacks.values(), self._beat, hook)

    def _step_schedulers(self) -> None:
        position = self._position
        batches, aggregation = position.batches + 1, self._aggregation_frequency
        completed_epoch = position.epoch + 1 if position.is_epoch_end else None
        # One batch can bring several steps: those of all batches whose gradients were accumulated for this optimizer
        # step.
        for wrapped in self._context.lr_schedulers:
            for _ in range(wrapped.steps_due(batches, aggregation, completed_epoch)):
                wrapped.scheduler.step()

    def _should_stop(self) -> bool:
        """Returns whether training stops here, because a rank wants to or the slots are needed. Waits until no
        aggregated gradients would be lost."""
        if self._stop is None:
            self._look()
        if self._stop is None:
            return False
        if not self._schedule.ends_step(self._position):
            self._pace.next_look = self._position.batches + 1
            return False
        is_preempted, is_stopped = self._stop
        self.is_preempted = is_preempted and not self._schedule.is_over(self._position)
        return self.is_preempted or is_stopped

    def _look(self) -> None:
        """Asks all ranks about a stop, at the same batch on all of them. Where batches are short the answer is awaited
        one batch later, so that no rank waits for it."""
        batches = self._position.batches
        self._keeper.poll()
        if self._question is None:
            self._question = self._ask()
            self._reports.exchange(batches)
            if self._pace.distance > 1:
                self._pace.next_look = batches + 1
                return
        self._beat.enter(EXCHANGE)
        is_preempted, is_stopped, batches_to_trace, distance = self._question()
        self._beat.stay(BETWEEN)
        self._question = None
        self._pace.agree(batches, distance)
        self._looked_at = (batches, time.perf_counter())
        if self._looked_at[1] - self._told_at[1] >= _PROGRESS_SECONDS:
            self._send_progress()
        if is_preempted or is_stopped:
            self._stop = (bool(is_preempted), bool(is_stopped))
        if batches_to_trace:
            self._begin_trace(batches_to_trace)

    def _ask(self) -> Callable[[], list[int]]:
        elapsed, done = time.perf_counter() - self._looked_at[1], self._position.batches - self._looked_at[0]
        wishes = [
            int(self._distributed.is_chief and self._link.preemption is not None),
            int(self._context.get_stop_requested()),
            self._link.take_trace(),
            self._pace.suggest(done, elapsed),
        ]
        return self._distributed.maximum_later(wishes)

    def _begin_trace(self, batches: int) -> None:
        """Begins an ordered trace after the same batch on all ranks; the chief traces. Tensor fusion ignores these
        steps, and the one that waits until the trace is written, because tracing distorts their times."""
        self._fusion.rest(-(-(1 + batches) // self._aggregation_frequency) + 1)
        if not self._distributed.is_chief:
            return
        if self._stop is not None:
            self._trace.refuse("training stops")
            return
        # CUPTI takes a second or more to start, so the hang watchdog pauses.
        self._beat.rest(TRACE)
        self._trace.order(batches, self._position.batches, self._context.core.tensorboard, self._rest_for_trace)
        self._beat.resume()

    def _rest_for_trace(self) -> None:
        self._beat.rest(TRACE)

    def _cut_trace(self, why: str) -> None:
        """Ends an ordered trace, which covers training alone. A validation of many batches would make a file too large
        to open."""
        if self._trace.is_on:
            self._beat.rest(TRACE)
            self._trace.cut(why)
            self._beat.resume()

    def _end_traces(self) -> None:
        """Writes a trace that is under way, and refuses an order that comes too late."""
        self._cut_trace("training stops")
        ordered_batches = self._question()[_TRACE] if self._question is not None else 0
        self._question = None
        if self._link.take_trace() or (ordered_batches and self._distributed.is_chief):
            self._trace.refuse("training is over")

    def _send_progress(self) -> None:
        now, batches = time.perf_counter(), self._position.batches
        done, seconds = batches - self._told_at[0], now - self._told_at[1]
        if self._distributed.is_chief and done > 0:
            self._link.send_progress(
                batches,
                self._schedule.total_batches(self._position),
                self._records * self._replica.count / seconds,
                seconds / done,
            )
        self._records, self._told_at = 0, (batches, now)

    def _check_finite(self, nonfinite_loss: tuple[str, float] | None, batches: int) -> None:
        """Raises GanglineError `training.nonfinite_loss` for a loss that is not finite. Such a model does not recover,
        and its checkpoint would replace a good one."""
        if nonfinite_loss is None or self._context.setting.optimizations.nonfinite_loss == "ignore":
            return
        name, value = nonfinite_loss
        raise invalid(
            "training.nonfinite_loss",
            f"{name} is {value} at batch {batches}; {self._keeper.settle_and_describe()}. Lower the learning rate or "
            "clip the gradients; optimizations.nonfinite_loss: ignore trains on",
        )

    def _validate(self) -> None:
        self._cut_trace("a validation begins")
        # A validation resets shared reducers, so training values have been reported before it.
        self._reports.flush(self._position.batches)
        metrics = self._evaluation.run()
        self._newest_validation, self._newest_metrics = self._position.batches, metrics
        if self._distributed.is_chief:
            self._context.core.train.note_units(
                self._position.count_by(self._context.setting.settled.searcher.unit_name)
            )
            self._context.core.train.report_trainers_validation(self._position.batches, metrics)
            self._context.log_to_tensorboard("validation", self._position.batches, metrics)
        self._warn_of_metric(metrics)
        is_best = self._best.beats(metrics)
        if self._schedule.wants_checkpoint_of(is_best) and self._position.batches > 0:
            self._save()

    def _warn_of_metric(self, metrics: Mapping[str, Any]) -> None:
        """Warns once that the validation lacks the searcher's metric. It is no error, because the first validation may
        be the last one, after days of training."""
        wanted = self._best.metric
        if wanted is None or wanted in metrics or self._has_warned_of_metric or not self._distributed.is_chief:
            return
        self._has_warned_of_metric = True
        _log.warning(
            "searcher.metric is %s, but the validation reports %s; nothing decides which checkpoint is best, so only "
            "the latest are kept",
            wanted,
            ", ".join(sorted(metrics)) or "nothing",
        )

    def _save(self) -> None:
        is_validated = self._newest_validation == self._position.batches
        # A checkpoint saved before its validation is saved again: without metrics it could never be the best one.
        if self._newest_checkpoint == self._position.batches and (self._has_its_validation or not is_validated):
            return
        self._reports.check(self._position.batches)
        self._keeper.save(self._position.batches, self._progress(), self._newest_metrics if is_validated else {})
        self._newest_checkpoint, self._has_its_validation = self._position.batches, is_validated

    def _progress(self) -> dict[str, Any]:
        position = self._position
        return {
            "batches": position.batches,
            "epoch": position.epoch,
            "offset": position.offset,
            "shift": position.shift,
            "batch_size": self._loader.batch_size,
            # Counts replicas; the key is as old as the format.
            "world_size": self._full_size,
            "best_validation": self._best.value,
            "newest_validation": self._newest_validation,
            "fusion": self._fusion.state_dict(),
        }

    def _steps_left(self) -> int:
        batches = self._schedule.total_batches(self._position) - self._position.batches
        return batches // self._aggregation_frequency

    def _end(self) -> None:
        """Sends the last report and saves the last checkpoint. Validates before that, unless the slots are needed."""
        self._end_traces()
        self._send_progress()
        if self._reports.newest != self._position.batches:
            self._reports.begin(self._position.batches, may_wait=False)
        self._reports.flush(self._position.batches)
        if not self.is_preempted and self._newest_validation != self._position.batches:
            self._validate()
        self._save()
        self._keeper.wait()


def _place_here(progress: Mapping[str, Any], loader: DataLoader | ForeignLoader, size: int) -> tuple[int, int]:
    """Returns the offset and the shift behind the records that were trained when the state was saved. Batches may have
    another size now."""
    # A checkpoint of Determined may not tell its number of slots: then it had as many as train now.
    batches = progress["offset"] * (progress["world_size"] or size)
    if (loader.batch_size is None) != (progress["batch_size"] is None):
        return int(batches // size), 0
    # Earlier versions continued at the beginning of a batch and saved no shift.
    return loader.place_after(batches * (progress["batch_size"] or 1) + progress.get("shift", 0), size)
