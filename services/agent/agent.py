"""One agent as the scheduler sees it: its hello, and its reaction to each command.

`allocations/command_check.py` decides which commands are refused. The roster handles allocations, and
`connection/leader_stream.py` handles connections. program.py builds and runs it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

import gangline
from gangline.domain.allocation import Allocation
from gangline.domain.resource import Agent, NetworkInterface, UndeliveredRecords
from gangline.domain.state import ExitKind
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import agent_pb2, runner_pb2
from services.agent.allocations.command_check import refuse_epoch, refuse_start
from services.agent.allocations.journal import Journal
from services.agent.allocations.journal_record import JournalStop
from services.agent.allocations.roster import Roster
from services.agent.devices.slot import Slots
from services.agent.machine import host, metrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The properties in an agent's hello that do not change while it runs."""

    id: str
    pool: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    metrics_address: str = ""
    exposure: str = ""


class LocalAgent:
    """Implements leader_stream.Peer. program.py replaces slots and problem when their health changes, and
    machine_report.py replaces interfaces.

    problem: why no allocation can start here now; empty if there is no problem.
    undelivered: records of ended attempts that no gateway has taken.
    """

    def __init__(self, identity: AgentIdentity, slots: Slots, journal: Journal, roster: Roster) -> None:
        self.identity = identity
        self.slots = slots
        self.interfaces: tuple[NetworkInterface, ...] = host.list_interfaces()
        self.down_interfaces: tuple[NetworkInterface, ...] = host.list_down_interfaces()
        self.roster = roster
        self.problem = ""
        self.undelivered: tuple[UndeliveredRecords, ...] = ()
        self._journal = journal

    def hello(self) -> agent_pb2.AgentHello:
        record = Agent(
            id=self.identity.id,
            pool=self.identity.pool,
            slots=self.slots.slots,
            interfaces=self.interfaces,
            down_interfaces=self.down_interfaces,
            labels=self.identity.labels,
            version=gangline.__version__,
            hostname=host.read_hostname(),
            host_id=host.read_host_id(),
            metrics_address=self.identity.metrics_address,
            problem=self.problem,
            exposure=self.identity.exposure,
            undelivered=self.undelivered,
            drains=True,
        )
        return agent_pb2.AgentHello(
            agent=wire.to_proto(record),
            highest_epoch=self._journal.highest_epoch,
            allocations=self.roster.statuses(),
            asks_before_commands=True,
        )

    def slots_message(self) -> agent_pb2.AgentSlots:
        """Returns all slots, the agent's own problem and what is undelivered, for a leader that has received the
        hello."""
        return agent_pb2.AgentSlots(
            slots=[wire.to_proto(slot) for slot in self.slots.slots],
            problem=self.problem,
            undelivered=[wire.to_proto(records) for records in self.undelivered],
        )

    def refuse_leader(self, epoch: int) -> str:
        refusal = refuse_epoch(epoch, self._journal.highest_epoch)
        if not refusal:
            self._journal.raise_epoch(epoch)
        return refusal

    def unforgotten(self) -> Sequence[agent_pb2.AllocationStatus]:
        return self.roster.statuses(ended_only=True)

    async def on_command(self, command: agent_pb2.ConnectResponse) -> None:
        kind = command.WhichOneof("message")
        if kind == "start" and self._may_obey("start", command.start.epoch, command.start.spec.allocation.id):
            self._on_start(command.start.spec)
        elif kind == "stop" and self._may_obey("stop", command.stop.epoch, command.stop.allocation_id):
            self._count("stop", "obeyed")
            self._on_stop(command.stop)
        elif kind == "forget":
            self._count("forget", "obeyed")
            self.roster.forget(command.forget.allocation_id)
        elif kind == "gateways":
            self._journal.note_gateways(command.gateways.addresses)

    def _may_obey(self, command: str, epoch: int, allocation_id: str) -> bool:
        refusal = self.refuse_leader(epoch)
        if refusal:
            self._count(command, "refused")
            log.warning("a command is refused", command=command, allocation_id=allocation_id, why=refusal)
        return not refusal

    def _on_start(self, spec: runner_pb2.RunnerSpec) -> None:
        # A command is idempotent by its allocation's id: the leader sends it again after a lost stream.
        lifecycle = self.roster.find(spec.allocation.id)
        if lifecycle is not None:
            self._count("start", "obeyed")
            lifecycle.tell_now()
            return
        try:
            allocation = wire.from_proto(Allocation, spec.allocation)
            slot_ids = [slot.id for slot in self.slots.slots]
            refusal = refuse_start(allocation, spec.node_rank, self.identity.id, slot_ids)
            has_begun = self.roster.accept(
                spec, () if refusal else allocation.members[spec.node_rank].slot_ids, refusal
            )
            self._count("start", "obeyed" if has_begun else "refused")
        except (GanglineError, ValueError) as error:
            self._count("start", "refused")
            log.error("a start command makes no sense; ignored", allocation_id=spec.allocation.id, error=str(error))

    def _on_stop(self, command: agent_pb2.StopAllocation) -> None:
        kind = wire.enum_member(ExitKind, command.kind) or ExitKind.KILLED
        order = JournalStop(kind, command.reason, time.time() + command.grace_seconds)
        self.roster.stop(command.allocation_id, command.epoch, order)

    def _count(self, command: str, result: str) -> None:
        metrics.commands.labels(command=command, result=result).inc()
