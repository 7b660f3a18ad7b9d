"""PURE: what goes into etcd and what comes out of it, as typed records.

Owns the records of the one etcd client and the exceptions that its callers handle. It knows neither grpc nor etcd's own
messages; `transaction.py` maps between the two. Every module that reads or writes state imports these names from
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
    """Writes a whole new value, never a change relative to the old one, because a put may be applied twice."""

    key: str
    value: bytes
    lease: int = 0  # id of the lease with which the key is deleted; 0 for none


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class Guard:
    """States what must hold for a transaction to be applied."""

    key: str
    create_revision: int  # revision that created the key; 0 if the key must be absent
    mod_revision: int | None = None  # revision that wrote the key last; None if any will do


@dataclass(frozen=True, slots=True)
class Committed:
    """Answers a transaction."""

    is_committed: bool
    revision: int  # the store's revision after the transaction
    # if refused, the current values of the guards' keys, without absent ones; empty if committed
    found: tuple[KeyValue, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """Holds everything under a prefix, all at one revision; a watch continues from `revision + 1`."""

    items: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Event:
    """Reports a change of one key."""

    key: str
    value: bytes | None  # None if the key was deleted
    mod_revision: int
    create_revision: int  # 0 for a deletion


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Holds all that one transaction changed under the watched prefix."""

    revision: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """Describes one member, as it reports itself."""

    version: str
    is_leader: bool


class Compacted(Exception):
    """Reports that a watch cannot continue: etcd has dropped the history before `revision`. The caller lists again."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"etcd keeps no history before revision {revision}")
        self.revision = revision


class Unsure(Exception):
    """Reports that a single try failed in a way that leaves open whether etcd applied it."""
