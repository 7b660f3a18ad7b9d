"""The twin of gangline.client.session for asyncio.

Written by scripts/generate_async_client.py from session.py. Change that file, then run `make async-client`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from gangline.client import async_cluster_handle as cluster_handle
from gangline.client import async_handle as handle
from gangline.client.async_connection import in_thread
from gangline.client.async_experiment_calls import AsyncExperimentCalls
from gangline.client.submission import NO_OVERRIDES, plan_task_text, prepare_submission, prepare_task, read_config
from gangline.domain.id import absent, check_checkpoint_id, find_by_prefix
from gangline.domain.state import TaskKind

# How many experiments one call lists.
# Experiments on one page of a listing.
PAGE_SIZE = 100


class AsyncClient(AsyncExperimentCalls):
    """A user's connection to a cluster.

    address: of a gateway, as "gpu1:8081", or of several with commas. The client uses one of them at a time, and another
    one when that one fails. address and token: gangline.login describes the defaults for None. retry_seconds:
    how long a call is retried while the cluster cannot take it; None takes GANGLINE_RETRY_SECONDS, else 10.
    on_progress: told of uploads and downloads.

    Every method raises GanglineError, with the cluster's own code and message where it has one. After a failed change,
    the error's `effect` states whether it is certain that nothing was changed. Its `request_id` makes another call
    safe: a change is made once for each id.
    """

    async def create_experiment(
        self,
        config: str | Path | Mapping[str, Any],
        code: str | Path | None = None,
        request_id: str | None = None,
        *,
        seed: int | None = None,
        template: str = "",
        overrides: Mapping[str, Any] = NO_OVERRIDES,
        is_paused: bool = False,
    ) -> handle.AsyncExperiment:
        """Checks, packs, uploads and submits. config: a file of YAML, its text, or the settings as a mapping. code: the
        folder of the trial; default: the folder of the file. seed: the experiment's, where the configuration leaves it
        open. template: whose settings the configuration overrides; empty for the default of its project. overrides:
        values by dotted keys, such as {"searcher.max_length.batches": 200}, which win over the configuration.
        is_paused: nothing starts before the experiment is activated.

        A call with a request_id that was used before returns the experiment of the earlier call. Raises GanglineError
        `config.*`, `code.*`.
        """
        text, folder = await in_thread(read_config, config, code)
        inherited = await self.inherit(text, template)
        submission = await in_thread(
            prepare_submission,
            text,
            folder,
            self._on_progress,
            seed=seed,
            inherited=inherited,
            overrides=overrides,
            is_paused=is_paused,
        )
        created = await self.create_prepared(submission, request_id)
        return handle.AsyncExperiment(self, created.experiment, created.warnings)

    async def start_task(
        self,
        kind: TaskKind | str,
        command: Mapping[str, Any],
        code: str | Path | None = None,
        request_id: str | None = None,
        *,
        template: str = "",
    ) -> handle.AsyncExperiment:
        """Starts a command, a shell or a notebook, which is an experiment of one trial with one attempt.

        kind: such as "command". command: its configuration with Determined's names, such as
        {"entrypoint": ["nvidia-smi"], "resources": {"slots": 1}}. code: a folder whose files it gets; None for none.
        Listings of experiments leave it out unless their filter names its kind. Raises GanglineError `task.*`,
        `config.*`, `code.*`.
        """
        text = await in_thread(plan_task_text, TaskKind(str(kind).upper()), command)
        inherited = await self.inherit(text, template)
        folder = None if code is None else Path(code)
        submission = await in_thread(prepare_task, text, folder, self._on_progress, inherited=inherited)
        created = await self.create_prepared(submission, request_id)
        return handle.AsyncExperiment(self, created.experiment, created.warnings)

    async def experiment(self, experiment_id: int) -> handle.AsyncExperiment:
        """Returns the experiment as an object with methods. Raises GanglineError `experiment.not_found`."""
        view = await self.get_experiment(experiment_id)
        return handle.AsyncExperiment(self, view.experiment)

    async def experiments(
        self, *, before_id: int = 0, archived: bool | None = False
    ) -> AsyncIterator[handle.AsyncExperiment]:
        """Yields experiments, newest first, and lists them in pages as they are read. The arguments are those of
        `list_experiments`."""
        while True:
            page = await self.list_experiments(PAGE_SIZE, before_id, archived)
            for record in page:
                yield handle.AsyncExperiment(self, record)
            if len(page) < PAGE_SIZE:
                return
            before_id = page[-1].id

    async def trial(self, trial_id: str) -> handle.AsyncTrial:
        """Returns the trial, such as "7.1", as an object with methods. Raises GanglineError `id.trial`,
        `experiment.not_found`, `trial.not_found`."""
        record = await self.find_trial(trial_id)
        return handle.AsyncTrial(self, record)

    async def checkpoint(self, checkpoint_id: str) -> handle.AsyncCheckpoint:
        """Returns the checkpoint as an object with methods. Raises GanglineError `checkpoint.id`,
        `checkpoint.not_found`."""
        check_checkpoint_id(checkpoint_id)
        records = await self.list_checkpoints(checkpoint_id=checkpoint_id)
        if not records:
            near = find_by_prefix(checkpoint_id, (record.id for record in await self.list_checkpoints()))
            raise absent("checkpoint", checkpoint_id, near)
        return handle.AsyncCheckpoint(self, records[0])

    async def agents(self) -> list[cluster_handle.AsyncAgent]:
        """Returns the agents as objects with methods."""
        views = await self.list_agents()
        return [cluster_handle.AsyncAgent(self, view) for view in views]

    async def jobs(self) -> list[cluster_handle.AsyncJob]:
        """Returns the trials that run or wait, in the order of `list_tasks`, as objects with methods."""
        tasks = await self.list_tasks()
        return [cluster_handle.AsyncJob(self, task) for task in tasks]
