"""Keeps orders to trace running trials, from the user's call until the chief's runner has them.

Orders are kept in memory only: an undelivered order is lost when this leader's term ends, and the user orders again. An
order is sent with the answer to a report of the chief's runner; the next report shows that it arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline.domain.allocation import Allocation
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import State
from gangline.domain.trace import TraceOrder, tensorboard_url_of
from gangline.errors import GanglineError, conflict
from gangline.v1 import runner_pb2
from services.scheduler.state.records import Records, StateChange, get, live_allocation_of

_CHIEF = 0
_NO_BATCH = (
    "has told of no batch yet, or only to an earlier leader; order again in a few seconds (a script that trains "
    "without the trainer of gangline.pytorch has to use torch.profiler itself)"
)
_NO_TRAINER = (
    "has no trainer that could trace it: its script trains without the one of gangline.pytorch, or that is done, or "
    "its trial runner is of an older version; use torch.profiler in the script"
)


@dataclass(slots=True)
class _TraceState:
    """Holds the orders of one allocation."""

    takes_traces: bool
    request_id: str = ""
    newest: TraceOrder | None = None
    waiting: TraceOrder | None = None
    sent_with: int = 0  # number of the report whose answer carried the waiting order; 0 before


class TraceOrders:
    """storage_url: where trials' files are stored."""

    def __init__(self, storage_url: str) -> None:
        self._storage_url = storage_url
        self._trace_state_by_allocation: dict[str, _TraceState] = {}

    def place(self, records: Records, trial_id: str, batches: int, request_id: str) -> TraceOrder:
        """Creates an order, which replaces one that still waits. The same request id returns the order that it made.

        Raises GanglineError `trial.not_found`, `trial.not_running`, `trace.no_batch`, `trace.no_trainer`.
        """
        trial = get(records, Trial, trial_id)
        allocation = live_allocation_of(records, trial)
        if trial.state is not State.RUNNING or allocation is None or allocation.state is not State.RUNNING:
            raise _not_running(trial, allocation, records.find(Experiment, trial.experiment_id))
        trace_state = self._trace_state_by_allocation.get(allocation.id)
        if trace_state is None:
            raise conflict("trace.no_batch", f"trial {trial_id} {_NO_BATCH}")
        if not trace_state.takes_traces:
            raise conflict("trace.no_trainer", f"trial {trial_id} {_NO_TRAINER}")
        if trace_state.newest is not None and trace_state.request_id == request_id:
            return trace_state.newest
        order = TraceOrder(trial_id, allocation.id, batches, tensorboard_url_of(self._storage_url, trial_id))
        trace_state.request_id, trace_state.sent_with = request_id, 0
        trace_state.newest = trace_state.waiting = order
        return order

    def on_report(
        self, records: Records, allocation_id: str, node_rank: int, report: runner_pb2.TrialReport
    ) -> TraceOrder | None:
        """Returns the order that the answer to this report carries. A report that is repeated, because its answer was
        lost, gets the same order.
        """
        if node_rank != _CHIEF or records.find(Allocation, allocation_id) is None:
            return None
        if report.HasField("progress"):
            trace_state = self._trace_state_by_allocation.setdefault(allocation_id, _TraceState(takes_traces=False))
            trace_state.takes_traces = report.progress.takes_traces
        else:
            trace_state = self._trace_state_by_allocation.get(allocation_id, _TraceState(takes_traces=False))
        if trace_state.sent_with and report.sequence > trace_state.sent_with:
            trace_state.waiting, trace_state.sent_with = None, 0
        if trace_state.waiting is not None:
            trace_state.sent_with = report.sequence
        return trace_state.waiting

    def on_committed(self, change: StateChange) -> None:
        """Drops the state of ended allocations."""
        for record_type, allocation_id in change.deletes:
            if record_type is Allocation:
                self._trace_state_by_allocation.pop(str(allocation_id), None)


def _not_running(trial: Trial, allocation: Allocation | None, experiment: Experiment | None) -> GanglineError:
    state, again = trial.state, f"order again once it runs: gangline trial describe {trial.id}"
    if state is State.TERMINAL:
        ended = f"has ended ({trial.outcome})" if trial.outcome else "has ended"
        return conflict("trial.not_running", f"trial {trial.id} {ended}, and only a running trial can be traced")
    if allocation is not None and State.STOPPING in {state, allocation.state}:
        why = f" ({allocation.stop_reason})" if allocation.stop_reason else ""
        return conflict("trial.not_running", f"trial {trial.id} is stopping{why}; {again}")
    if experiment is not None and experiment.state is State.PAUSED:
        paused = f"belongs to experiment {experiment.id}, which is {experiment.reason or 'paused'}"
        how = f"activate it (gangline experiment activate {experiment.id}) and {again}"
        return conflict("trial.not_running", f"trial {trial.id} {paused}; {how}")
    waits = "waits for slots" if allocation is None else "is starting"
    return conflict("trial.not_running", f"trial {trial.id} {waits}; {again}")
