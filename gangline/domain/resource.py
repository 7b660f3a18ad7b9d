"""PURE: a cluster's resources: agents, their slots and interfaces, services, etcd. types.proto explains more fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline.domain.state import AgentState, Availability, SlotKind


@dataclass(frozen=True, slots=True)
class Slot:
    id: str  # "<agent id>/<index>" for artificial slots, else "<agent id>/<GPU or MIG UUID>"; the same after a restart
    kind: SlotKind = SlotKind.CPU
    uuid: str = ""  # name of the device in CUDA_VISIBLE_DEVICES; empty for CPU slots
    model: str = ""  # name of the device's model
    memory_bytes: int = 0
    is_healthy: bool = True
    problem: str = ""  # why it is not healthy; empty if it is
    availability: Availability = Availability.ENABLED  # whether new work may start on it, as operators set it

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
    speed_mbit: int = 0  # 0 if the kernel does not know it

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
    version: str = ""  # version of Gangline
    hostname: str = ""
    host_id: str = ""
    metrics_address: str = ""
    registered_at: float = 0.0
    lost_at: float = 0.0  # when the scheduler noticed that it was away; 0 while it is alive
    availability: Availability = Availability.ENABLED  # whether new work may start on it, as operators set it
    # slots that it no longer has, but that an operator disabled or drained when it had them
    absent_slots: tuple[Slot, ...] = ()
    problem: str = ""  # why the agent itself cannot start work now; empty if it can
    failed_starts: tuple[FailedStart, ...] = ()
    quarantined_until_at: float = 0.0  # end of its quarantine, in which nothing starts on it; 0 without one
    quarantine_reason: str = ""  # why it is in quarantine
    trusted_at: float = 0.0
    exposure: str = ""  # access of a trial on it to the cluster, and why; empty if ranks have accounts without rights
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
    kind: str  # "scheduler" or "gateway"
    grpc_address: str  # "host:port" of its gRPC server
    http_address: str = ""  # "host:port" of its HTTP server; empty without one
    metrics_address: str = ""  # "host:port" of its metrics
    started_at: float = 0.0
    storage_marker: str = ""  # see gangline.domain.storage.storage_fault


@dataclass(frozen=True, slots=True)
class Cluster:
    schema_version: int  # version of the records in etcd
    id: str
    created_at: float


@dataclass(frozen=True, slots=True)
class EtcdHealth:
    """Describes whether etcd works."""

    is_available: bool = True  # whether a linearizable read was answered
    num_members: int = 0  # number of configured endpoints
    num_answering: int = 0  # number of endpoints that answered
    problem: str = ""  # one sentence while etcd is not available
    since: float = 0.0  # wall-clock time at which this state began; 0 for the start


@dataclass(frozen=True, slots=True)
class Counter:
    next_value: int


def count_deleted(counter: Counter | None, num_existing: int) -> int:
    """Returns how many experiments there were and are no more. counter: of their ids, which begin with 1 and are never
    reused; None before the first one."""
    return counter.next_value - 1 - num_existing if counter is not None else 0
