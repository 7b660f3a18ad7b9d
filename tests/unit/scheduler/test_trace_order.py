"""Orders to trace: who may be traced, and that the chief's runner gets each order once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.allocation import Allocation, Member
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import Outcome
from gangline.domain.state import State as Stage
from gangline.domain.trace import TraceOrder
from gangline.errors import ErrorKind, GanglineError
from gangline.v1 import runner_pb2
from services.scheduler.leader.trace_order import TraceOrders
from services.scheduler.state.records import SchedulerState, StateChange

MEMBERS = (Member("a1", 0, ("a1/0",)), Member("a2", 1, ("a2/0",)))
ALLOCATION = Allocation("7.1.2", "7.1", 7, 2, 1, "default", MEMBERS, Stage.RUNNING)
PAUSED = Experiment(7, "digits", "ann", "{}", "0" * 64, state=Stage.PAUSED)
TRIAL = Trial("7.1", 7, 1, state=Stage.RUNNING, attempts=2)
RUNNING = SchedulerState.of([TRIAL, ALLOCATION])


def progress(sequence: int, *, takes_traces: bool = True) -> runner_pb2.TrialReport:
    progress_report = runner_pb2.ProgressReport(batches_completed=sequence, takes_traces=takes_traces)
    return runner_pb2.TrialReport(sequence=sequence, progress=progress_report)


def checkpoint(sequence: int) -> runner_pb2.TrialReport:
    report = runner_pb2.TrialReport(sequence=sequence)
    report.checkpoint.id = "c1"
    return report


class _Desk:
    """The actions of one trial's runner and its user."""

    def __init__(self, *, has_reported: bool = True) -> None:
        self.orders = TraceOrders("file:///storage/")
        if has_reported:
            assert self.report(progress(1)) is None

    def place(self, batches: int = 10, request_id: str = "r1", records: SchedulerState = RUNNING) -> TraceOrder:
        return self.orders.place(records, "7.1", batches, request_id)

    def report(self, report: runner_pb2.TrialReport, node_rank: int = 0) -> int | None:
        order = self.orders.on_report(RUNNING, "7.1.2", node_rank, report)
        return order.batches if order is not None else None


def test_an_order_goes_with_the_answer_to_the_next_report_and_once() -> None:
    desk = _Desk()
    assert desk.place() == TraceOrder("7.1", "7.1.2", 10, "file:///storage/tensorboard/7.1")
    assert [desk.report(report) for report in (checkpoint(2), progress(3), progress(4))] == [10, None, None]


def test_a_report_whose_answer_was_lost_gets_it_again() -> None:
    desk = _Desk()
    desk.place()
    assert [desk.report(progress(number)) for number in (2, 2, 3, 3)] == [10, 10, None, None]


def test_only_the_chiefs_runner_gets_it() -> None:
    desk = _Desk()
    desk.place()
    assert desk.report(progress(2), node_rank=1) is None
    assert desk.report(progress(2)) == 10


def test_a_second_order_takes_the_place_of_the_first() -> None:
    desk = _Desk()
    desk.place(10, "r1")
    desk.place(5, "r2")
    assert [desk.report(progress(number)) for number in (2, 3)] == [5, None]
    desk.place(6, "r3")
    assert [desk.report(progress(number)) for number in (4, 5)] == [6, None]


def test_the_same_request_orders_nothing_twice() -> None:
    desk = _Desk()
    first = desk.place()
    assert desk.report(progress(2)) == 10
    assert desk.place() == first
    assert desk.report(progress(3)) is None


def test_an_order_is_forgotten_with_its_allocation() -> None:
    desk = _Desk()
    desk.place()
    desk.orders.on_committed(StateChange(deletes=((Allocation, "7.1.2"),)))
    assert desk.report(progress(2)) is None


def test_a_report_of_an_attempt_that_has_ended_leaves_nothing_behind() -> None:
    orders = TraceOrders("/storage")
    assert orders.on_report(SchedulerState.of([TRIAL]), "7.1.2", 0, progress(1)) is None
    with pytest.raises(GanglineError, match="has told of no batch yet"):
        orders.place(RUNNING, "7.1", 1, "r1")


@pytest.mark.parametrize(
    ("records", "code", "message"),
    [
        ([], "trial.not_found", "there is no trial 7.1"),
        (
            [replace(TRIAL, state=Stage.QUEUED)],
            "trial.not_running",
            "trial 7.1 waits for slots; order again once it runs",
        ),
        (
            [replace(PAUSED, reason="paused by ann"), replace(TRIAL, state=Stage.QUEUED)],
            "trial.not_running",
            "trial 7.1 belongs to experiment 7, which is paused by ann; activate it (gangline experiment activate 7) "
            "and order again once it runs: gangline trial describe 7.1",
        ),
        (
            [PAUSED, replace(TRIAL, state=Stage.QUEUED)],
            "trial.not_running",
            "trial 7.1 belongs to experiment 7, which is paused; activate it (gangline experiment activate 7)",
        ),
        (
            [replace(PAUSED, state=Stage.RUNNING), replace(TRIAL, state=Stage.QUEUED)],
            "trial.not_running",
            "trial 7.1 waits for slots; order again once it runs",
        ),
        (
            [
                PAUSED,
                replace(TRIAL, state=Stage.STOPPING),
                replace(ALLOCATION, state=Stage.STOPPING, stop_reason="paused by ann"),
            ],
            "trial.not_running",
            "trial 7.1 is stopping (paused by ann); order again",
        ),
        (
            [replace(TRIAL, state=Stage.STARTING), replace(ALLOCATION, state=Stage.STARTING)],
            "trial.not_running",
            "trial 7.1 is starting; order again once it runs: gangline trial describe 7.1",
        ),
        (
            [
                replace(TRIAL, state=Stage.STOPPING),
                replace(ALLOCATION, state=Stage.STOPPING, stop_reason="paused by ann"),
            ],
            "trial.not_running",
            "trial 7.1 is stopping (paused by ann); order again",
        ),
        (
            [replace(TRIAL, state=Stage.TERMINAL, outcome=Outcome.COMPLETED)],
            "trial.not_running",
            "trial 7.1 has ended (COMPLETED), and only a running trial can be traced",
        ),
    ],
)
def test_what_does_not_run_cannot_be_traced(
    records: list[Trial | Allocation | Experiment], code: str, message: str
) -> None:
    with pytest.raises(GanglineError) as caught:
        _Desk().place(records=SchedulerState.of(records))
    assert caught.value.code == code
    assert caught.value.kind in {ErrorKind.CONFLICT, ErrorKind.NOT_FOUND}
    assert caught.value.message.startswith(message)


def test_a_script_without_a_trainer_is_refused_and_so_is_a_trial_that_has_not_told_of_a_batch() -> None:
    desk = _Desk(has_reported=False)
    with pytest.raises(GanglineError) as caught:
        desk.place()
    assert caught.value.code == "trace.no_batch"
    desk.report(progress(1, takes_traces=False))
    with pytest.raises(GanglineError) as caught:
        desk.place()
    assert caught.value.code == "trace.no_trainer"
    desk.report(progress(2))
    desk.place()
