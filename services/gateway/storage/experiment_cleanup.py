"""Deletes the files and the history of experiments that are being deleted.

The stage in an experiment's record says what is to be deleted; services/scheduler/transition/removal.py has the stages.
Every gateway does all of it, because deleting what is gone changes nothing, and reports a stage when all of it is gone.
So a gateway that dies in the middle, a storage that is away and a leader that changes only delay the deletion.

The checkpoints of the experiment are deleted by cleanup.py, because they carry its mark. One task of this module lives
as long as the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial as bind
from itertools import product

import structlog

from gangline.domain.experiment import Experiment
from gangline.domain.id import parse_allocation_id, parse_trial_id
from gangline.domain.state import DeletionStage
from gangline.domain.storage.output import STORAGE_FOLDER as OUTPUT_FOLDER
from gangline.domain.storage.partial import REMOVED_PREFIX, parse_partial
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.gateway.mirror import metrics
from services.gateway.mirror.mirror import DELETION_NOTIFICATION, Watched
from services.gateway.storage.call_deadline import DeadlinedCalls
from services.gateway.storage.cleanup import FOLDER, clear
from services.gateway.storage.storage import Storage, code_marks, code_path

TENSORBOARD_FOLDER = "tensorboard"
# Deletions at a time, and the limits of their calls to the storage; see cleanup.py.
NUM_THREADS = 2
DELETE_SECONDS = 300.0
MOST_HUNG = 4
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
# Pause when nothing is due.
IDLE_SECONDS = 3600.0
# How long a report waits until the mirror shows its effect.
MIRROR_SECONDS = 5.0

log = structlog.get_logger(__name__)

Confirm = Callable[
    [scheduler_pb2.ConfirmExperimentDeletedRequest], Awaitable[scheduler_pb2.ConfirmExperimentDeletedResponse]
]
EraseHistory = Callable[[int, Sequence[str]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class FailedDeletion:
    """Records the failed tries of one deletion."""

    again_at: float  # time of the next try, by the event loop's clock
    num_failures: int
    problem: str


class ExperimentCleanup:
    """Deletes in the background. Call `start` and `stop` once each.

    confirm: reports the end of a stage to the leading scheduler. erase_history: erases the rows of an experiment and
    its trials. checkpoint_problem: returns why checkpoints cannot be deleted now; "" when they can.
    """

    def __init__(
        self,
        mirror: Watched,
        confirm: Confirm,
        storage: Storage,
        erase_history: EraseHistory,
        checkpoint_problem: Callable[[], str],
    ) -> None:
        self._mirror = mirror
        self._confirm = confirm
        self._storage = storage
        self._erase_history = erase_history
        self._checkpoint_problem = checkpoint_problem
        self._calls = DeadlinedCalls(NUM_THREADS, DELETE_SECONDS, MOST_HUNG, LONGEST_BACKOFF_SECONDS)
        self._failures: dict[int, FailedDeletion] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="experiment cleanup")

    async def stop(self) -> None:
        """Stops the task. A thread that is deleting continues until it has finished or the process ends."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def problem_of(self, experiment_id: int) -> str:
        """Returns why the deletion of this experiment waits; "" while it makes progress."""
        failure = self._failures.get(experiment_id)
        if failure is not None:
            return failure.problem
        return self._checkpoint_problem() if any(self._mirror.state.checkpoints.of(experiment_id)) else ""

    async def _run(self) -> None:
        with self._mirror.changes.listen(DELETION_NOTIFICATION) as notification:
            while True:
                notification.clear()
                seconds = FIRST_BACKOFF_SECONDS
                try:
                    await asyncio.gather(*(self._try_stage(experiment) for experiment in self._due()))
                    seconds = self._seconds_to_next()
                except Exception:
                    # The top of a long-lived task: a bug here must not keep all later deletions from being made.
                    metrics.CLEANUP_FAILURES.inc()
                    log.exception("deleting experiments failed")
                await notification.wait(seconds)

    def _due(self) -> list[Experiment]:
        now, state = asyncio.get_running_loop().time(), self._mirror.state
        deleting_ids = {experiment.id for experiment in state.deleting.values()}
        self._failures = {id_: failure for id_, failure in self._failures.items() if id_ in deleting_ids}
        return [
            experiment
            for experiment in state.deleting.values()
            if experiment.id not in self._failures or self._failures[experiment.id].again_at <= now
        ]

    async def _try_stage(self, experiment: Experiment) -> None:
        try:
            await self._delete_stage(experiment)
        except Exception as failure:  # noqa: BLE001  a storage raises whatever its library raises; it is tried again
            metrics.CLEANUP_FAILURES.inc()
            log.warning("cannot delete an experiment, trying again", experiment_id=experiment.id, reason=str(failure))
            self._note_failure(experiment.id, failure)
        else:
            self._failures.pop(experiment.id, None)

    async def _delete_stage(self, experiment: Experiment) -> None:
        state = self._mirror.state
        match experiment.deletion:
            case DeletionStage.FILES:
                # The last checkpoint to go rings the notification again.
                if any(state.checkpoints.of(experiment.id)):
                    return
                trial_ids = [trial.id for trial in state.trials.of(experiment.id)]
                cluster_id = state.cluster.id if state.cluster is not None else ""
                await self._calls.run(bind(self._erase_files, experiment.id, trial_ids, cluster_id))
                await self._erase_history(experiment.id, trial_ids)
            case DeletionStage.CODE:
                await self._calls.run(bind(self._erase_code, experiment))
            case _:
                # The leader's turn.
                return
        await self._report(experiment)

    def _erase_files(self, experiment_id: int, trial_ids: Sequence[str], cluster_id: str) -> None:
        """Deletes output and TensorBoard files, and what attempts have written and not committed; blocks."""
        for folder, trial_id in product((TENSORBOARD_FOLDER, OUTPUT_FOLDER), trial_ids):
            self._storage.remove_folder(f"{folder}/{trial_id}", f"{folder}/{REMOVED_PREFIX}{trial_id}")
        partials = {partial for name in self._storage.names(FOLDER) if (partial := parse_partial(name)) is not None}
        for partial in partials:
            trial_id, _ = parse_allocation_id(partial.writer.allocation_id)
            if parse_trial_id(trial_id)[0] == experiment_id and partial.writer.cluster_id == cluster_id:
                clear(self._storage, partial)

    def _erase_code(self, experiment: Experiment) -> None:
        """Deletes the code archives; blocks. The stage is read once more, because after its end a user may upload the
        same code again."""
        present = self._mirror.state.deleting.get(keys.experiment(experiment.id))
        if present is not None and present.deletion is DeletionStage.CODE:
            for code_sha256 in present.code_sha256s:
                self._storage.remove_folder(code_marks(code_sha256))
                self._storage.remove_file(code_path(code_sha256))

    async def _report(self, experiment: Experiment) -> None:
        assert experiment.deletion is not None
        request = scheduler_pb2.ConfirmExperimentDeletedRequest(experiment_id=experiment.id)
        request.stage = wire.enum_number(experiment.deletion)  # type: ignore[assignment]  # protobuf takes the number
        answer = await self._confirm(request)
        log.info("files of an experiment are deleted", experiment_id=experiment.id, stage=str(experiment.deletion))
        await self._mirror.wait_for_revision(answer.revision, MIRROR_SECONDS)

    def _note_failure(self, experiment_id: int, failure: Exception) -> None:
        earlier = self._failures.get(experiment_id)
        num_failures = earlier.num_failures if earlier is not None else 0
        seconds = min(FIRST_BACKOFF_SECONDS * 2 ** min(num_failures, 16), LONGEST_BACKOFF_SECONDS)
        problem = failure.message if isinstance(failure, GanglineError) else f"{type(failure).__name__}: {failure}"
        again_at = asyncio.get_running_loop().time() + seconds
        self._failures[experiment_id] = FailedDeletion(again_at, num_failures + 1, problem)

    def _seconds_to_next(self) -> float:
        now = asyncio.get_running_loop().time()
        waits = (failure.again_at - now for failure in self._failures.values())
        return max(0.0, min(waits, default=IDLE_SECONDS))
