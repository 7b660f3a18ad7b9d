"""Lists checkpoints, reads their files from the storage, and has some deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from gangline.config.layer.retention import check_retention_change
from gangline.domain.access import Role
from gangline.domain.experiment import METADATA_FILE, Checkpoint, RetentionChange
from gangline.domain.id import absent, check_num_checkpoints, find_by_prefix, parse_trial_id
from gangline.domain.state import CheckpointState
from gangline.errors import conflict, invalid, not_found
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.gateway.audit.attempt import current_attempt
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.sight import check_change, sight_of
from services.gateway.storage.import_folder import FOLDER
from services.gateway.storage.storage import Storage
from services.gateway.usecase.shared.following import in_thread
from services.gateway.usecase.shared.view import Views


class Checkpoints:
    def __init__(self, caller: Caller, mirror: Watched, leader: Leader, storage: Storage, views: Views) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader
        self._storage = storage
        self._views = views

    async def list(self, experiment_id: int = 0, checkpoint_id: str = "") -> Sequence[Checkpoint]:
        """Returns checkpoints, the oldest first. experiment_id: 0 for all. checkpoint_id: only this one, if it
        exists."""
        if experiment_id:
            await self._views.confirm(experiment_id=experiment_id)
            self._views.experiment(experiment_id)
        table = self._mirror.state.checkpoints
        checkpoints = table.of(experiment_id) if experiment_id else table.all()
        if checkpoint_id:
            checkpoint = table.find(keys.checkpoint(checkpoint_id))
            return [checkpoint] if checkpoint is not None and experiment_id in (0, checkpoint.experiment_id) else []
        return sorted(checkpoints, key=lambda checkpoint: (checkpoint.created_at, checkpoint.id))

    def select(self, owner: str = "", text: str = "") -> tuple[Sequence[Checkpoint], dict[int, str]]:
        """Returns checkpoints, the oldest first, and the owners of their experiments by id.

        owner: only those of this user's experiments. text: a part of the checkpoint's or the trial's id, or of the
        experiment's name, in upper or lower case.
        """
        state, wanted = self._mirror.state, text.lower()
        experiments = {experiment.id: experiment for experiment in state.experiments.all()}
        found = []
        for checkpoint in state.checkpoints.all():
            experiment = experiments.get(checkpoint.experiment_id)
            of_owner, name = (experiment.owner, experiment.name) if experiment is not None else ("", "")
            is_text_in = any(wanted in each.lower() for each in (checkpoint.id, checkpoint.trial_id, name))
            if owner in ("", of_owner) and is_text_in:
                found.append(checkpoint)
        owners = {number: experiment.owner for number, experiment in experiments.items()}
        return sorted(found, key=lambda checkpoint: (checkpoint.created_at, checkpoint.id)), owners

    def find(self, checkpoint_id: str) -> Checkpoint:
        """Returns one checkpoint. Raises GanglineError `checkpoint.not_found`."""
        checkpoint = self._mirror.state.checkpoints.find(keys.checkpoint(checkpoint_id))
        if checkpoint is None:
            raise absent("checkpoint", checkpoint_id, self._find_near(checkpoint_id))
        return checkpoint

    async def delete(self, checkpoint_ids: Sequence[str]) -> Sequence[Checkpoint]:
        """Deletes all of the checkpoints or none. Returns them as they are marked; their files are deleted soon after.

        Raises GanglineError `checkpoint.none_named`, `checkpoint.too_many`, `auth.not_owner`, and the errors of the
        leader.
        """
        if not checkpoint_ids:
            raise invalid("checkpoint.none_named", "name the checkpoints that are to be deleted")
        checkpoint_ids = tuple(dict.fromkeys(checkpoint_ids))
        attempt = current_attempt()
        if attempt is not None:
            attempt.name_objects("checkpoint", checkpoint_ids)
        # Before the ids are looked up, which may ask etcd for each.
        check_num_checkpoints(checkpoint_ids)
        for checkpoint_id in checkpoint_ids:
            # The leader refuses one that is not there.
            checkpoint = await self._confirmed(checkpoint_id)
            if checkpoint is not None:
                await self._check_owner(checkpoint)
            elif near := self._find_near(checkpoint_id):
                raise absent("checkpoint", checkpoint_id, near)
        request = scheduler_pb2.SchedulerServiceDeleteCheckpointsRequest(checkpoint_ids=checkpoint_ids)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.DeleteCheckpoints, request)
        return [wire.from_proto(Checkpoint, message) for message in answer.checkpoints]

    def _find_near(self, checkpoint_id: str) -> Sequence[str]:
        ids = (checkpoint.id for checkpoint in self._mirror.state.checkpoints.all())
        return find_by_prefix(checkpoint_id, ids)

    async def _confirmed(self, checkpoint_id: str) -> Checkpoint | None:
        """Returns the checkpoint; None if there certainly is none. Raises GanglineError `gateway.behind`."""
        key = keys.checkpoint(checkpoint_id)
        if (checkpoint := self._mirror.state.checkpoints.find(key)) is None:
            await self._mirror.confirm(key)
            checkpoint = self._mirror.state.checkpoints.find(key)
        return checkpoint

    async def _check_owner(self, checkpoint: Checkpoint) -> None:
        await self._views.confirm(experiment_id=checkpoint.experiment_id)
        experiment = self._mirror.state.experiments.find(keys.experiment(checkpoint.experiment_id))
        action = f"delete checkpoint {checkpoint.id}"
        if experiment is not None:
            check_change(self._mirror, self._caller, experiment, action)
            return
        rights = sight_of(self._mirror.state, self._caller.principal).rights
        if not checkpoint.trial_id and rights.cluster_role is not Role.ADMIN:
            self._caller.check_owner(checkpoint.owner, action)

    async def preview_retention(self, experiment_id: int, change: RetentionChange) -> Sequence[Checkpoint]:
        """Returns the checkpoints that a change of the policy would delete, by trial and age. It changes nothing.

        Raises GanglineError `retention.*`, and the errors of the leader.
        """
        check_retention_change(change)
        await self._views.confirm(experiment_id=experiment_id)
        # The leader answers for an experiment that is being deleted.
        if self._mirror.state.experiments.find(keys.experiment(experiment_id)) is None:
            raise absent("experiment", experiment_id)
        request = scheduler_pb2.SchedulerServicePreviewRetentionRequest(
            experiment_id=experiment_id, retention=wire.to_proto(change)
        )
        answer = await self._leader.call(lambda scheduler: scheduler.PreviewRetention, request)
        table = self._mirror.state.checkpoints
        found = (table.find(keys.checkpoint(checkpoint_id)) for checkpoint_id in answer.checkpoint_ids)
        # A checkpoint that the mirror does not have is too new to be listed, or gone already.
        return sorted(
            (checkpoint for checkpoint in found if checkpoint is not None),
            key=lambda checkpoint: (parse_trial_id(checkpoint.trial_id), checkpoint.created_at, checkpoint.id),
        )

    async def download(self, checkpoint_id: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yields each file's chunks one after another, with its path; an empty file has one empty chunk. The manifest
        comes last, so that a folder that has it has everything."""
        checkpoint = self.find(checkpoint_id)
        for path in (*sorted(checkpoint.file_bytes), METADATA_FILE):
            is_first = True
            async for chunk in self.read_file(checkpoint_id, path):
                yield path, chunk
                is_first = False
            # The file is empty; its one empty chunk makes the receiver create it.
            if is_first:
                yield path, b""

    async def read_file(self, checkpoint_id: str, path: str) -> AsyncIterator[bytes]:
        checkpoint = self.find(checkpoint_id)
        if checkpoint.state is CheckpointState.DELETING:
            raise conflict("checkpoint.deleting", f"checkpoint {checkpoint_id} is being deleted; use another one")
        if path not in checkpoint.file_bytes and path != METADATA_FILE:
            raise not_found("checkpoint.no_file", f"checkpoint {checkpoint_id} has no file {path!r}")
        folder = await asyncio.to_thread(self._storage.locate, checkpoint.url)
        if folder != f"{FOLDER}/{checkpoint.id}":
            raise conflict(
                "checkpoint.place",
                f"the record of checkpoint {checkpoint_id} names {checkpoint.url}, which is not its own folder "
                f"{FOLDER}/{checkpoint_id} in the storage; delete it",
            )
        place = f"{folder}/{path}"
        try:
            async for chunk in in_thread(lambda: self._storage.chunks(place)):
                yield chunk
        except FileNotFoundError:
            raise not_found(
                "checkpoint.missing",
                f"file {path} of checkpoint {checkpoint_id} is gone from {checkpoint.url}; was the folder cleaned up?",
            ) from None
