"""Saves a trial's state while training continues: a copy is taken between two steps, and a thread writes it.

Owns that thread, and the process group on which the ranks' threads agree, because they must not mix with training's
collectives. Also owns the rule that one save is under way at a time. A checkpoint exists from the moment of its commit.
An error before that is raised on every rank at its next `poll` or `wait`. Made and called by the training loop.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from gangline.core.checkpoint import CheckpointContext
from gangline.core.distributed import BACKGROUND_GROUP, DistributedContext
from gangline.core.draft import CheckpointDraft
from gangline.core.together import RankError, together
from gangline.core.transport import AloneTransport, TorchTransport, Transport
from gangline.domain.storage.manifest import StoredFile
from gangline.errors import ErrorKind, GanglineError
from gangline.pytorch.checkpoint.capture import Captured, rank_file
from gangline.pytorch.checkpoint.name import Path
from gangline.pytorch.checkpoint.plain import to_bytes
from gangline.pytorch.checkpoint.staging import Staging, copy_values
from gangline.pytorch.checkpoint.writer import write_tensors

# Ranks wait for one another's uploads. The timeout can be long, because a rank that died breaks its connections at
# once.
_GROUP_TIMEOUT = timedelta(hours=4)
# Time that a failing rank gives the save under way before it reports its failure. Its peers wait meanwhile, but they
# are alive and write their parts. If a peer has died, the runner ends all ranks and does not wait for this time.
_SETTLE_SECONDS = 10.0
_log = logging.getLogger("gangline")


@dataclass(slots=True)
class Save:
    """Save under way."""

    batches: int
    metadata: Mapping[str, Any]
    tensors: Mapping[Path, torch.Tensor]
    rank_part: Mapping[str, Any]  # values of this rank alone
    # folder with more files, on the chief; None on other ranks, or without such files
    folder: TemporaryDirectory[str] | None
    storage_id: str = ""  # set once ranks have agreed
    error: BaseException | None = None
    began: float = field(default_factory=time.perf_counter)
    ended: float = 0.0
    thread: threading.Thread = field(init=False)


class Saver:
    """Saves the checkpoints of one trial. All ranks make one, and call it in step.

    on_saved: called in the thread that trains, on every rank, with the id of each complete checkpoint.
    """

    def __init__(
        self,
        checkpoint: CheckpointContext,
        distributed: DistributedContext,
        *,
        is_asynchronous: bool = True,
        on_saved: Callable[[str], None] = lambda storage_id: None,
    ) -> None:
        self._checkpoint = checkpoint
        self._distributed = distributed
        self._is_asynchronous = is_asynchronous
        self._on_saved = on_saved
        self._staging = Staging(distributed.local_size)
        self._known_group: dist.ProcessGroup | None = None
        self._running: Save | None = None
        self._is_given_up = False
        self._newest = -1
        self._stall = 0.0

    def save(
        self,
        captured: Captured,
        batches: int,
        metadata: Mapping[str, Any],
        folder: TemporaryDirectory[str] | None = None,
    ) -> None:
        """Begins to save, after the earlier save has ended. folder: with files that become the checkpoint's, from the
        chief alone; it is removed when they are written.

        Raises the error of the earlier save.
        """
        called = time.perf_counter()
        self.wait()
        group = self._group()
        save = Save(batches, metadata, self._staging.copy(captured.tensors), copy_values(captured.rank), folder)
        save.thread = threading.Thread(target=self._run, args=(save, group), name="gangline-save", daemon=True)
        self._running = save
        save.thread.start()
        self._stall = time.perf_counter() - called
        if not self._is_asynchronous:
            self.wait()

    @property
    def is_running(self) -> bool:
        """Returns whether a save has begun whose end `poll` or `wait` has not seen yet."""
        return self._running is not None

    @property
    def newest(self) -> int:
        """Number of batches of the newest complete checkpoint that `poll` or `wait` has seen; -1 for none."""
        return self._newest

    @property
    def under_way(self) -> int | None:
        """Number of batches of the running save; None without one."""
        return self._running.batches if self._running is not None else None

    def poll(self) -> None:
        """Checks whether the save under way has ended, without waiting. Raises its error."""
        if self._running is not None and not self._running.thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Waits until no save is under way. Raises its error."""
        if self._running is None:
            return
        save, self._running = self._running, None
        self._checkpoint.wait.join(save.thread)
        if save.error is not None:
            raise _describe(save, self._checkpoint.storage_url) from save.error
        self._newest = save.batches
        if self._distributed.is_chief:
            text = "checkpoint %s after batch %d: complete in %.1f s, begun in %.2f s"
            _log.info(text, save.storage_id, save.batches, save.ended - save.began, self._stall)
        self._on_saved(save.storage_id)

    def settle(self) -> None:
        """Gives the save under way a limited time to end, on a rank that fails. A second call does not wait again.

        Logs an error of the save: the failure that is reported already takes precedence.
        """
        if self._running is None or self._is_given_up:
            return
        self._running.thread.join(_SETTLE_SECONDS)
        if self._running.thread.is_alive():
            self._is_given_up = True
            text = "the checkpoint after batch %d was still being written after %g s, so this end of training loses it"
            _log.warning(text, self._running.batches, _SETTLE_SECONDS)
            return
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001  see above; a callback may raise anything
            _log.warning("%s", error)

    def _group(self) -> dist.ProcessGroup | None:
        if self._distributed.size > 1 and self._known_group is None:
            timeout = max(_GROUP_TIMEOUT, timedelta(seconds=2 * self._checkpoint.wait.limit_seconds))
            self._known_group = dist.new_group(backend="gloo", timeout=timeout, group_desc=BACKGROUND_GROUP)
        return self._known_group

    def _run(self, save: Save, group: dist.ProcessGroup | None) -> None:
        try:
            self._write(save, group)
        except BaseException as error:  # noqa: BLE001  it is raised again in the thread that trains
            save.error = error
        finally:
            save.ended = time.perf_counter()
            if save.folder is not None:
                save.folder.cleanup()

    def _write(self, save: Save, group: dist.ProcessGroup | None) -> None:
        transport: Transport = TorchTransport(group, range(self._distributed.size)) if group else AloneTransport()
        save.storage_id = transport.broadcast(str(uuid.uuid4()))
        self._checkpoint.wait.keep_trying(
            f"the checkpoint after batch {save.batches}",
            transport,
            lambda: self._try(save, transport),
            is_first=self._distributed.is_chief,
        )

    def _try(self, save: Save, transport: Transport) -> None:
        draft = self._checkpoint.draft(save.storage_id)
        try:
            write_tensors(draft, save.tensors, transport, self._distributed.rank, self._distributed.size)
            files = _merge(together(transport, lambda: self._write_files(draft, save)))
            together(transport, lambda: self._commit(save, files))
        except BaseException:
            # The cause takes precedence, also where storage cannot even be cleaned.
            with suppress(Exception):
                if self._distributed.is_chief:
                    draft.discard()
            raise

    def _write_files(self, draft: CheckpointDraft, save: Save) -> dict[str, StoredFile]:
        """Writes this rank's other files. Returns all files that this rank has written."""
        draft.write(rank_file(self._distributed.rank), to_bytes(save.rank_part, "what a rank keeps"))
        if save.folder is not None:
            draft.copy_folder(save.folder.name)
        return draft.files

    def _commit(self, save: Save, files: Mapping[str, StoredFile]) -> None:
        if self._distributed.is_chief:
            self._checkpoint.commit(save.storage_id, files, save.metadata)


def _merge(by_rank: list[dict[str, StoredFile]]) -> dict[str, StoredFile]:
    return {path: file for files in by_rank for path, file in files.items()}


def _describe(save: Save, storage_url: str) -> GanglineError:
    """Returns the first rank's error as one line."""
    error = save.error
    if isinstance(error, GanglineError):
        return error
    rank, text = _cause_of(error)
    where = "" if rank is None else f" on rank {rank}"
    return GanglineError(
        "checkpoint.storage",
        f"the checkpoint after batch {save.batches} could not be written to {storage_url}{where}: {text}; earlier "
        "checkpoints are as they were",
        ErrorKind.UNAVAILABLE,
    )


def _cause_of(error: BaseException | None) -> tuple[int | None, str]:
    if isinstance(error, RankError):
        return error.rank, error.text
    return None, f"{type(error).__name__}: {error}"
