"""Transitions one by one; what holds over all of their orders is in tests/property."""

from __future__ import annotations

import json
from dataclasses import replace

from gangline.config.strategy_choice import CandidateRow, StrategyChoice, parse_choice
from gangline.domain.allocation import Allocation, ExitReport, LogHit, Request, Timeline, Wait
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.history import MetricsPoint
from gangline.domain.resource import Agent, Slot
from gangline.domain.state import AgentState, ExitKind, LogAction, Outcome, ReasonCode, State
from services.scheduler.leader.planner_snapshot import take_snapshot
from services.scheduler.placement import Assignment, PoolConfig, plan
from services.scheduler.state.estimate import Progress
from services.scheduler.state.records import SchedulerState as Records
from services.scheduler.state.records import StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.transition.availability import lost, registered
from services.scheduler.transition.deadline import expired, next_deadline, overdue
from services.scheduler.transition.end import kill_experiment
from services.scheduler.transition.exit import member_exited
from services.scheduler.transition.fence import live
from services.scheduler.transition.place import accepted, came_up, metrics_found, place
from services.scheduler.transition.report import (
    best_validation_of,
    checkpointed,
    chosen,
    described,
    progressed,
    validated,
    waiting,
)
from services.scheduler.transition.stop import StopOrder, stop
from services.scheduler.transition.submit_check import AdmittedSubmission, submit_experiment

RULES = Rules(accept_seconds=10, rendezvous_seconds=20, start_seconds=30, kill_grace_seconds=5, force_seconds=15)
CONFIG = json.dumps(
    {
        "entrypoint": "python3 t.py",
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 4},
        "preemption_timeout": 100,
    }
)


class World:
    """Records that every transition is applied to at once."""

    def __init__(self) -> None:
        self.records = Records()
        for agent_id in ("a1", "a2"):
            slots = tuple(Slot(f"{agent_id}/{number}") for number in range(2))
            self.apply(registered(self.records, Agent(agent_id, slots=slots), RULES, 1.0))
        submission = AdmittedSubmission("r", "ann", settled_of(CONFIG), CONFIG, "0", 7)
        self.apply(submit_experiment(self.records, submission, RULES, 10.0))

    def apply(self, change: StateChange) -> StateChange:
        self.records.apply(change, self.records.revision + 1)
        return change

    def place(self) -> None:
        slots = {"a2": 2, "a1": 2}
        self.apply(place(self.records, Assignment("1.1", slots), epoch=9, rules=RULES, now=11.0))

    def exit(self, agent_id: str, kind: ExitKind, now: float = 20.0) -> None:
        report = ExitReport(agent_id, kind, "said so", failed_at=now, ended_at=now)
        self.apply(member_exited(self.records, self.allocation.id, report, RULES, now))

    @property
    def allocation(self) -> Allocation:
        [allocation] = self.records.all_of(Allocation)
        return allocation

    @property
    def trial(self) -> Trial:
        return get(self.records, Trial, "1.1")

    @property
    def experiment(self) -> Experiment:
        return get(self.records, Experiment, 1)


def _placed() -> World:
    world = World()
    world.place()
    return world


def test_place_names_the_slots_and_sets_a_deadline() -> None:
    world = _placed()
    allocation = world.allocation
    assert [(member.agent_id, member.node_rank) for member in allocation.members] == [("a1", 0), ("a2", 1)]
    assert allocation.members[0].slot_ids == ("a1/0", "a1/1")
    assert (allocation.epoch, allocation.deadline_at) == (9, 21.0)
    assert allocation.timeline == Timeline(queued_at=10.0, placed_at=11.0)
    assert world.records.find(Request, "1.1") is None
    assert world.trial.state is world.experiment.state is State.STARTING


def test_place_is_turned_down_when_the_world_has_moved() -> None:
    world = World()
    unhealthy = Agent("a1", slots=(Slot("a1/0"), Slot("a1/1", is_healthy=False)))
    lost = replace(get(world.records, Agent, "a1"), state=AgentState.LOST)
    for agent in (unhealthy, lost):
        world.apply(StateChange(puts=(agent,)))
        assert not place(world.records, Assignment("1.1", {"a1": 2, "a2": 2}), epoch=9, rules=RULES, now=11.0)
    assert not place(world.records, Assignment("1.1", {"a2": 2}), epoch=9, rules=RULES, now=11.0)
    assert not place(world.records, Assignment("9.9", {"a2": 2}), epoch=9, rules=RULES, now=11.0)


def test_metrics_of_a_runner_are_those_that_its_agent_names() -> None:
    world = _placed()
    world.apply(metrics_found(world.records, "1.1.1", "a1", "h:1"))
    assert [member.metrics_address for member in world.allocation.members] == ["h:1", ""]
    assert not metrics_found(world.records, "1.1.1", "a1", "h:1")
    assert not metrics_found(world.records, "1.1.1", "a9", "h:9")
    assert not metrics_found(world.records, "9.9.9", "a1", "h:9")


def test_start_moves_the_deadline_and_ends_it() -> None:
    world = _placed()
    world.apply(accepted(world.records, "1.1.1", 11.5, RULES, 12.0))
    assert (world.allocation.timeline.accepted_at, world.allocation.deadline_at) == (11.5, 62.0)
    early = Timeline(runner_up_at=13.0)
    world.apply(came_up(world.records, "1.1.1", early, 13.0))
    assert world.allocation.state is State.STARTING
    up = Timeline(queued_at=99.0, runner_up_at=12.5, rendezvous_at=14.0, ranks_up_at=15.0)
    world.apply(came_up(world.records, "1.1.1", up, 15.0))
    allocation = world.allocation
    assert (allocation.state, allocation.deadline_at) == (State.RUNNING, 0.0)
    assert allocation.timeline == Timeline(10.0, 11.0, 11.5, 13.0, 14.0, 15.0)
    assert world.trial.timeline == allocation.timeline
    assert not accepted(world.records, "1.1.1", 11.5, RULES, 16.0)


def test_the_first_failure_stops_the_rest_and_the_last_exit_frees_the_slots() -> None:
    world = _placed()
    world.exit("a2", ExitKind.USER_ERROR)
    assert (world.allocation.state, world.allocation.stop_kind) == (State.STOPPING, ExitKind.KILLED)
    assert world.allocation.deadline_at == 20.0 + 5 + 15
    world.exit("a1", ExitKind.KILLED, 21.0)
    assert not list(world.records.all_of(Allocation))
    request = get(world.records, Request, "1.1")
    assert (request.submitted_at, request.not_before_at) == (10.0, 0.0)
    assert (world.trial.restarts, world.trial.timeline) == (1, Timeline(queued_at=21.0))
    assert world.trial.last_failure is not None
    assert world.trial.last_failure.agent_id == "a2"


def test_a_member_that_completes_stops_nobody() -> None:
    world = _placed()
    world.exit("a1", ExitKind.COMPLETED)
    assert world.allocation.state is State.STARTING
    world.exit("a2", ExitKind.COMPLETED)
    assert (world.trial.outcome, world.experiment.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)
    assert world.experiment.reason == "its trial completed"


def test_a_preempted_member_preempts_the_rest_with_the_experiments_grace() -> None:
    world = _placed()
    world.exit("a1", ExitKind.PREEMPTED)
    assert (world.allocation.stop_kind, world.allocation.deadline_at) == (ExitKind.PREEMPTED, 20.0 + 100 + 15)


def test_a_kill_overrides_a_preemption_once() -> None:
    world = _placed()
    world.apply(stop(world.records, "1.1.1", StopOrder(ExitKind.PREEMPTED, "room", 200.0), 12.0))
    world.apply(kill_experiment(world.records, 1, "killed by ann", RULES, 13.0))
    assert (world.allocation.stop_kind, world.allocation.stop_reason) == (ExitKind.KILLED, "killed by ann")
    assert world.experiment.state is State.STOPPING
    assert not kill_experiment(world.records, 1, "killed by bob", RULES, 14.0)
    assert not stop(world.records, "1.1.1", StopOrder(ExitKind.PREEMPTED, "room", 300.0), 14.0)
    world.exit("a1", ExitKind.KILLED)
    world.exit("a2", ExitKind.SIGNAL)
    assert (world.experiment.outcome, world.experiment.reason) == (Outcome.CANCELED, "killed by ann")


def test_a_later_failure_does_not_replace_the_first_that_was_found() -> None:
    world = _placed()
    first = ExitReport("a1", ExitKind.START_FAILED, "found first", failed_at=12.0)
    later = ExitReport("a2", ExitKind.RUNNER_LOST, "found later", failed_at=11.0)
    world.apply(stop(world.records, "1.1.1", StopOrder(ExitKind.PREEMPTED, "room", 200.0, first), 12.0))
    world.apply(stop(world.records, "1.1.1", StopOrder(ExitKind.KILLED, "found later", 30.0, later), 13.0))
    assert (world.allocation.stop_kind, world.allocation.failure) == (ExitKind.KILLED, first)
    world.exit("a2", ExitKind.USER_ERROR, 14.0)
    world.exit("a1", ExitKind.KILLED, 15.0)
    assert world.trial.last_failure == first


def test_a_failure_that_is_found_in_a_stopping_attempt_is_kept() -> None:
    world = _placed()
    exit_report = ExitReport("a1", ExitKind.START_FAILED, "found", failed_at=13.0)
    world.apply(stop(world.records, "1.1.1", StopOrder(ExitKind.PREEMPTED, "room", 200.0), 12.0))
    world.apply(stop(world.records, "1.1.1", StopOrder(ExitKind.KILLED, "found", 30.0, exit_report), 13.0))
    assert world.allocation.failure == exit_report


def test_an_unaccepted_start_blames_who_did_not_accept() -> None:
    world = _placed()
    assert overdue(world.records.all_of(Allocation), 20.9) == []
    assert overdue(world.records.all_of(Allocation), 21.0) == ["1.1.1"]
    assert overdue(world.records.all_of(Allocation), 21.0, patient_until=30.0) == []
    world.apply(expired(world.records, "1.1.1", frozenset({"a1"}), frozenset(), rules=RULES, now=21.0))
    failure = world.allocation.failure
    assert failure is not None
    assert (failure.agent_id, failure.kind) == ("a2", ExitKind.START_FAILED)
    assert failure.message == "not accepted by a2 within 10 s"
    assert world.allocation.deadline_at == 21.0 + 5 + 15
    world.exit("a1", ExitKind.KILLED)
    world.exit("a2", ExitKind.KILLED)
    assert (world.trial.state, world.trial.infrastructure_failures) == (State.QUEUED, 1)


def test_members_that_never_report_their_end_are_given_up() -> None:
    world = _placed()
    world.apply(kill_experiment(world.records, 1, "killed by ann", RULES, 12.0))
    due = next_deadline(world.records.all_of(Allocation), (), 12.0)
    assert due == 12.0 + 5 + 15
    world.apply(expired(world.records, "1.1.1", frozenset(), frozenset(), rules=RULES, now=due))
    assert world.experiment.outcome is Outcome.CANCELED


def test_a_lost_agents_member_that_may_still_train_outlasts_the_deadline() -> None:
    world = _placed()
    world.apply(stop(world.records, "1.1.1", StopOrder(ExitKind.PREEMPTED, "room", 200.0), 12.0))
    world.apply(lost(world.records, "a2", 13.0))
    world.apply(expired(world.records, "1.1.1", frozenset(), frozenset(), rules=RULES, now=200.0))
    assert [report.agent_id for report in world.allocation.exits] == ["a1"]
    assert not expired(world.records, "1.1.1", frozenset(), frozenset(), rules=RULES, now=201.0)
    world.exit("a2", ExitKind.AGENT_LOST, 300.0)
    assert world.trial.state is State.QUEUED


def test_a_killed_trial_does_not_wait_for_a_lost_agent() -> None:
    world = _placed()
    world.apply(kill_experiment(world.records, 1, "killed by ann", RULES, 12.0))
    world.apply(lost(world.records, "a2", 13.0))
    world.apply(expired(world.records, "1.1.1", frozenset(), frozenset(), rules=RULES, now=32.0))
    assert world.experiment.outcome is Outcome.CANCELED


def test_next_deadline_looks_at_backoffs_and_a_new_leaders_patience() -> None:
    world = _placed()
    request = Request("2.1", 2, "default", 1, not_before_at=15.0)
    allocations = list(world.records.all_of(Allocation))
    assert next_deadline(allocations, [request], 11.0) == 15.0
    assert next_deadline(allocations, [request], 15.0) == 21.0
    assert next_deadline(allocations, [], 11.0, patient_until=50.0) == 50.0
    assert next_deadline([], [], 11.0) is None


def test_checkpoints_lead_only_forward_and_forgive_the_machines() -> None:
    world = _placed()
    world.apply(StateChange(puts=(replace(world.trial, infrastructure_failures=3),)))
    for checkpoint_id, batches in (("c1", 10), ("c0", 5)):
        world.apply(checkpointed(world.records, Checkpoint(checkpoint_id, "1.1", 1, batches, "/x")))
    trial = world.trial
    assert (trial.latest_checkpoint_id, trial.batches_completed, trial.infrastructure_failures) == ("c1", 10, 0)
    assert world.records.count(Checkpoint) == 2
    assert not progressed(world.records, "1.1", Progress(10, 0, 0.0, 20.0), RULES, 20.0)


def test_length_that_a_script_estimates_is_never_below_what_is_done() -> None:
    world = _placed()

    def lengths(change: StateChange) -> tuple[int, int]:
        world.apply(change)
        return world.trial.batches_completed, world.trial.batches_total

    assert lengths(progressed(world.records, "1.1", Progress(4, 13, 0.0, 20.0), RULES, 20.0)) == (4, 13)
    checkpoint = Checkpoint("c1", "1.1", 1, 14, "/x")
    assert lengths(checkpointed(world.records, checkpoint)) == (14, 14)
    assert lengths(validated(world.records, "1.1", MetricsPoint("validation", 15), rules=RULES, now=21.0)) == (15, 15)
    # An attempt that has not reported its length yet keeps that of the one before it.
    assert lengths(progressed(world.records, "1.1", Progress(16, 0, 0.0, 22.0), RULES, 22.0)) == (16, 16)
    # The last report may change the length alone.
    assert lengths(progressed(world.records, "1.1", Progress(16, 20, 0.0, 23.0), RULES, 23.0)) == (16, 20)


def test_a_damaged_checkpoint_gives_way_to_the_next_older_one() -> None:
    world = World()
    kept = tuple(Checkpoint(f"c{number}", "1.1", 1, 10 * number, "/x") for number in (1, 2, 3))
    world.apply(StateChange(puts=(*kept, replace(world.trial, latest_checkpoint_id="c3", batches_completed=35))))
    for expected in ("c3", "c2", "c1"):
        world.place()
        allocation_id = world.allocation.id
        assert world.trial.latest_checkpoint_id == expected
        for agent in ("a1", "a2"):
            report = ExitReport(
                agent, ExitKind.CHECKPOINT_CORRUPT, f"{expected} differs", failed_at=19.0, ended_at=21.0
            )
            world.apply(member_exited(world.records, allocation_id, report, RULES, 21.0))
        if expected == "c3":
            assert world.trial.reason == "agent a1: c3 differs; it goes on from checkpoint c2 after batch 20"
            assert (world.trial.state, world.trial.restarts, world.trial.batches_completed) == (State.QUEUED, 0, 20)
    assert (world.trial.state, world.trial.outcome) == (State.TERMINAL, Outcome.FAILED)
    assert world.trial.reason == "agent a1: c1 differs; not tried again, because the trial has no older checkpoint"


def test_snapshot_counts_healthy_and_held_slots() -> None:
    world = _placed()
    sick = Agent("a1", slots=(Slot("a1/0"), Slot("a1/1", is_healthy=False)))
    world.apply(registered(world.records, sick, RULES, 30.0))
    progress = {"1.1": Progress(10, 110, 0.5, at=40.0)}
    snapshot = take_snapshot(world.records, (PoolConfig("default"),), {"a2": "not connected"}, progress, now=50.0)
    rooms = {room.id: room for room in snapshot.agents}
    assert (rooms["a1"].slots, rooms["a1"].free, rooms["a1"].is_usable) == (1, 0, True)
    assert (rooms["a1"].draining, rooms["a1"].disabled) == (1, 1)
    assert (rooms["a2"].is_usable, rooms["a2"].problem) == (False, "not connected")
    [running] = snapshot.running
    assert (dict(running.slots_by_agent), running.estimated_end_at) == ({"a1": 2, "a2": 2}, 90.0)


def test_a_pool_that_only_agents_name_places_too() -> None:
    world = World()
    lab = Agent("b1", pool="lab", slots=(Slot("b1/0"),))
    world.apply(StateChange(puts=(lab, Trial("2.1", 1, 2), Request("2.1", 1, "lab", 1))))
    snapshot = take_snapshot(world.records, (PoolConfig("default"),), {}, {}, now=50.0)
    assert [assignment.trial_id for assignment in plan(snapshot, 0.0).assignments] == ["1.1", "2.1"]
    assert ReasonCode.NO_MATCHING_POOL not in {reason.code for reason in plan(snapshot, 0.0).reasons.values()}


def test_an_agent_that_a_log_policy_excludes_is_on_the_blocklist_from_then_on() -> None:
    world = World()
    world.place()
    world.exit("a2", ExitKind.PEER_FAILED)
    hit = LogHit("ecc", LogAction.EXCLUDE_NODE, 1, "an ECC error")
    report = ExitReport("a1", ExitKind.USER_ERROR, "boom", failed_at=19.0, ended_at=21.0, log_hits=(hit,))
    world.apply(member_exited(world.records, "1.1.1", report, RULES, 21.0))
    trial, request = get(world.records, Trial, "1.1"), get(world.records, Request, "1.1")
    assert trial.excluded_agents == {"a1": "log policy 'ecc' matched on rank 1: an ECC error"}
    assert request.blocklist == ("a1",)


def test_metadata_replace_earlier_ones_until_the_trial_has_ended() -> None:
    world = _placed()
    for text in ('{"a": 1}', '{"b": 2}'):
        world.apply(described(world.records, "1.1", text))
    assert world.trial.metadata_json == '{"b": 2}'
    assert not described(world.records, "1.1", '{"b": 2}')
    assert not described(world.records, "9.9", "{}")
    world.apply(kill_experiment(world.records, 1, "killed by ann", RULES, 20.0))
    for agent_id in ("a1", "a2"):
        world.exit(agent_id, ExitKind.KILLED)
    assert world.trial.state is State.TERMINAL
    assert not described(world.records, "1.1", "{}")
    assert world.trial.metadata_json == '{"b": 2}'


def test_the_newest_attempt_s_choice_of_a_strategy_is_kept_and_lack_of_memory_starts_another_attempt() -> None:
    world = _placed()
    rows = tuple(CandidateRow(name, name, bytes={"total": size}) for name, size in (("ddp", 8), ("zero1", 6)))
    record = StrategyChoice("ddp", 2, rows)
    world.apply(chosen(world.records, "1.1", record.to_json()))
    assert world.trial.strategy_choice_json == record.to_json()
    assert not chosen(world.records, "1.1", record.to_json())
    assert not chosen(world.records, "9.9", record.to_json())
    for agent_id in ("a1", "a2"):
        world.exit(agent_id, ExitKind.OUT_OF_MEMORY)
    assert (world.trial.state, world.trial.restarts) == (State.QUEUED, 0)
    assert parse_choice(world.trial.strategy_choice_json) == replace(record, out_of_memory=("ddp",))
    # A report that arrives late changes nothing.
    assert not live("1.1.1", 0, lambda records: chosen(records, "1.1", record.to_json()))(world.records)


def _exit_refused(world: World) -> None:
    for agent_id in ("a1", "a2"):
        report = ExitReport(agent_id, ExitKind.CONFIGURATION_ERROR, "no", error_code="parallelism.train_batch")
        world.apply(member_exited(world.records, world.allocation.id, report, RULES, 30.0))


_ROWS = (
    CandidateRow("pipeline (stages 2)", "pipeline", step_seconds=1.0),
    CandidateRow("ddp", "ddp", step_seconds=2.0),
    CandidateRow("zero1", "zero1", step_seconds=3.0),
)


def test_ranks_that_forget_refusals_do_not_start_the_trial_for_ever() -> None:
    """Ranks of an older version send a record without refusals, and choose the same strategy again."""
    record = StrategyChoice("pipeline (stages 2)", 4, _ROWS)
    world = _placed()
    world.apply(chosen(world.records, "1.1", record.to_json()))
    _exit_refused(world)
    assert (world.trial.state, world.trial.restarts) == (State.QUEUED, 0)
    world.place()
    world.apply(chosen(world.records, "1.1", record.to_json()))
    assert parse_choice(world.trial.strategy_choice_json).refused == {"pipeline": "no"}
    _exit_refused(world)
    assert (world.trial.state, world.trial.outcome) == (State.TERMINAL, Outcome.FAILED)


def test_a_trial_that_every_strategy_refuses_ends_with_the_last_line() -> None:
    world = World()
    for row in _ROWS:
        world.place()
        world.apply(chosen(world.records, "1.1", StrategyChoice(row.name, 4, _ROWS).to_json()))
        _exit_refused(world)
    assert (world.trial.outcome, world.trial.restarts) == (Outcome.FAILED, 0)
    assert world.trial.reason == (
        "agent a1: no; not tried again, because a configuration that cannot work with zero1, which auto has chosen, "
        "would come again"
    )


def test_the_best_validation_is_that_of_all_trials() -> None:
    world = _placed()
    assert best_validation_of(world.records, 1) is None
    for batches, loss in ((1, 0.5), (2, 0.25), (3, 0.75)):
        point = MetricsPoint("validation", batches, {"loss": loss})
        world.apply(validated(world.records, "1.1", point, rules=RULES, now=20.0 + batches))
    assert best_validation_of(world.records, 1) == 0.25
    world.apply(StateChange(puts=(replace(world.trial, id="1.2", number=2, best_validation=0.125),)))
    assert best_validation_of(world.records, 1) == 0.125


def test_what_the_members_wait_for_is_on_record_from_its_beginning_to_its_end() -> None:
    world = World()
    world.place()
    name = world.allocation.id
    world.apply(waiting(world.records, name, 1, "the storage is full", 20.0))
    world.apply(waiting(world.records, name, 0, "the storage is silent", 25.0))
    world.apply(waiting(world.records, name, 1, "the storage is away", 30.0))
    assert world.allocation.waits == (Wait(0, "the storage is silent", 25.0), Wait(1, "the storage is away", 20.0))
    assert not waiting(world.records, name, 1, "the storage is away", 40.0)
    world.apply(waiting(world.records, name, 1, "", 50.0))
    assert [wait.node_rank for wait in world.allocation.waits] == [0]
    assert not waiting(world.records, "1.1.7", 0, "an attempt that is gone", 60.0)
