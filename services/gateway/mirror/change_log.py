"""PURE: which records changed after a revision of etcd. The mirror writes it; tables and event streams read it.

The log has one entry for each record, at its last change, so its size is bounded by the number of records and by
MAX_ENTRIES. A reader keeps a revision, and nothing is kept for readers. Revisions are the same at every gateway, so a
reader may go on at another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import StrEnum

# Entries that are kept. A reader that missed more reads everything anew, which then costs about as much.
MAX_ENTRIES = 20_000


class Topic(StrEnum):
    EXPERIMENT = "experiment"  # with its trials, search, allocations, requests and checkpoints
    TRIAL = "trial"  # with its allocations and its request
    TRIALS = "trials"  # an experiment's own record, from which the rows of all its trials have values
    AGENT = "agent"  # with the allocations on its slots
    MODEL = "model"  # with its versions
    MOVED = "moved"  # experiments that went into other projects, where other users see them
    HOME = "home"  # workspaces and projects, whose names appear in rows of experiments


Entry = tuple[Topic, int | str]


class ChangeLog:
    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        # Invariant: in the order of the revisions.
        self._revision_by_entry: OrderedDict[Entry, int] = OrderedDict()
        # Changes up to this revision may be missing.
        self._floor = 0

    def begin(self, revision: int, revision_before: int = 0) -> None:
        """Forgets all changes: the whole state was read at this revision. revision_before: that of the state until now.
        It is greater after etcd was restored from an older backup: then no reader's revision means anything, until
        etcd has passed it."""
        self._revision_by_entry.clear()
        self._floor = revision if revision >= revision_before else revision_before + 1

    def note(self, entries: Iterable[Entry], revision: int) -> None:
        for entry in entries:
            self._revision_by_entry[entry] = revision
            self._revision_by_entry.move_to_end(entry)
        while len(self._revision_by_entry) > self._max_entries:
            _, self._floor = self._revision_by_entry.popitem(last=False)

    def since(self, revision: int) -> list[tuple[Entry, int]] | None:
        """Returns the records that changed after this revision, each with that of its last change, the newest first;
        None if that is not known any more. The cost is that of the answer."""
        if revision < self._floor:
            return None
        entries: list[tuple[Entry, int]] = []
        for entry, changed_at in reversed(self._revision_by_entry.items()):
            if changed_at <= revision:
                break
            entries.append((entry, changed_at))
        return entries
