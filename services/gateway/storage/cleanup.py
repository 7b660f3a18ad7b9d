"""Deletes files from the storage that the scheduler no longer needs.

Two facts in the mirrored state decide that: the mark on a checkpoint's record, and the end of an attempt, whose
unfinished files go with it. Both are final, so a mirror that is behind only delays a deletion. Every gateway does all
of it: deleting what is gone already changes nothing. It never decides what may go. The record of a checkpoint goes only
after the leader has received that its files are gone; so an interrupted deletion is found again.

One task of this module lives as long as the gateway. Blocking calls run in threads of their own, few enough to leave
the storage to others. Each has a deadline, so that a storage that hangs affects only the files on which it hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial as bind

import structlog

from gangline.domain.experiment import METADATA_FILE, Checkpoint
from gangline.domain.id import parse_allocation_id, parse_trial_id
from gangline.domain.storage.partial import REMOVED_PREFIX, Partial, Writer, parse_partial, partial_name, removed_name
from gangline.errors import GanglineError
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.gateway.mirror import metrics
from services.gateway.mirror.mirror import CLEANUP_NOTIFICATION, Watched
from services.gateway.storage.call_deadline import HUNG, DeadlinedCalls
from services.gateway.storage.import_folder import clear_stale_imports
from services.gateway.storage.storage import Storage

FOLDER = "checkpoints"
# Deletions at a time.
NUM_THREADS = 4
# For one checkpoint or one listing, so that a storage that hangs does not block the other checkpoints for ever. A
# longer deletion continues in its thread, and the next try finds it done.
DELETE_SECONDS = 120.0
# With so many hung calls, further ones are refused at once (see call_deadline.py).
MOST_HUNG = 8
# Deletions in one report to the leader; and the pause after a report that failed.
MAX_TOGETHER = 64
TELL_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0
# Least time between two sweeps: a sweep for files of ended attempts lists the whole folder.
SWEEP_SECONDS = 10.0
# Pause when nothing is due.
IDLE_SECONDS = 3600.0
# How long a report waits until the mirror shows its effect.
MIRROR_SECONDS = 5.0

log = structlog.get_logger(__name__)


Confirm = Callable[
    [scheduler_pb2.ConfirmCheckpointsDeletedRequest], Awaitable[scheduler_pb2.ConfirmCheckpointsDeletedResponse]
]


class CleanupResult(Enum):
    """States how a call to the storage ended. HUNG: the storage has not answered in time."""

    DONE = auto()
    FAILED = auto()
    HUNG = auto()


@dataclass(frozen=True, slots=True)
class Try:
    """Records the last try to delete a checkpoint, by the event loop's clock."""

    again_at: float = 0.0
    num_failures: int = 0

    def failed(self, now: float, is_hung: bool = False) -> Try:
        """Returns the record after another failed try. is_hung: an earlier call may still run, so the next one waits
        for the longest back-off."""
        if is_hung:
            return Try(now + LONGEST_BACKOFF_SECONDS, self.num_failures + 1)
        seconds = FIRST_BACKOFF_SECONDS * 2 ** min(self.num_failures, 16)
        return Try(now + min(seconds, LONGEST_BACKOFF_SECONDS), self.num_failures + 1)


NO_TRY = Try()


class Cleanup:
    """Deletes files in the background. Call `start` and `stop` once each. confirm_deleted: reports deletions to the
    leading scheduler."""

    def __init__(self, mirror: Watched, confirm_deleted: Confirm, storage: Storage) -> None:
        self._mirror = mirror
        self._confirm_deleted = confirm_deleted
        self._storage = storage
        self._calls = DeadlinedCalls(NUM_THREADS, DELETE_SECONDS, MOST_HUNG, LONGEST_BACKOFF_SECONDS)
        self._tries: dict[str, Try] = {}
        self._swept: tuple[int, int] | None = None
        self._sweep_at = 0.0
        # Why the last call to the storage failed; empty after one that succeeded.
        self.problem = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="cleanup")

    async def stop(self) -> None:
        """Stops the task. A thread that is deleting continues until it has finished or the process ends."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        with self._mirror.changes.listen(CLEANUP_NOTIFICATION) as notification:
            while True:
                notification.clear()
                seconds = FIRST_BACKOFF_SECONDS
                try:
                    await self._delete_marked()
                    await self._sweep()
                    seconds = self._seconds_to_next()
                except Exception:
                    # The top of a long-lived task: a bug here must not let the disk fill up for good.
                    metrics.CLEANUP_FAILURES.inc()
                    log.exception("cleaning up failed")
                await notification.wait(seconds)

    async def _delete_marked(self) -> None:
        # At most MAX_TOGETHER at a time, until none is due.
        while due := self._due()[:MAX_TOGETHER]:
            results = await asyncio.gather(*(self._in_thread(bind(self._erase, checkpoint)) for checkpoint in due))
            gone = [
                checkpoint.id for checkpoint, result in zip(due, results, strict=True) if result is CleanupResult.DONE
            ]
            hung = {
                checkpoint.id for checkpoint, result in zip(due, results, strict=True) if result is CleanupResult.HUNG
            }
            is_confirmed = await self._confirm(gone) if gone else True
            now = asyncio.get_running_loop().time()
            # A reported checkpoint needs no other try, unless its record stays for long.
            told = Try(now + (LONGEST_BACKOFF_SECONDS if is_confirmed else TELL_SECONDS))
            for checkpoint in due:
                failed = self._tries.get(checkpoint.id, NO_TRY).failed(now, checkpoint.id in hung)
                self._tries[checkpoint.id] = told if checkpoint.id in gone else failed
        marked = {checkpoint.id for checkpoint in self._mirror.state.marked.values()}
        self._tries = {id_: last for id_, last in self._tries.items() if id_ in marked}

    def _due(self) -> list[Checkpoint]:
        """Returns the checkpoints that are due, those with the fewest failures first. Where calls hang, few are let
        through, and they must not always be for the same files."""
        now = asyncio.get_running_loop().time()
        due = [
            checkpoint
            for checkpoint in self._mirror.state.marked.values()
            if self._tries.get(checkpoint.id, NO_TRY).again_at <= now
        ]
        return sorted(due, key=lambda checkpoint: self._tries.get(checkpoint.id, NO_TRY).num_failures)

    async def _confirm(self, checkpoint_ids: list[str]) -> bool:
        request = scheduler_pb2.ConfirmCheckpointsDeletedRequest(checkpoint_ids=checkpoint_ids)
        try:
            answer = await self._confirm_deleted(request)
        except GanglineError as error:
            metrics.CLEANUP_FAILURES.inc()
            log.warning("the leader cannot be told what was deleted, trying again", reason=error.message)
            return False
        metrics.DELETED_CHECKPOINTS.inc(len(checkpoint_ids))
        log.info("checkpoints are deleted", checkpoint_ids=checkpoint_ids)
        await self._mirror.wait_for_revision(answer.revision, MIRROR_SECONDS)
        return True

    def _erase(self, checkpoint: Checkpoint) -> None:
        """Deletes a checkpoint's files; blocks. Trials choose the names of their folders, so only the folder with the
        checkpoint's id is deleted."""
        try:
            path = self._storage.locate(checkpoint.url)
        except GanglineError as error:
            log.warning("files are left where they are", checkpoint_id=checkpoint.id, reason=error.message)
            return
        if path != f"{FOLDER}/{checkpoint.id}":
            log.warning("files are left where they are", checkpoint_id=checkpoint.id, reason=f"{path} is not its own")
            return
        self._storage.remove_folder(path, f"{FOLDER}/{REMOVED_PREFIX}{checkpoint.id}", METADATA_FILE)

    async def _sweep(self) -> None:
        """Deletes unfinished files of ended attempts, at the start and whenever an attempt has ended since the last
        sweep."""
        state = self._mirror.state
        ended = (id(state), state.num_ended_allocations)
        if ended == self._swept or asyncio.get_running_loop().time() < self._sweep_at:
            return
        self._sweep_at = asyncio.get_running_loop().time() + SWEEP_SECONDS
        await self._in_thread(bind(clear_stale_imports, self._storage, time.time()))
        names: list[str] = []
        listed = await self._in_thread(lambda: names.extend(self._storage.names(FOLDER)))
        if listed is not CleanupResult.DONE:
            self._sweep_at += LONGEST_BACKOFF_SECONDS if listed is CleanupResult.HUNG else 0.0
            return
        partials = {partial for name in names if (partial := parse_partial(name)) is not None}
        left = sorted(
            (partial for partial in partials if self._is_ended(partial.writer)), key=lambda partial: partial.storage_id
        )
        results = await asyncio.gather(*(self._in_thread(bind(clear, self._storage, partial)) for partial in left))
        for partial, result in zip(left, results, strict=True):
            if result is CleanupResult.DONE:
                metrics.CLEARED_PARTIALS.inc()
                log.info("unfinished files are deleted", allocation_id=partial.writer.allocation_id)
        if all(result is CleanupResult.DONE for result in results):
            self._swept = ended
        else:
            self._sweep_at = asyncio.get_running_loop().time() + LONGEST_BACKOFF_SECONDS

    def _is_ended(self, writer: Writer) -> bool:
        """Returns whether an attempt has ended. One that its trial has had, and whose record is gone, stays ended."""
        state = self._mirror.state
        if state.cluster is None or writer.cluster_id != state.cluster.id:
            return False
        trial_id, attempt = parse_allocation_id(writer.allocation_id)
        trial = state.trials.find(keys.trial(trial_id))
        if trial is None:
            # Its experiment has ended, as only ended ones are deleted.
            return state.is_removed(parse_trial_id(trial_id)[0])
        is_there = state.allocations.find(keys.allocation(writer.allocation_id)) is not None
        return trial.attempts >= attempt and not is_there

    def _seconds_to_next(self) -> float:
        now, state = asyncio.get_running_loop().time(), self._mirror.state
        waits = [last.again_at - now for last in self._tries.values()]
        if (id(state), state.num_ended_allocations) != self._swept:
            waits.append(self._sweep_at - now)
        return max(0.0, min(waits, default=IDLE_SECONDS))

    async def _in_thread(self, work: Callable[[], object]) -> CleanupResult:
        try:
            await self._calls.run(work)
        except Exception as failure:  # noqa: BLE001  a storage raises whatever its library raises; it is tried again
            metrics.CLEANUP_FAILURES.inc()
            log.warning("cannot delete from the storage, trying again", reason=str(failure))
            self.problem = f"the storage cannot be cleaned up: {failure}"
            is_hung = isinstance(failure, TimeoutError) or getattr(failure, "code", "") == HUNG
            return CleanupResult.HUNG if is_hung else CleanupResult.FAILED
        self.problem = ""
        return CleanupResult.DONE


def clear(storage: Storage, partial: Partial) -> None:
    """Removes the files that an ended attempt has not committed; blocks. The writer's side is in
    gangline.core.storage_access.storage."""
    condemned = f"{FOLDER}/{removed_name(partial)}"
    unfinished = f"{FOLDER}/{partial_name(partial.writer, partial.storage_id)}"
    if storage.renames:
        storage.remove_folder(unfinished, condemned)
        return
    # Ranks that outlive their attempt may commit at this moment: they check for this mark when they write the manifest.
    storage.mark(condemned)
    if not storage.has(f"{FOLDER}/{partial.storage_id}/{METADATA_FILE}"):
        storage.remove_folder(f"{FOLDER}/{partial.storage_id}")
    storage.remove_file(unfinished)
    storage.remove_file(condemned)
