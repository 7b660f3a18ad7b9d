"""Imports a checkpoint that another program or cluster wrote: first its files, then its record.

A failure before the record removes the files. Where the leader may have made the record although its answer was lost,
the files stay, and the same import again finds them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

from gangline.domain.experiment import Checkpoint
from gangline.domain.state import CheckpointState
from gangline.domain.storage.checkpoint_import import ImportedFile, check_import, import_id, steps_of
from gangline.domain.storage.manifest import StoredFile, write_document
from gangline.errors import Effect, GanglineError, conflict
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.storage.import_folder import FOLDER, ImportFolder
from services.gateway.storage.storage import Storage


class CheckpointImports:
    def __init__(self, caller: Caller, mirror: Watched, leader: Leader, storage: Storage) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader
        self._storage = storage

    async def run(
        self,
        chunks: AsyncIterator[bytes],
        *,
        name: str,
        metadata_json: str,
        files: Sequence[ImportedFile],
    ) -> tuple[Checkpoint, bool]:
        """Stores the files and makes the record. Returns it, and whether it is new. chunks: the content of the files in
        the order given, which is not read where the checkpoint exists already.

        Raises GanglineError `checkpoint.import`, `path`, `upload`, `deleting`, `storage.full`, and those of the leader.
        """
        self._caller.check_request_id()
        announced = list(files)
        await asyncio.to_thread(check_import, name, metadata_json, announced)
        checkpoint_id = import_id(metadata_json, announced)
        existing = self._mirror.state.checkpoints.find(keys.checkpoint(checkpoint_id))
        if existing is not None and existing.state is CheckpointState.COMPLETED:
            return existing, False
        if existing is not None:
            raise conflict(
                "checkpoint.deleting",
                f"checkpoint {checkpoint_id}, which has the same content, is being deleted; import it again when "
                "`gangline checkpoint list` has lost it",
            )
        metadata = json.loads(metadata_json)
        document = write_document(metadata, {file.path: StoredFile(file.bytes, file.sha256) for file in announced})
        folder = ImportFolder(self._storage, checkpoint_id, announced)
        await self._store(folder, chunks, document)
        checkpoint = Checkpoint(
            id=checkpoint_id,
            trial_id="",
            experiment_id=0,
            batches_completed=steps_of(metadata),
            url=f"{self._storage.url.rstrip('/')}/{FOLDER}/{checkpoint_id}",
            file_bytes={file.path: file.bytes for file in announced},
            metadata_json=metadata_json,
            imported_as=name,
        )
        return await self._record(checkpoint, folder)

    async def _store(self, folder: ImportFolder, chunks: AsyncIterator[bytes], document: bytes) -> None:
        try:
            await asyncio.to_thread(folder.open)
            async for chunk in chunks:
                await asyncio.to_thread(folder.write, chunk)
            await asyncio.to_thread(folder.seal, document)
        finally:
            # Also for a call that was cancelled, because its client has gone: the thread ends by itself.
            await asyncio.shield(asyncio.to_thread(folder.close))

    async def _record(self, checkpoint: Checkpoint, folder: ImportFolder) -> tuple[Checkpoint, bool]:
        request = scheduler_pb2.SchedulerServiceImportCheckpointRequest(checkpoint=wire.to_proto(checkpoint))
        try:
            answer = await self._leader.change(self._caller, lambda scheduler: scheduler.ImportCheckpoint, request)
        except GanglineError as error:
            if error.effect is Effect.NONE and await self._has_no_record(checkpoint.id):
                await asyncio.to_thread(folder.withdraw)
            raise
        return wire.from_proto(Checkpoint, answer.checkpoint), answer.is_new

    async def _has_no_record(self, checkpoint_id: str) -> bool:
        """Whether etcd has no record of the checkpoint, which an import at another gateway may have made. False where
        etcd does not answer."""
        key = keys.checkpoint(checkpoint_id)
        try:
            await self._mirror.confirm(key)
        except GanglineError:
            return False
        return self._mirror.state.checkpoints.find(key) is None
