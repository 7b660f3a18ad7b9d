"""Reads the TensorBoard files of trials from the storage, only what a caller does not have yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

from gangline.domain.id import parse_trial_id
from gangline.errors import GanglineError, invalid
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.storage.storage import Storage
from services.gateway.usecase.shared.following import in_thread
from services.gateway.usecase.shared.view import Views

FOLDER = "tensorboard"
# In the names of files to which TensorBoard's writers only append. Any other file is sent whole when it has changed.
EVENT_FILE = "tfevents"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file."""

    path: str  # begins with the id of the trial
    offset: int  # place of the content in the file, in bytes
    content: bytes


class Tensorboard:
    def __init__(self, caller: Caller, mirror: Watched, storage: Storage, views: Views) -> None:
        self._caller = caller
        self._mirror = mirror
        self._storage = storage
        self._views = views

    async def download(
        self, experiment_id: int, trial_id: str, num_bytes_by_path: Mapping[str, int]
    ) -> AsyncIterator[Piece]:
        """Yields what has been added, file by file. num_bytes_by_path: what the caller has.

        Raises GanglineError `experiment.not_found`, `trial.not_found` or `id.trial`.
        """
        if trial_id and parse_trial_id(trial_id)[0] != experiment_id:
            raise invalid("id.trial", f"trial {trial_id} is not one of experiment {experiment_id}")
        await self._views.confirm(experiment_id=experiment_id, trial_id=trial_id)
        self._views.experiment(experiment_id)
        trials = [self._views.trial(trial_id)] if trial_id else self._mirror.state.trials.of(experiment_id)
        for trial in sorted(trials, key=lambda trial: trial.number):
            sizes = await asyncio.to_thread(self._storage.sizes, f"{FOLDER}/{trial.id}")
            for name, size in sizes.items():
                path = f"{trial.id}/{name}"
                num_bytes = num_bytes_by_path.get(path, -1)
                if size != num_bytes:
                    offset = num_bytes if EVENT_FILE in name and 0 <= num_bytes < size else 0
                    async for piece in self._read(path, offset, size):
                        yield piece

    async def _read(self, path: str, offset: int, size: int) -> AsyncIterator[Piece]:
        """Yields a file up to the size at which it was listed; the rest follows at the next call. A file that is gone
        meanwhile is left out."""

        def chunks() -> Iterator[bytes]:
            # A folder of the path may have become a link since it was listed.
            place = self._storage.locate(f"{self._storage.url.rstrip('/')}/{FOLDER}/{path}")
            return self._storage.chunks(place, offset)

        at = offset
        try:
            async for chunk in in_thread(chunks):
                content = chunk[: size - at]
                yield Piece(path, at, content)
                at += len(content)
                if at >= size:
                    return
        except (FileNotFoundError, GanglineError):
            return
        if at == offset:
            yield Piece(path, offset, b"")
