"""PURE: a cluster's resources: agents, their slots and interfaces, services, etcd. types.proto explains the fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline.domain.state import AgentState, Availability, SlotKind


@dataclass(frozen=True, slots=True)
class Slot:
    id: str
    kind: SlotKind = SlotKind.CPU
    uuid: str = ""
    model: str = ""
    memory_bytes: int = 0
    is_healthy: bool = True
    problem: str = ""
    availability: Availability = Availability.ENABLED

    @property
    def is_open(self) -> bool:
        """Returns whether work may start on the slot, if its agent allows it."""
        return self.is_healthy and self.availability is Availability.ENABLED


# Names of interfaces that programs for containers and virtual machines make.
_VIRTUAL = ("docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "lxc", "podman")


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    name: str
    address: str
    prefix_length: int
    speed_mbit: int = 0

    @property
    def is_virtual(self) -> bool:
        """Whether containers or virtual machines of this machine use it, and no other machine."""
        return self.name.startswith(_VIRTUAL)


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A start that failed on an agent for reasons outside of its trial."""

    trial_id: str
    at: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UndeliveredRecords:
    """Logs and metrics of one ended attempt that wait on an agent's disk until a gateway takes them."""

    trial_id: str
    allocation_id: str
    num_bytes: int = 0
    since_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Agent:
    id: str
    pool: str = "default"
    state: AgentState = AgentState.ALIVE
    slots: tuple[Slot, ...] = ()
    interfaces: tuple[NetworkInterface, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    hostname: str = ""
    host_id: str = ""
    metrics_address: str = ""
    registered_at: float = 0.0
    lost_at: float = 0.0
    availability: Availability = Availability.ENABLED
    absent_slots: tuple[Slot, ...] = ()
    problem: str = ""
    failed_starts: tuple[FailedStart, ...] = ()
    quarantined_until_at: float = 0.0
    quarantine_reason: str = ""
    trusted_at: float = 0.0
    exposure: str = ""
    undelivered: tuple[UndeliveredRecords, ...] = ()
    down_interfaces: tuple[NetworkInterface, ...] = ()
    drains: bool = False

    @property
    def known_slots(self) -> tuple[Slot, ...]:
        """Returns the present slots, and absent ones that an operator had disabled or drained."""
        return (*self.slots, *self.absent_slots)


@dataclass(frozen=True, slots=True)
class ServiceInstance:
    """A scheduler or a gateway that registers itself under its own lease."""

    id: str
    kind: str
    grpc_address: str
    http_address: str = ""
    metrics_address: str = ""
    started_at: float = 0.0
    storage_marker: str = ""  # see gangline.domain.storage.storage_fault


@dataclass(frozen=True, slots=True)
class Cluster:
    schema_version: int
    id: str
    created_at: float


@dataclass(frozen=True, slots=True)
class EtcdHealth:
    """Describes whether etcd works."""

    is_available: bool = True  # whether a linearizable read was answered
    num_members: int = 0  # number of configured endpoints
    num_answering: int = 0
    problem: str = ""  # one sentence while etcd is not available
    since: float = 0.0  # wall-clock time at which this state began; 0 for the start


@dataclass(frozen=True, slots=True)
class Counter:
    next_value: int


def count_deleted(counter: Counter | None, num_existing: int) -> int:
    """Returns how many experiments there were and are no more. counter: of their ids, which begin with 1 and are never
    reused; None before the first one."""
    return counter.next_value - 1 - num_existing if counter is not None else 0


@dataclass(frozen=True, slots=True)
class User:
    name: str
    token_sha256: str
    is_admin: bool = False
    created_at: float = 0.0
    login_sha256: str = ""
