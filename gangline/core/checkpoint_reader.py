"""Reads a checkpoint, and tells why it cannot be read.

Owns the difference between a checkpoint that is damaged or gone and a storage that is away as a whole: the first ends
the trial, the second is waited for (storage_access/storage_wait.py). Called by gangline.core.checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gangline.core.storage_access.storage import CheckpointStore
from gangline.domain.failure import LATEST_CORRUPT
from gangline.domain.storage.storage_fault import JUDGED, waits
from gangline.errors import ErrorKind, GanglineError

# Codes of errors that make a checkpoint unusable. The absences among them may also mean that the whole storage is away.
_DAMAGES = ("checkpoint.corrupt", "checkpoint.file_missing", "checkpoint.not_found")
_ABSENCES = ("checkpoint.file_missing", "checkpoint.not_found")
T = TypeVar("T")


class CheckpointReader:
    """Reads the checkpoints of one storage. latest_id: the checkpoint that the cluster knows as this trial's latest;
    empty where there is none."""

    def __init__(self, store: CheckpointStore, latest_id: str) -> None:
        self._store = store
        self._latest_id = latest_id

    def read(self, storage_id: str, work: Callable[[], T]) -> T:
        """Returns the result of work that reads this checkpoint. Raises its error as the trial is to see it.

        What was absent is looked for once more: the storage may have come back before the check whether it is away.
        """
        looks_again = True
        while True:
            try:
                return work()
            except GanglineError as error:
                told = self._told_for(storage_id, error)
                if not looks_again or error.code not in _ABSENCES or told.kind is ErrorKind.UNAVAILABLE:
                    raise told from None
                looks_again = False
            except OSError as error:
                raise self._unreadable(storage_id, error) from error

    def _told_for(self, storage_id: str, error: GanglineError) -> GanglineError:
        """Returns the error to raise for this checkpoint. Damage to the checkpoint that the cluster knows as this
        trial's latest gets a code of its own. A checkpoint that is absent together with everything else is not damaged:
        its storage is away."""
        if error.code in _ABSENCES:
            try:
                self._store.check_present()
                is_away = storage_id == self._latest_id and not self._store.holds_anything()
            except GanglineError as away:
                return away
            except OSError as failure:
                return self._unreadable(storage_id, failure)
            if is_away:
                url = f"{self._store.url.rstrip('/')}/checkpoints"
                why = f"{url} is empty or absent, so the storage is away as a whole; mount it or bring it back"
                return self._unreadable(storage_id, why)
        is_damage = error.code in _DAMAGES and storage_id == self._latest_id
        return GanglineError(LATEST_CORRUPT, error.message, error.kind) if is_damage else error

    def _unreadable(self, storage_id: str, why: OSError | str) -> GanglineError:
        """Makes the error for a checkpoint that storage does not give. why: a sentence for a storage that is empty."""
        text = f"checkpoint {storage_id} could not be read from {self._store.url}: {why}"
        error = GanglineError("checkpoint.storage", text, ErrorKind.UNAVAILABLE)
        setattr(error, JUDGED, isinstance(why, str) or waits(why))
        return error
