"""Lists and reads the output of trials in the storage: what their processes wrote into $GANGLINE_OUTPUT_DIR.

There is no record of these files: what is in the trial's folder is its output. A trial that runs again may replace
files meanwhile, each as a whole. Every user may read them, as checkpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from gangline.domain.storage.output import find_bad_path, is_unfinished, output_path_of
from gangline.errors import GanglineError, not_found
from services.gateway.mirror.caller import Caller
from services.gateway.storage.storage import Storage
from services.gateway.usecase.shared.following import in_thread
from services.gateway.usecase.shared.view import Views


class Outputs:
    def __init__(self, caller: Caller, storage: Storage, views: Views) -> None:
        self._caller = caller
        self._storage = storage
        self._views = views

    async def list(self, trial_id: str) -> Mapping[str, int]:
        """Returns the bytes of each file by its path, in the order of paths. Raises GanglineError `trial.not_found`."""
        await self._views.confirm(trial_id=trial_id)
        folder = output_path_of(self._views.trial(trial_id).id)
        sizes = await asyncio.to_thread(self._storage.sizes, folder)
        return {path: sizes[path] for path in sorted(sizes) if _is_output(path)}

    async def download(self, trial_id: str) -> AsyncIterator[tuple[str, bytes, int]]:
        """Yields each file's chunks one after another, with its path and the bytes of all files; an empty file has one
        empty chunk. Raises GanglineError `output.none`."""
        sizes = await self.list(trial_id)
        if not sizes:
            raise not_found(
                "output.none",
                f"trial {trial_id} has no output: files that its processes write into $GANGLINE_OUTPUT_DIR are kept "
                "when they end; its log says what was not kept",
            )
        total = sum(sizes.values())
        for path in sizes:
            is_first = True
            async for chunk in self._read(trial_id, path):
                yield path, chunk, total
                is_first = False
            if is_first:
                yield path, b"", total

    async def read_file(self, trial_id: str, path: str) -> AsyncIterator[bytes]:
        """Yields the chunks of one file. Raises GanglineError `trial.not_found`, `output.no_file`."""
        await self._views.confirm(trial_id=trial_id)
        trial = self._views.trial(trial_id)
        if not _is_output(path) or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise _no_file(trial_id, path)
        async for chunk in self._read(trial.id, path):
            yield chunk

    async def _read(self, trial_id: str, path: str) -> AsyncIterator[bytes]:
        place = f"{output_path_of(trial_id)}/{path}"
        try:
            async for chunk in in_thread(lambda: self._storage.chunks(place)):
                yield chunk
        except (FileNotFoundError, IsADirectoryError):
            raise _no_file(trial_id, path) from None


def _is_output(path: str) -> bool:
    return not is_unfinished(path) and not find_bad_path(path) and "\0" not in path


def _no_file(trial_id: str, path: str) -> GanglineError:
    return not_found("output.no_file", f"the output of trial {trial_id} has no file {path!r:.300}")
