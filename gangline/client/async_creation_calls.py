"""The twin of gangline.client.creation_calls for asyncio.

Written by scripts/generate_async_client.py from creation_calls.py. Change that file, then run `make async-client`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gangline.client.async_access import AsyncAccessMethods
from gangline.client.async_audit import AsyncAuditMethods
from gangline.client.async_connection import in_thread, in_thread_to_its_end, pause_for
from gangline.client.async_project import AsyncProjectMethods
from gangline.client.async_quota import AsyncQuotaMethods
from gangline.client.async_registry import AsyncRegistryMethods
from gangline.client.async_saved_view import AsyncSavedViewMethods
from gangline.client.attempts import say_create
from gangline.client.call_message import new_request_id
from gangline.client.record import Created
from gangline.client.submission import NO_OVERRIDES, ForkedExperiment, Submission, parse_with_seed, prepare_fork
from gangline.client.transfer.packing import CodeArchive
from gangline.client.transfer.unpacking import unpack_code
from gangline.domain.experiment import Experiment
from gangline.domain.search import SearchPreview
from gangline.domain.view import ExperimentView
from gangline.errors import Effect, ErrorKind, GanglineError
from gangline.protocol.rpc import CHUNK_BYTES
from gangline.protocol.wire import from_proto
from gangline.v1 import gateway_pb2 as pb

# A submit with these errors is repeated after another upload, for so long and after this pause.
_CODE_IS_GONE = ("code.deleting", "code.not_uploaded")
_CODE_SECONDS = 10.0
_CODE_PAUSE_SECONDS = 0.2


class AsyncCreationCalls(
    AsyncProjectMethods,
    AsyncRegistryMethods,
    AsyncSavedViewMethods,
    AsyncAccessMethods,
    AsyncQuotaMethods,
    AsyncAuditMethods,
):
    """Base of ExperimentCalls."""

    async def create_prepared(
        self, submission: Submission, request_id: str | None = None, *, is_open: bool = False
    ) -> Created:
        """Uploads and submits. request_id: as for `create_experiment`. is_open: an earlier call with this id may have
        created the experiment, so a failure of this call does not prove that there is none."""
        request_id = request_id or new_request_id()
        await self.upload_prepared(submission, request_id, is_open=is_open)
        return await self.submit_prepared(submission, request_id, is_open=is_open)

    async def upload_prepared(self, submission: Submission, request_id: str, *, is_open: bool = False) -> None:
        """Does the first half of `create_prepared`: uploads the code, and creates nothing."""
        try:
            await self.upload_code(submission.archive)
        except GanglineError as error:
            error.effect, error.request_id = Effect.UNKNOWN if is_open else Effect.NONE, request_id
            raise error.reworded(say_create(error)) from error

    async def submit_prepared(self, submission: Submission, request_id: str, *, is_open: bool = False) -> Created:
        """Does the second half of `create_prepared`: creates the experiment, whose code has been uploaded."""
        created = await self._submit_again(submission, request_id, is_open)
        return Created(created.experiment, tuple(dict.fromkeys([*submission.warnings, *created.warnings])))

    async def find_experiment(self, request_id: str) -> Experiment:
        """Returns the experiment that this request made. Raises GanglineError `request.not_found` when it has certainly
        made none so far, and one of kind UNAVAILABLE or TIMEOUT while that cannot be known."""
        request = pb.ListExperimentsRequest(request_id=request_id)
        answer = await self._connection.call(self._stub.ListExperiments, request)
        matches = [message for message in answer.experiments if message.request_id == request_id]
        if not matches:
            text = "this gateway is too old to find requests; look with: gangline experiment list"
            raise GanglineError("request.unanswered", text, ErrorKind.UNAVAILABLE)
        return from_proto(Experiment, matches[0])

    async def get_experiment(self, experiment_id: int) -> ExperimentView:
        """Returns an experiment with its trials. Raises GanglineError `experiment.not_found`."""
        answer = await self._connection.call(
            self._stub.GetExperiment, pb.GetExperimentRequest(experiment_id=experiment_id)
        )
        return from_proto(ExperimentView, answer.view)

    async def upload_code(self, archive: CodeArchive) -> None:
        def chunks() -> Iterable[pb.UploadCodeRequest]:
            yield pb.UploadCodeRequest(code_sha256=archive.sha256)
            for start in range(0, len(archive.payload), CHUNK_BYTES):
                chunk = archive.payload[start : start + CHUNK_BYTES]
                yield pb.UploadCodeRequest(chunk=chunk)
                self._on_progress("upload", start + len(chunk), len(archive.payload))

        await self._connection.call(self._stub.UploadCode, chunks)

    async def submit_experiment(self, config_json: str, code_sha256: str, request_id: str | None = None) -> Created:
        """Submits without checks of its own; the code must be uploaded already."""
        return await self._submit(config_json, code_sha256, request_id or new_request_id(), is_open=False)

    async def continue_experiment(
        self,
        experiment_id: int,
        overrides: Mapping[str, Any] = NO_OVERRIDES,
        request_id: str | None = None,
        *,
        code: str | Path | None = None,
    ) -> Created:
        """Goes on with the trial of an ended experiment, from its newest checkpoint. For its owner and for
        administrators. overrides: as for `fork_experiment`; hyperparameters, seed and searcher stay, except for its
        length. code: the folder of other code, such as with a mended bug; None for the code that it has.

        Raises GanglineError `config.*`, `code.*`, `experiment.not_ended`, `experiment.search` for one of several
        trials, `trial.no_checkpoint`, `auth.not_owner`, `experiment.not_found`.
        """
        code_sha256 = ""
        if code is not None:
            source = (await self.get_experiment(experiment_id)).experiment
            fork = await in_thread(prepare_fork, source, overrides, Path(code), self._on_progress)
            code_sha256 = await self._upload_fork(fork, source)
        request = pb.ContinueExperimentRequest(
            request_id=request_id or new_request_id(),
            experiment_id=experiment_id,
            overrides_json=json.dumps(dict(overrides)),
            code_sha256=code_sha256,
        )
        answer = await self._connection.call(self._stub.ContinueExperiment, request)
        return Created(from_proto(Experiment, answer.experiment), tuple(answer.warnings))

    async def fork_experiment(
        self,
        experiment_id: int,
        overrides: Mapping[str, Any] = NO_OVERRIDES,
        *,
        is_paused: bool = False,
        request_id: str | None = None,
        code: str | Path | None = None,
    ) -> Created:
        """Creates an experiment with the configuration and the code of another one, and a seed of its own. overrides:
        values by dotted keys, such as {"searcher.max_length.batches": 200}. code: the folder of other code.

        Raises GanglineError `config.*`, `code.*`, `experiment.not_found`.
        """
        source = (await self.get_experiment(experiment_id)).experiment
        folder = None if code is None else Path(code)
        fork = await in_thread(prepare_fork, source, overrides, folder, self._on_progress)
        created = await self._submit(
            fork.config_json,
            await self._upload_fork(fork, source),
            request_id or new_request_id(),
            is_open=False,
            template=source.template,
            is_paused=is_paused,
            forked_from=experiment_id,
        )
        return Created(created.experiment, tuple(dict.fromkeys([*fork.warnings, *created.warnings])))

    async def download_code(self, experiment_id: int, folder: str | Path, version: int = 0) -> int:
        """Writes the code of an experiment into a folder that is new or empty; returns the bytes of its files. For its
        owner and for administrators. version: counts from 1, the code with which it was created; 0 for the present
        code, which differs where it was continued with other code.

        Raises GanglineError `download.exists`, `download.broken`, `code.no_version`, `auth.not_owner`,
        `experiment.not_found`.
        """
        request = pb.DownloadCodeRequest(experiment_id=experiment_id, version=version)
        with tempfile.TemporaryFile() as archive:
            async for message in self._connection.stream_once(self._stub.DownloadCode, request):
                await in_thread_to_its_end(archive.write, message.chunk)
            return await in_thread_to_its_end(unpack_code, archive, Path(folder))

    async def _upload_fork(self, fork: ForkedExperiment, source: Experiment) -> str:
        """Returns the sha256 of the fork's code, which is stored when it has other code."""
        if fork.archive is None:
            return source.code_sha256
        await self.upload_code(fork.archive)
        return fork.archive.sha256

    async def preview_search(
        self,
        config_text: str,
        limit: int = 20,
        seed: int | None = None,
        template: str = "",
        overrides: Mapping[str, Any] = NO_OVERRIDES,
    ) -> SearchPreview:
        """Returns the trials that this configuration would make. limit: the most hyperparameter sets to return.

        seed, template, overrides: as for `create_experiment`. The seed of the answer, given to `create_experiment`,
        makes these very trials.
        """
        inherited = await self.inherit(config_text, template)
        config, _ = await in_thread(parse_with_seed, config_text, seed, inherited, overrides)
        request = pb.GatewayServicePreviewSearchRequest(config_json=config.model_dump_json(), limit=limit)
        return from_proto(SearchPreview, (await self._connection.call(self._stub.PreviewSearch, request)).preview)

    async def _submit_again(self, submission: Submission, request_id: str, is_open: bool) -> Created:
        """Submits. The code may have gone with a deleted experiment since its upload; then it is uploaded again."""
        give_up_at = time.monotonic() + _CODE_SECONDS
        while True:
            try:
                return await self._submit(
                    submission.config_json,
                    submission.archive.sha256,
                    request_id,
                    is_open=is_open,
                    template=submission.template,
                    is_paused=submission.is_paused,
                )
            except GanglineError as error:
                if error.code not in _CODE_IS_GONE or time.monotonic() >= give_up_at:
                    raise
            await pause_for(_CODE_PAUSE_SECONDS)
            await self.upload_code(submission.archive)

    async def _submit(
        self,
        config_json: str,
        code_sha256: str,
        request_id: str,
        *,
        is_open: bool,
        template: str = "",
        is_paused: bool = False,
        forked_from: int = 0,
    ) -> Created:
        request = pb.CreateExperimentRequest(
            request_id=request_id,
            config_json=config_json,
            code_sha256=code_sha256,
            template=template,
            paused=is_paused,
            forked_from=forked_from,
        )
        answer = await self._connection.call(self._stub.CreateExperiment, request, is_open=is_open)
        return Created(from_proto(Experiment, answer.experiment), tuple(answer.warnings))
