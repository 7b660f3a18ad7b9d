"""Saves and restores a trial's files: the checkpoint part of the Core API.

Owns the order of the work when ranks save or restore together, and the report to the trial runner once a checkpoint is
committed. `checkpoint_shares.py` divides the files over the ranks, `checkpoint_location.py` finds what a user names.
The caller owns the content of the files.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from gangline.cluster_info import ClusterInfo
from gangline.core.beat import Beat, NoBeat
from gangline.core.checkpoint_location import location_of
from gangline.core.checkpoint_reader import CheckpointReader
from gangline.core.checkpoint_shares import merge_files, merge_metadata, share_of
from gangline.core.distributed import DistributedContext
from gangline.core.draft import CheckpointDraft
from gangline.core.encoding import let_travel
from gangline.core.link import Link
from gangline.core.storage_access.storage import CheckpointStore, describe_files, list_files
from gangline.core.storage_access.storage_wait import Agreement, StorageWait
from gangline.core.temporary import temporary_folder
from gangline.core.together import RankError, failure_of, raise_failure, together
from gangline.core.transport import AloneTransport
from gangline.domain.experiment import METADATA_FILE, STEPS_COMPLETED, VALIDATION_METRICS
from gangline.domain.id import check_checkpoint_id
from gangline.domain.storage.manifest import StoredFile
from gangline.domain.storage.storage_fault import describe
from gangline.errors import ErrorKind, GanglineError, conflict, invalid
from gangline.v1 import types_pb2

# What a rank waits for, at the beginning of a sentence.
_SAVING, _RESTORING = "saving a checkpoint", "reading a checkpoint"
# The types that ranks exchange about a checkpoint, here and in gangline.pytorch.checkpoint.
let_travel(StoredFile, ErrorKind)


class DownloadMode(Enum):
    """LocalWorkersShareDownload: the first rank of a machine downloads for all of its ranks, which call in step.
    NoSharedDownload: every rank downloads for itself."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Saves, restores and deletes the checkpoints of this trial. With shard=False only the chief saves; with shard=True
    every rank saves, in step.

    A checkpoint's metadata holds what the caller gives. `steps_completed` is how far training was.
    `validation_metrics`, by which checkpoints are compared, are the newest ones that were reported up to that step.

    find_validation: returns those metrics for a number of steps; empty where there are none.
    """

    def __init__(
        self,
        distributed: DistributedContext,
        link: Link,
        store: CheckpointStore,
        cluster: ClusterInfo | None,
        find_validation: Callable[[int], Mapping[str, float]] = lambda steps: {},
        *,
        beat: Beat | None = None,
    ):
        self._distributed = distributed
        self._link = link
        self._store = store
        self._cluster = cluster
        latest = cluster.latest_checkpoint if cluster else None
        self._reader = CheckpointReader(store, latest.id if latest else "")
        self._beat = beat or NoBeat()
        limit_seconds = cluster.storage_wait_seconds if cluster else 0.0
        # Waits for a storage that takes nothing.
        self.wait = StorageWait(
            url=store.url, calls=store.calls, link=link, beat=self._beat, limit_seconds=limit_seconds
        )
        self._find_validation = find_validation
        # The checkpoint from which a restart would resume, so `delete` refuses it.
        self._newest_id = latest.id if latest else ""

    @property
    def storage_url(self) -> str:
        return self._store.url

    def of_storage(self, url: str) -> CheckpointContext:
        """Returns the same context for another storage, from which a trial starts."""
        if url.rstrip("/") == self.storage_url.rstrip("/"):
            return self
        return CheckpointContext(self._distributed, self._link, CheckpointStore(url), self._cluster, beat=self._beat)

    def upload(
        self,
        ckpt_dir: str | Path | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Callable[[str], bool] | None = None,
    ) -> str:
        """Saves a folder's files as a new checkpoint and returns its id.

        ckpt_dir: None where a rank has nothing to add.
        selector: chooses files by their path inside the folder.
        Raises GanglineError `checkpoint.conflict` when two ranks give the same path different content, and
        `checkpoint.no_folder`; on the cluster `checkpoint.steps_completed` for metadata without that number.
        """
        self._check_caller(shard)
        if not shard:
            self._check_steps(metadata or {})
        self._check_folder(ckpt_dir, shard)
        storage_id = self._new_id(shard)
        self._save(storage_id, Path(ckpt_dir) if ckpt_dir is not None else None, metadata, shard, selector)
        return storage_id

    @contextmanager
    def store_path(
        self, metadata: Mapping[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Yields an empty folder and the new checkpoint's id. At the end of the block the folder's content is saved."""
        self._check_caller(shard)
        if not shard:
            self._check_steps(metadata or {})
        storage_id = self._new_id(shard)
        with temporary_folder("checkpoint") as directory:
            yield Path(directory), storage_id
            self._save(storage_id, Path(directory), metadata, shard, None)

    def download(
        self,
        storage_id: Any,
        ckpt_dir: str | Path,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Callable[[str], bool] | None = None,
    ) -> None:
        """Copies a checkpoint into a folder and compares the copy with its manifest. storage_id: as in
        `restore_path`."""
        place, found_id = self._find(storage_id)

        def fetch() -> None:
            Path(ckpt_dir).mkdir(parents=True, exist_ok=True)
            folder, paths = Path(ckpt_dir), place._select(found_id, selector)
            place._store.download(found_id, folder, paths)
            if paths is None:
                paths = json.loads((folder / METADATA_FILE).read_text())["manifest"]["files"]
            place._note_stored(place._dates_of(folder, [*paths, METADATA_FILE]))

        place._once(download_mode, found_id, fetch)

    @contextmanager
    def restore_path(
        self,
        storage_id: Any,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Callable[[str], bool] | None = None,
    ) -> Iterator[Path]:
        """Yields a read-only folder with the checkpoint's files. It is storage itself where storage is a directory.

        storage_id: the checkpoint's id, as `upload` and `store_path` return it and as
        get_cluster_info().latest_checkpoint is; or the URL of its folder, or a checkpoint of the SDK. Raises
        GanglineError `checkpoint.location` for anything else, before other ranks are waited for.
        """
        place, found_id = self._find(storage_id)
        with place._restored(found_id, download_mode, selector) as directory:
            yield directory

    @contextmanager
    def _restored(
        self, storage_id: str, download_mode: DownloadMode, selector: Callable[[str], bool] | None
    ) -> Iterator[Path]:
        local = self._store.local_path(storage_id)
        if local is not None:
            self.get_metadata(storage_id)
            self._once(
                download_mode,
                storage_id,
                lambda: self._store.verify_in_place(storage_id, self._select(storage_id, selector)),
            )
            yield local
            return
        with self._download_directory(download_mode) as directory:
            self.download(storage_id, directory, download_mode, selector=selector)
            yield directory
            if download_mode is DownloadMode.LocalWorkersShareDownload:
                # The folder is removed only after all ranks of this machine have read it.
                self._distributed.allgather_local(None)

    def get_metadata(self, storage_id: Any) -> dict[str, Any]:
        """Returns the metadata of a checkpoint. storage_id: as in `restore_path`."""
        place, found_id = self._find(storage_id)
        wait = place.wait

        def load() -> dict[str, Any]:
            return place._reader.read(found_id, lambda: place._store.load_metadata(found_id))

        return wait.run(lambda: wait.keep_trying(_RESTORING, AloneTransport(), load))

    def _find(self, checkpoint: Any) -> tuple[CheckpointContext, str]:
        """Returns the context of the checkpoint's storage, and the checkpoint's id."""
        url, storage_id = location_of(checkpoint, self.storage_url)
        return self.of_storage(url), storage_id

    def delete(self, storage_id: str) -> None:
        """Asks for the deletion of a checkpoint. Chief only. On the cluster the scheduler marks it, and the files are
        deleted soon after.

        Raises GanglineError `checkpoint.needed` for the checkpoint from which this trial would resume, `checkpoint.id`,
        and off the cluster `checkpoint.not_found`.
        """
        check_checkpoint_id(storage_id)
        if self._cluster is None:
            self._store.delete(storage_id)
            return
        if storage_id == self._newest_id:
            raise conflict(
                "checkpoint.needed",
                f"this trial goes on from checkpoint {storage_id} after a restart, so it cannot be deleted; save a "
                "newer one first",
            )
        self._link.send_checkpoint(types_pb2.Checkpoint(id=storage_id, state=types_pb2.CHECKPOINT_STATE_DELETING))

    def draft(self, storage_id: str) -> CheckpointDraft:
        """Returns a draft for ranks that write a checkpoint's files themselves, perhaps in the background. The chief
        commits afterwards."""
        return CheckpointDraft(self._store, storage_id, self._beat.pulse)

    def commit(self, storage_id: str, files: Mapping[str, StoredFile], metadata: Mapping[str, Any]) -> None:
        """Makes a checkpoint of the files that the drafts of all ranks have written, and reports it to the cluster.
        Chief only."""
        steps = int(metadata.get(STEPS_COMPLETED, self._link.batches_completed))
        if VALIDATION_METRICS not in metadata and (validation := self._find_validation(steps)):
            metadata = {**metadata, VALIDATION_METRICS: dict(validation)}
        self._report(storage_id, self._store.commit(storage_id, metadata, files), files, metadata)
        self._newest_id = storage_id

    def _check_caller(self, shard: bool) -> None:
        if not shard and not self._distributed.is_chief:
            raise invalid(
                "core.chief_only",
                f"rank {self._distributed.rank} saves a checkpoint that is not sharded, which only the chief may; "
                "save on rank 0, or pass shard=True on all ranks",
            )

    def _check_steps(self, metadata: Mapping[str, Any]) -> None:
        """Raises where a checkpoint on the cluster does not say how far training was: the scheduler orders checkpoints
        by it."""
        if self._cluster is None or _is_count(metadata.get(STEPS_COMPLETED)):
            return
        has_any = STEPS_COMPLETED in metadata
        what = f"has {metadata[STEPS_COMPLETED]!r:.50} as" if has_any else "has no"
        raise invalid(
            "checkpoint.steps_completed",
            f"the metadata of a checkpoint {what} {STEPS_COMPLETED}; give the batches trained so far, as in "
            '{"steps_completed": 100}',
        )

    def _check_folder(self, directory: str | Path | None, shard: bool) -> None:
        """Raises where a folder is missing. With several ranks all of them raise, because the others would wait for the
        one that does."""
        own = ""
        if directory is not None and not Path(directory).is_dir():
            own = f"upload: there is no folder {directory} on rank {self._distributed.rank}; write the files first"
        first = next(filter(None, self._distributed.allgather(own) if shard else [own]), None)
        if first is not None:
            raise invalid("checkpoint.no_folder", first)

    def _new_id(self, shard: bool) -> str:
        storage_id = str(uuid.uuid4())
        return str(self._distributed.broadcast(storage_id)) if shard else storage_id

    def _is_downloader(self, mode: DownloadMode) -> bool:
        return mode is DownloadMode.NoSharedDownload or self._distributed.local_rank == 0

    def _once(self, mode: DownloadMode, storage_id: str, work: Callable[[], object]) -> None:
        """Runs the work on the rank that downloads. Where one rank downloads for several, the others wait for it. They
        raise the error that it raises, before any of them reads a file that may be damaged."""
        is_shared = mode is DownloadMode.LocalWorkersShareDownload
        ranks: Agreement = _LocalAgreement(self._distributed) if is_shared else AloneTransport()

        def restore() -> None:
            failure: tuple[Any, ...] | None = None
            if self._is_downloader(mode):
                try:
                    self._reader.read(storage_id, work)
                except GanglineError as error:
                    failure = failure_of(error)
            failure = ranks.broadcast(failure)
            if failure is not None:
                raise_failure(self._distributed.rank, failure)

        is_first = self._is_downloader(mode)
        self.wait.run(lambda: self.wait.keep_trying(_RESTORING, ranks, restore, is_first=is_first))

    def _select(self, storage_id: str, selector: Callable[[str], bool] | None) -> list[str] | None:
        if selector is None:
            return None
        files = self.get_metadata(storage_id)["manifest"]["files"]
        return [path for path in files if selector(path)]

    @contextmanager
    def _download_directory(self, mode: DownloadMode) -> Iterator[Path]:
        if mode is DownloadMode.NoSharedDownload:
            with temporary_folder("restore") as own:
                yield Path(own)
        elif self._distributed.local_rank == 0:
            with temporary_folder("restore") as shared:
                yield Path(self._distributed.broadcast_local(shared))
        else:
            yield Path(self._distributed.broadcast_local())

    def _save(
        self,
        storage_id: str,
        directory: Path | None,
        metadata: Mapping[str, Any] | None,
        shard: bool,
        selector: Callable[[str], bool] | None,
    ) -> None:
        paths = [path for path in (list_files(directory) if directory else []) if selector is None or selector(path)]
        # Before the content is read, so that a file that changes later counts as another one.
        dates = self._dates_of(directory, paths) if directory else {}
        own = (describe_files(directory, paths) if directory else {}, dict(metadata or {}))
        self._beat.touch()
        everyone = self._distributed.allgather(own) if shard else [own]
        by_rank = [entry[0] for entry in everyone]
        files, merged = merge_files(by_rank), merge_metadata([entry[1] for entry in everyone])
        self._check_steps(merged)
        own_paths = share_of(by_rank, self._distributed.rank)
        ranks: Agreement = self._distributed if shard else AloneTransport()

        def upload() -> None:
            if directory:
                self._store.upload_files(storage_id, directory, own_paths)

        def commit() -> None:
            if self._distributed.is_chief:
                self.commit(storage_id, files, merged)

        def store() -> None:
            if not shard:
                upload()
                commit()
                return
            # All ranks have uploaded their files before the commit, and none returns before it.
            together(self._distributed, upload)
            together(self._distributed, commit)

        is_first = self._distributed.is_chief
        try:
            self.wait.run(lambda: self.wait.keep_trying(_SAVING, ranks, store, is_first=is_first))
        except (OSError, RankError) as error:
            raise self._not_written(storage_id, error) from error
        self._note_stored(dates)
        self._beat.touch()

    def _note_stored(self, dates: Mapping[str, int]) -> None:
        if dates:
            self._link.send_stored_files(dates)

    def _dates_of(self, directory: Path, paths: Iterable[str]) -> dict[str, int]:
        """Returns when each file was last changed in nanoseconds, by its path below the trial's working folder; none
        for a directory elsewhere, where the trial runner names no files as lost."""
        root = self._cluster.code_directory if self._cluster is not None else ""
        below = os.path.relpath(os.path.realpath(directory), os.path.realpath(root)) if root else os.pardir
        dates: dict[str, int] = {}
        for path in paths if Path(below).parts[:1] != (os.pardir,) else ():
            with suppress(OSError):
                dates[os.path.normpath(f"{below}/{path}")] = (directory / path).lstat().st_ctime_ns
        return dates

    def _not_written(self, storage_id: str, error: OSError | RankError) -> GanglineError:
        """Makes the error for a checkpoint that storage refuses. In a storage of the user's own choice that is a
        mistake, which another attempt would repeat."""
        own_url = self._cluster.storage_url if self._cluster else ""
        kind = ErrorKind.UNAVAILABLE if self._store.url == own_url else ErrorKind.INVALID
        rank = f" on rank {error.rank}" if isinstance(error, RankError) else ""
        why = error.text if isinstance(error, RankError) else describe(error)
        text = f"checkpoint {storage_id} could not be written to {self._store.url}{rank}: {why}"
        return GanglineError("checkpoint.storage", text, kind)

    def _report(self, storage_id: str, url: str, files: Mapping[str, StoredFile], metadata: Mapping[str, Any]) -> None:
        self._link.send_checkpoint(
            types_pb2.Checkpoint(
                id=storage_id,
                trial_id=self._cluster.trial.trial_id if self._cluster else "",
                experiment_id=self._cluster.trial.experiment_id if self._cluster else 0,
                batches_completed=int(metadata.get(STEPS_COMPLETED, self._link.batches_completed)),
                url=url,
                file_bytes={path: file.bytes for path, file in files.items()},
                metadata_json=json.dumps(metadata, sort_keys=True),
                created_at=time.time(),
            )
        )


class _LocalAgreement:
    """The ranks of this machine, of which one downloads."""

    def __init__(self, distributed: DistributedContext) -> None:
        self._distributed = distributed

    def broadcast(self, value: Any) -> Any:
        return self._distributed.broadcast_local(value)


def _is_count(value: Any) -> bool:
    try:
        return int(value) >= 0
    except (TypeError, ValueError):
        return False
