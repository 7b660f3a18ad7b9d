"""What happened to the attempt on this machine: it may have begun, was ordered to stop, was cut off, or hangs.

Owns these facts and the first failure of another member. Signals, lease, gang and scheduler report them here; the steps
in runner.py ask. A fact that ends ranks reaches the rank group in the same call. It sends nothing to the other members.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from gangline.domain.state import ExitKind, LogLevel
from gangline.protocol.wire import enum_member
from gangline.v1 import runner_pb2
from services.common.state_folder import SharedFolder
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.gang.gang_plan import Place
from services.trial_runner.gang.outcome import FailureRecord, first_cause
from services.trial_runner.ranks.rank_group import RankGroup
from services.trial_runner.ranks.rank_link import RankLinkServer
from services.trial_runner.stop_signal import StopRequest

log = structlog.get_logger(__name__)


class AttemptEvents:
    """The events of one attempt. All methods but `pids` run on the event loop."""

    def __init__(
        self, folder: SharedFolder, place: Place, grace_seconds: float, link: RankLinkServer, recorder: Recorder
    ) -> None:
        """grace_seconds: of a preemption whose order names none."""
        self.stop = StopRequest(folder, grace_seconds, self._on_order)
        # The first cause that another member has reported, or a hang whose rank is on another machine; None before.
        self.peer: FailureRecord | None = None
        self.peer_told = asyncio.Event()  # set with `peer`
        self.hang: FailureRecord | None = None  # a hang whose rank is on this machine
        self.cut: FailureRecord | None = None  # the end of the lease, or of the whole attempt elsewhere
        self.rank_group: RankGroup | None = None  # None until the ranks start
        self._place = place
        self._link = link
        self._recorder = recorder
        self._are_ranks_up = False
        self._hook_pid = 0
        # Set before a container, an interpreter of the user's or a startup hook may start.
        self._may_have_begun = False

    @property
    def has_begun(self) -> bool:
        """Whether any process of the user's may have started."""
        return self._may_have_begun or (self.rank_group is not None and self.rank_group.has_begun)

    def pids(self) -> list[int]:
        """Returns the pids of the ranks that live, or that of the startup hook before them. Called from any thread."""
        return [pid for pid in (self.rank_group.living_pids if self.rank_group else [self._hook_pid]) if pid]

    def on_begin(self) -> None:
        self._may_have_begun = True

    def on_hook(self, pid: int) -> None:
        self._hook_pid = pid

    def on_ranks_start(self, rank_group: RankGroup) -> None:
        """Has failures elsewhere end these ranks from now on."""
        self.rank_group = rank_group

    def on_ranks_up(self) -> None:
        """Passes orders to stop to the ranks from now on, also the one that came during their start."""
        assert self.rank_group is not None
        self._are_ranks_up = True
        if self.stop.stop is not None:
            self._on_order()
        if self.peer is not None:
            self.rank_group.on_peer_failure()

    def on_peer_failure(self, failure: FailureRecord) -> None:
        self.peer = first_cause(self.peer, failure)
        self.peer_told.set()
        if self.rank_group is not None:
            self.rank_group.on_peer_failure()

    def on_own_hang(self, failure: FailureRecord) -> None:
        """Takes the hang of a rank of this machine, whose stacks are recorded."""
        assert self.rank_group is not None
        self.hang = failure
        self.rank_group.on_peer_failure()

    def on_over(self, reason: str) -> None:
        """Kills the ranks: another attempt may hold the trial, so nothing that these ranks do counts any more."""
        log.warning("this attempt is over", reason=reason)
        self._end_as_cut(f"this attempt is over: {reason}")

    def on_cut(self, message: str) -> None:
        """Kills every rank of this machine, because the next attempt may start on another one."""
        self._recorder.note(message, LogLevel.ERROR)
        self._end_as_cut(message)

    def on_stop_order(self, order: runner_pb2.AttemptStop) -> None:
        """Takes the stop order that arrives with every renewal. The agent has passed the order on as well, unless it is
        away."""
        kind = enum_member(ExitKind, order.kind) or ExitKind.KILLED
        if self.stop.stop is None or self.stop.stop.kind is not kind:
            self.stop.ask(kind, order.reason, order.grace_seconds)

    def _end_as_cut(self, message: str) -> None:
        self.cut = FailureRecord(ExitKind.NETWORK, message, agent_id=self._place.agent_id, failed_at=time.time())
        self.stop.ask(ExitKind.KILLED, message)

    def _on_order(self) -> None:
        """Asks preempted ranks to stop after a checkpoint. The rank group kills those that are still alive at the
        deadline."""
        if not self._are_ranks_up:
            return
        stop = self.stop.stop
        assert stop is not None
        assert self.rank_group is not None
        if stop.kind is ExitKind.PREEMPTED:
            self._link.preempt(stop.reason, self.stop.grace_seconds)
        self.rank_group.stop(self.stop.deadline_at, self._link.connected)
