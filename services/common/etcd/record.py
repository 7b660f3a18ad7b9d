"""PURE: what goes into etcd and what comes out of it, as typed records.

Owns the records of the one etcd client and the exceptions that its callers handle. It knows neither grpc nor etcd's
own messages; `transaction.py` maps between the two. Everybody who reads or writes state imports these names from
`services.common.etcd`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: str
    value: bytes
    create_revision: int
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """A whole new value; never a change relative to the old one, because a put may be applied twice.

    lease: the id of the lease that the key dies with, 0 for none.
    """

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class Guard:
    """What must hold for a transaction to be applied.

    create_revision: the revision that created the key, 0 when it must be absent. mod_revision: the revision that wrote
    it last, None when any will do.
    """

    key: str
    create_revision: int
    mod_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a transaction.

    revision: the store's revision after it. found: when refused, the guards' keys as they are instead (absent ones
    left out); empty when committed.
    """

    is_committed: bool
    revision: int
    found: tuple[KeyValue, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything under a prefix, all at one revision; a watch goes on from `revision + 1`."""

    items: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Event:
    """value: None when the key was deleted. create_revision: 0 for a deletion."""

    key: str
    value: bytes | None
    mod_revision: int
    create_revision: int


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """All that one transaction changed under the watched prefix."""

    revision: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """One member about itself."""

    version: str
    is_leader: bool
    database_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class EtcdHealth:
    """is_available: a linearizable read was answered. num_members: of the configured endpoints.

    problem: one sentence while it is not available. since: wall-clock time at which this state began, 0 for the start.
    """

    is_available: bool = True
    num_members: int = 0
    num_answering: int = 0
    problem: str = ""
    since: float = 0.0


class Compacted(Exception):
    """A watch cannot go on: etcd has forgotten what happened before `revision`. List again."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"etcd keeps no history before revision {revision}")
        self.revision = revision


class Unsure(Exception):
    """A single try failed in a way that leaves open whether etcd applied it."""
