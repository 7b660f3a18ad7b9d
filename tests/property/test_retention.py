"""Which checkpoints stay, whatever comes in whatever order: what a trial goes on from always, of the rest exactly the
best and the latest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from gangline.domain.allocation import Allocation, Member
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.state import CheckpointState, Outcome, State
from services.scheduler.state.records import Records, StateChange
from services.scheduler.state.records import SchedulerState as Known
from services.scheduler.state.retention import Retention, find_superfluous
from services.scheduler.transition.checkpoint import MAX_MARKED, confirm_checkpoints_deleted, retire
from services.scheduler.transition.report import checkpointed
from tests.support.examples import examples
from tests.support.scheduler import config_json

NUM_TRIALS = 3

counts = st.integers(0, 3)
retentions = st.builds(Retention, counts, counts, counts, st.just("loss"), st.booleans())
losses = st.none() | st.integers(0, 5).map(float)


def _checkpoint(
    number: int, trial: int, batches: int, loss: float | None, created_at: float | None = None
) -> Checkpoint:
    metadata = {} if loss is None else {"validation_metrics": {"loss": loss}}
    text = json.dumps(metadata)
    # Attempts run on machines whose clocks differ, so that times say nothing of the order.
    at = float(number * 29 % 41) if created_at is None else created_at
    return Checkpoint(f"c{number:03d}", f"1.{trial}", 1, batches, "/s", {}, text, created_at=at)


@st.composite
def saved(draw: st.DrawFn) -> list[Checkpoint]:
    """In the order in which they were made: each trial's batches grow. The times follow no order, because the clocks of
    two hosts may differ and an attempt may have gone back to an older checkpoint."""
    rows = draw(st.lists(st.tuples(st.integers(1, NUM_TRIALS), losses, st.integers(0, 50)), max_size=40))
    return [_checkpoint(number, trial, number, loss, float(at)) for number, (trial, loss, at) in enumerate(rows, 1)]


def _loss(checkpoint: Checkpoint) -> float | None:
    loss = json.loads(checkpoint.metadata_json).get("validation_metrics", {}).get("loss")
    return None if loss is None else float(loss)


def _wanted(checkpoints: list[Checkpoint], retention: Retention) -> set[str]:
    """The policy once more, in plain words."""

    def best(some: Iterable[Checkpoint], count: int) -> set[str]:
        measured = [
            (loss, checkpoint.batches_completed, checkpoint.id)
            for checkpoint in some
            if (loss := _loss(checkpoint)) is not None
        ]
        worst_last = sorted(measured, key=lambda row: (row[0] if retention.smaller_is_better else -row[0], *row[1:]))
        return {row[2] for row in worst_last[:count]}

    kept = best(checkpoints, retention.experiment_best)
    for trial in {checkpoint.trial_id for checkpoint in checkpoints}:
        own = [checkpoint for checkpoint in checkpoints if checkpoint.trial_id == trial]
        kept |= best(own, retention.trial_best)
        kept |= {
            checkpoint.id
            for checkpoint in sorted(own, key=lambda checkpoint: -checkpoint.batches_completed)[
                : retention.trial_latest
            ]
        }
    return kept


def _config(retention: Retention) -> str:
    return config_json(
        searcher={
            "name": "random",
            "metric": retention.metric,
            "smaller_is_better": retention.smaller_is_better,
            "max_trials": NUM_TRIALS,
        },
        checkpoint_storage={
            "save_experiment_best": retention.experiment_best,
            "save_trial_best": retention.trial_best,
            "save_trial_latest": retention.trial_latest,
        },
    )


class World:
    """The leader's records of one experiment; changes are applied as they come."""

    def __init__(self, retention: Retention) -> None:
        trials = [Trial(f"1.{number}", 1, number, state=State.QUEUED) for number in range(1, NUM_TRIALS + 1)]
        self.records = Known.of([Experiment(1, "e", "ann", _config(retention), "0"), *trials])

    def commit(self, change: StateChange) -> StateChange:
        self.records.apply(change, self.records.revision + 1)
        return change

    def settle(self) -> None:
        for trial in self.records.trials_of(1):
            while self.commit(retire(self.records, trial.id)):
                pass

    def end_all(self) -> None:
        ended = [
            replace(trial, state=State.TERMINAL, outcome=Outcome.COMPLETED, ended_at=1.0)
            for trial in self.records.trials_of(1)
        ]
        self.commit(StateChange(puts=tuple(ended)))
        self.settle()

    def kept(self) -> set[str]:
        return {
            checkpoint.id
            for checkpoint in self.records.all_of(Checkpoint)
            if checkpoint.state is CheckpointState.COMPLETED
        }

    def marked(self) -> set[str]:
        return {
            checkpoint.id
            for checkpoint in self.records.all_of(Checkpoint)
            if checkpoint.state is CheckpointState.DELETING
        }


def check_needed(records: Records) -> None:
    """I6: what is named to go on from stands there without a mark."""
    for trial in records.trials_of(1):
        if trial.state is not State.TERMINAL and trial.latest_checkpoint_id:
            checkpoint = records.find(Checkpoint, trial.latest_checkpoint_id)
            assert checkpoint is not None
            assert checkpoint.state is CheckpointState.COMPLETED
    for allocation in records.all_of(Allocation):
        if allocation.checkpoint_id:
            checkpoint = records.find(Checkpoint, allocation.checkpoint_id)
            assert checkpoint is not None
            assert checkpoint.state is CheckpointState.COMPLETED


@given(saved(), retentions)
def test_exactly_the_best_and_the_latest_stay(checkpoints: list[Checkpoint], retention: Retention) -> None:
    gone = {checkpoint.id for checkpoint in find_superfluous(checkpoints, retention)}
    assert {checkpoint.id for checkpoint in checkpoints} - gone == _wanted(checkpoints, retention)


@given(saved(), retentions, st.data())
def test_what_was_superfluous_once_stays_so(
    checkpoints: list[Checkpoint], retention: Retention, data: st.DataObject
) -> None:
    """So it may go while the experiment runs: more checkpoints never bring it back, nor does deleting it."""
    early = checkpoints[: data.draw(st.integers(0, len(checkpoints)), "checkpoints at first")]
    gone = {checkpoint.id for checkpoint in find_superfluous(early, retention)}
    assert gone <= {checkpoint.id for checkpoint in find_superfluous(checkpoints, retention)}
    left = [checkpoint for checkpoint in checkpoints if checkpoint.id not in gone]
    assert {checkpoint.id for checkpoint in left} - {
        checkpoint.id for checkpoint in find_superfluous(left, retention)
    } == _wanted(checkpoints, retention)


@settings(deadline=None)
@given(saved(), retentions, st.data())
def test_any_order_of_reports_ends_the_same_and_never_marks_what_is_needed(
    checkpoints: list[Checkpoint], retention: Retention, data: st.DataObject
) -> None:
    """Reports come in any order, some of them again, even when the files are gone; gateways delete in between;
    attempts start and end."""
    again = data.draw(st.lists(st.sampled_from(checkpoints), max_size=10), "told again") if checkpoints else []
    order = data.draw(st.permutations([*checkpoints, *again]), "order")
    world = World(retention)
    deleted: set[str] = set()
    for checkpoint in order:
        world.commit(checkpointed(world.records, checkpoint))
        check_needed(world.records)
        assert deleted.isdisjoint(world.kept()), "nothing is named whose files are gone"
        event = data.draw(st.sampled_from(["nothing", "gateway", "attempt", "attempt ends"]), "event")
        if event == "gateway":
            deleted |= world.marked()
            world.commit(confirm_checkpoints_deleted(world.records, world.marked()))
        elif event.startswith("attempt"):
            _next_attempt(world, checkpoint.trial_id, is_live=event == "attempt")
        check_needed(world.records)
    for allocation in list(world.records.all_of(Allocation)):
        world.commit(StateChange(deletes=((Allocation, allocation.id),)))
    world.end_all()
    assert world.kept() == _wanted(checkpoints, retention)
    for trial in world.records.trials_of(1):
        assert not retire(world.records, trial.id), "a second look finds nothing more"


def _next_attempt(world: World, trial_id: str, *, is_live: bool) -> None:
    """The trial's attempt ends; where is_live, another one starts from its latest checkpoint."""
    trial = world.records.find(Trial, trial_id)
    assert trial is not None
    world.commit(StateChange(deletes=((Allocation, f"{trial_id}.{trial.attempts}"),)))
    if is_live:
        number = trial.attempts + 1
        live = Allocation(
            f"{trial_id}.{number}", trial_id, 1, number, 1, "default", (Member("a", 0),),
            checkpoint_id=trial.latest_checkpoint_id,
        )  # fmt: skip
        world.commit(StateChange(puts=(replace(trial, attempts=number, state=State.STARTING), live)))
    else:
        world.commit(StateChange(puts=(replace(trial, state=State.QUEUED),)))


@settings(deadline=None, max_examples=examples(20))
@given(st.integers(0, 150))
def test_a_transaction_marks_only_so_many(num_checkpoints: int) -> None:
    """As after an upgrade from a version that kept everything."""
    world = World(Retention(0, 1, 1, "loss", smaller_is_better=True))
    rows = [_checkpoint(number, 1, number, float(number)) for number in range(1, num_checkpoints + 1)]
    world.commit(StateChange(puts=tuple(rows)))
    sizes = []
    while change := world.commit(retire(world.records, "1.1")):
        sizes.append(change.num_operations)
    assert all(size <= MAX_MARKED for size in sizes)
    assert sum(sizes) == max(0, num_checkpoints - 2)
