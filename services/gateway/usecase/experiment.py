"""Creates, lists, reads, watches and changes experiments, kills trials and has them traced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace

from gangline.config import check_config, check_patterns, check_resource_change, fork_config
from gangline.config.layer.experiment_text import check_text_change
from gangline.config.layer.retention import check_retention_change
from gangline.config.searcher import MAX_PREVIEWED
from gangline.domain.document import read_document
from gangline.domain.experiment import (
    EVERY_EXPERIMENT,
    Experiment,
    ExperimentFilter,
    QueueMove,
    ResourceChange,
    RetentionChange,
    TextChange,
    Trial,
)
from gangline.domain.search import SearchEvent, SearchOperation, SearchPreview
from gangline.domain.settled.reading import settle_values
from gangline.domain.state import ExperimentAction, State
from gangline.domain.trace import TraceOrder, check_batches
from gangline.domain.view import ExperimentProgress, ExperimentView, TrialView
from gangline.errors import GanglineError, invalid, not_found
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.gateway.leader.leader_client import Leader, read_experiment, request_id_of
from services.gateway.leader.submitter import Submitter
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import LEADER_NOTIFICATION, Watched
from services.gateway.mirror.sight import check_change, sight_of
from services.gateway.usecase.code import Code
from services.gateway.usecase.pace import find_pace
from services.gateway.usecase.shared.following import Following
from services.gateway.usecase.shared.parsing import off_loop, read_text
from services.gateway.usecase.shared.view import Views, measure_progress

# Experiments in one listing.
DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
# A watcher gets at most ten views a second. Without being woken it checks once a second, for reasons of waiting trials
# and for records that other gateways have stored.
MIN_INTERVAL_SECONDS = 0.1
LOOK_AGAIN_SECONDS = 1.0
# The longest wait of a call for an event of a search.
MAX_WAIT_SECONDS = 20.0

ExperimentChange = ExperimentAction | ResourceChange | QueueMove | TextChange | RetentionChange


class Experiments:
    def __init__(
        self,
        caller: Caller,
        mirror: Watched,
        leader: Leader,
        submitter: Submitter,
        *,
        views: Views,
        code: Code,
        following: Following,
    ) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader
        self._submitter = submitter
        self._views = views
        self._code = code
        self._following = following

    async def create(
        self,
        config_json: str,
        code_sha256: str,
        template: str = "",
        *,
        is_paused: bool = False,
        forked_from: int = 0,
    ) -> tuple[Experiment, list[str]]:
        """Returns the experiment and the scheduler's warnings. The same request id gives the same experiment again.
        template: the one that the configuration includes. forked_from: the experiment with which it begins, for the
        record; 0 for none."""
        request_id = request_id_of(self._caller)
        config = await read_text(check_config, config_json)
        if config.log_policies:
            await off_loop(check_patterns, config)
        parent = self._views.experiment(forked_from) if forked_from else None
        num_deleted = await self._code.check_stored(code_sha256, parent)
        request = scheduler_pb2.SubmitExperimentRequest(
            request_id=request_id,
            owner=self._caller.name,
            config_json=config_json,
            code_sha256=code_sha256,
            template=template,
            num_deleted_experiments=num_deleted,
            paused=is_paused,
            forked_from=forked_from,
        )
        with self._leader.recording(request) as change:
            try:
                change.answer = answer = await self._submitter.submit(request)
            except GanglineError as error:
                error.request_id = request_id
                raise
        await self._leader.settle(answer.revision)
        return read_experiment(answer.experiment), list(answer.warnings)

    async def find(self, request_id: str) -> Experiment:
        """Returns the experiment that this request made. Raises GanglineError `request.not_found` when it certainly
        made none so far, and one of kind UNAVAILABLE while that cannot be known."""
        request = scheduler_pb2.FindExperimentRequest(request_id=request_id)
        answer = await self._leader.call(lambda scheduler: scheduler.FindExperiment, request)
        if not answer.HasField("experiment"):
            raise _made_none(request_id)
        await self._leader.settle(answer.revision)
        experiment = read_experiment(answer.experiment)
        if not sight_of(self._mirror.state, self._caller.principal).sees(experiment):
            raise _made_none(request_id)
        return experiment

    async def kill(self, experiment_id: int) -> Experiment:
        request = scheduler_pb2.SchedulerServiceKillExperimentRequest(experiment_id=experiment_id)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.KillExperiment, request)
        return read_experiment(answer.experiment)

    async def update(self, experiment_id: int, changes: Sequence[ExperimentChange | None]) -> Experiment:
        """Pauses, activates or cancels the experiment, changes its resources, its texts or what it keeps, or moves it
        in its queue.

        changes: exactly one, which is None for an action that this version does not know.
        """
        change = _only(changes)
        request = scheduler_pb2.SchedulerServiceUpdateExperimentRequest(experiment_id=experiment_id)
        match change:
            case ExperimentAction():
                request.action = wire.enum_number(change)  # type: ignore[assignment]  # protobuf takes the number
            case ResourceChange():
                check_resource_change(change)
                request.resources.CopyFrom(wire.to_proto(change))
            case QueueMove():
                request.move.CopyFrom(wire.to_proto(change))
            case TextChange():
                check_text_change(change)
                request.texts.CopyFrom(wire.to_proto(change))
            case RetentionChange():
                check_retention_change(change)
                await self._views.confirm(experiment_id=experiment_id)
                experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
                # The leader answers for an experiment that does not exist.
                if experiment is not None:
                    check_change(
                        self._mirror, self._caller, experiment, f"change what experiment {experiment_id} keeps"
                    )
                request.retention.CopyFrom(wire.to_proto(change))
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.UpdateExperiment, request)
        return read_experiment(answer.experiment)

    async def resume(
        self,
        experiment_id: int,
        overrides_json: str,
        code_sha256: str = "",
    ) -> tuple[Experiment, list[str]]:
        """Goes on with the trial of an ended experiment, from its newest checkpoint. Returns the experiment, and
        warnings. A second call with the same request id changes nothing.

        overrides_json: new values of its configuration by dotted keys; empty for none. code_sha256: of other code,
        which has been uploaded; empty for the code that it has. Raises GanglineError `auth.not_owner`,
        `code.not_uploaded`, and the errors of the leader.
        """
        await self._views.confirm(experiment_id=experiment_id)
        experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
        # The leader answers for an experiment that does not exist.
        if experiment is not None:
            check_change(self._mirror, self._caller, experiment, f"continue experiment {experiment_id}")
            if overrides_json:
                await off_loop(_check_new_patterns, experiment.config_json, overrides_json)
        request = scheduler_pb2.SchedulerServiceContinueExperimentRequest(
            experiment_id=experiment_id, overrides_json=overrides_json, code_sha256=code_sha256
        )
        if code_sha256:
            request.num_deleted_experiments = await self._code.check_stored(code_sha256)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.ContinueExperiment, request)
        return read_experiment(answer.experiment), list(answer.warnings)

    async def search_events(
        self, experiment_id: int, num_known: int, wait_seconds: float
    ) -> tuple[list[SearchEvent], bool]:
        """Returns the events of a search behind the first `num_known` ones, and whether the search takes no more
        operations. Waits so long for an event, if there is none."""
        await self._views.confirm(experiment_id=experiment_id)
        # The leader asks for no user.
        self._views.experiment(experiment_id)
        deadline = asyncio.get_running_loop().time() + min(max(0.0, wait_seconds), MAX_WAIT_SECONDS)
        with self._following.listen(experiment_id) as changed:
            while not self._has_news(experiment_id, num_known):
                changed.clear()
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                await self._following.wait(changed, left)
        request = scheduler_pb2.SchedulerServiceGetSearchEventsRequest(experiment_id=experiment_id, num_known=num_known)
        answer = await self._leader.call(lambda scheduler: scheduler.GetSearchEvents, request)
        events = [wire.from_proto(SearchEvent, event) for event in answer.events]
        # Its role may have been taken meanwhile.
        is_over = self._is_over(experiment_id)
        return events, answer.search.is_shut_down or is_over

    def _has_news(self, experiment_id: int, num_known: int) -> bool:
        search = self._mirror.state.searches.find(keys.search(experiment_id))
        return search is None or search.num_events > num_known or self._is_over(experiment_id)

    def _is_over(self, experiment_id: int) -> bool:
        return self._views.experiment(experiment_id).state in (State.STOPPING, State.TERMINAL)

    async def post_operations(
        self,
        experiment_id: int,
        post_number: int,
        operations: Sequence[SearchOperation],
    ) -> None:
        """Has the operations of a custom search carried out. post_number: how many posts came before it. Raises
        GanglineError `auth.not_owner`, and the errors of the leader."""
        await self._views.confirm(experiment_id=experiment_id)
        experiment = self._views.experiment(experiment_id)
        check_change(self._mirror, self._caller, experiment, f"run the search of experiment {experiment_id}")
        request = scheduler_pb2.SchedulerServicePostSearchOperationsRequest(
            experiment_id=experiment_id,
            post_number=post_number,
            operations=[wire.to_proto(operation) for operation in operations],
        )
        await self._leader.change(self._caller, lambda scheduler: scheduler.PostSearchOperations, request)

    async def kill_trial(self, trial_id: str) -> Trial:
        """Kills one trial; the others of its experiment continue."""
        request = scheduler_pb2.SchedulerServiceKillTrialRequest(trial_id=trial_id)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.KillTrial, request)
        return wire.from_proto(Trial, answer.trial)

    async def profile_trial(self, trial_id: str, batches: int) -> TraceOrder:
        """Has so many of the trial's next batches traced. A later order replaces one that has not begun."""
        check_batches(batches)
        request = scheduler_pb2.ProfileTrialRequest(trial_id=trial_id, batches=batches)
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.ProfileTrial, request)
        return wire.from_proto(TraceOrder, answer.order)

    async def preview_search(self, config_json: str, limit: int) -> SearchPreview:
        """Returns the trials that this configuration would make. limit: most trials whose hyperparameters are
        included."""
        config = await off_loop(check_config, config_json)
        if not 0 <= limit <= MAX_PREVIEWED:
            raise invalid("request.limit", f"limit is {limit}; give 0 to {MAX_PREVIEWED}")
        request = scheduler_pb2.PreviewSearchRequest(config_json=config_json, limit=limit)
        answer = await self._leader.call(lambda scheduler: scheduler.PreviewSearch, request)
        preview = wire.from_proto(SearchPreview, answer.preview)
        state = self._mirror.state
        trial_id, seconds = find_pace(settle_values(config), preview.unit, state.experiments.all(), state.trials.of)
        return replace(preview, pace_trial_id=trial_id, seconds_per_unit=seconds)

    def list(
        self,
        limit: int = 0,
        before_id: int = 0,
        archived: bool | None = None,
        *,
        project_ids: Collection[int] | None = None,
        wanted: ExperimentFilter = EVERY_EXPERIMENT,
        offset: int = 0,
    ) -> tuple[list[Experiment], int]:
        """Returns a page of experiments, the newest first, and how many there are. limit: 0 for the default. before_id:
        0 to begin with the newest. archived: only archived ones, or only the others; None for both. project_ids: only
        those in these projects; None for all. wanted: further conditions. offset: how many to leave out."""
        if not 0 <= limit <= MAX_LIMIT:
            raise invalid("request.limit", f"limit is {limit}; give 1 to {MAX_LIMIT}, or 0 for {DEFAULT_LIMIT}")
        newest_first = sorted(self._mirror.state.experiments.all(), key=lambda experiment: -experiment.id)
        matching = [
            experiment
            for experiment in newest_first
            if (not before_id or experiment.id < before_id)
            and archived in (None, experiment.archived)
            and (project_ids is None or experiment.home_id in project_ids)
            and wanted.matches(experiment)
        ]
        return matching[offset : offset + (limit or DEFAULT_LIMIT)], len(matching)

    def progress(self, experiments: Sequence[Experiment]) -> Sequence[ExperimentProgress]:
        """Returns how far each of these experiments is, from the mirror alone."""
        state = self._mirror.state
        return tuple(
            measure_progress(
                experiment,
                state.searches.find(keys.search(experiment.id)),
                state.trials.of(experiment.id),
                state.live_allocation,
            )
            for experiment in experiments
        )

    def count_trials(self, experiment_id: int) -> int:
        """Returns how many trials the experiment has made so far."""
        return sum(1 for _ in self._mirror.state.trials.of(experiment_id))

    async def view(self, experiment_id: int) -> ExperimentView:
        return await self._views.view_experiment(experiment_id)

    async def view_trials(self, experiment_id: int, offset: int, limit: int) -> tuple[Sequence[TrialView], int]:
        """Returns a page of an experiment's trials, in the order of their numbers, and how many there are. limit: 0 for
        all."""
        return await self._views.view_trials(experiment_id, offset, limit)

    async def view_trial(self, trial_id: str) -> TrialView:
        return await self._views.view_trial(trial_id)

    async def watch(self, experiment_id: int) -> AsyncIterator[ExperimentView]:
        """Yields the view now and after each change, the last one when the experiment has ended."""
        shown: ExperimentView | None = None
        with self._following.listen(experiment_id, LEADER_NOTIFICATION) as changed:
            while True:
                changed.clear()
                view = await self._views.view_experiment(experiment_id)
                if view != shown:
                    yield view
                    shown = view
                if view.experiment.state is State.TERMINAL:
                    return
                await asyncio.sleep(MIN_INTERVAL_SECONDS)
                await self._following.wait(changed, LOOK_AGAIN_SECONDS)


def _made_none(request_id: str) -> GanglineError:
    return not_found(
        "request.not_found", f"request {request_id} has made no experiment; if its command still runs, it may yet"
    )


def _check_new_patterns(config_json: str, overrides_json: str) -> None:
    """Raises GanglineError `config.*`. The leader refuses new values that are no JSON object."""
    overrides = read_document(overrides_json)
    if isinstance(overrides, dict) and any(key.partition(".")[0] == "log_policies" for key in overrides):
        check_patterns(fork_config(config_json, overrides)[0])


def _only(changes: Sequence[ExperimentChange | None]) -> ExperimentChange:
    """Returns the only change. Raises GanglineError `request.one_change`, `request.action`."""
    if len(changes) != 1:
        raise invalid(
            "request.one_change",
            f"give exactly one of action, resources, move, texts and retention; there are {len(changes)} of them",
        )
    if changes[0] is None:
        raise invalid("request.action", "this version knows no such action; it can PAUSE, ACTIVATE and CANCEL")
    return changes[0]
