"""Submits as the leader serves them: one by one, or a group that one call has brought.

Each submit of a group is admitted and committed for itself, so a refusal concerns one submit alone. The store writes
submits that wait together in one transaction, and every submit is answered after its own transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import structlog

from gangline.config.bound import is_small
from gangline.config.hyperparameter import Random
from gangline.config.layer.lookup import find_home
from gangline.config.layer.secret import as_config, restore_secrets
from gangline.config.layer.secret_name import MASK
from gangline.domain.experiment import Experiment, Project, ProjectDefaults, Template, Workspace
from gangline.domain.resource import Agent
from gangline.domain.settled.reading import settle
from gangline.errors import Effect, ErrorKind, GanglineError, invalid
from gangline.protocol import rpc, wire
from gangline.v1 import scheduler_pb2
from services.common.leader_probe import NOT_LEADER_CODE
from services.scheduler.leader.continuation import warm_up_if_drawn
from services.scheduler.leader.term import Term
from services.scheduler.state.records import Records
from services.scheduler.transition.account.user_change import check_active
from services.scheduler.transition.project.project_move import home_of
from services.scheduler.transition.quota_change import check_submit
from services.scheduler.transition.submit_check import AdmittedSubmission, admit, check_repeated, submit_experiment

_log = structlog.get_logger(__name__)

# A gateway sends fewer. More would keep the event loop busy for too long at once.
MAX_GROUP = 64


async def submit_one(
    term: Term, request: scheduler_pb2.SubmitExperimentRequest, rng: Random
) -> scheduler_pb2.SubmitExperimentResponse:
    """Returns once the experiment is durable. Raises GanglineError."""
    check_active(term.state, request.owner)
    earlier_experiment = term.state.experiment_of_request(request.request_id) if request.request_id else None
    submitted = {
        "request_id": request.request_id,
        "owner": request.owner,
        "config_json": restore_secrets(request.config_json, _find_sources(term, request, earlier_experiment)),
        "code_sha256": request.code_sha256,
        "template": request.template,
    }
    if earlier_experiment is not None:
        check_repeated(earlier_experiment, submitted)
    agents = list(term.state.all_of(Agent))
    if is_small(request.config_json):
        submission, warnings = admit(submitted, term.pools, agents, rng)
    else:
        # It takes a tenth of a second to read.
        submission, warnings = await asyncio.to_thread(admit, submitted, term.pools, agents, rng)
    if earlier_experiment is None:
        warnings += _check_quotas(term, submission, time.time())
    await warm_up_if_drawn(submission.config_json)
    if request.HasField("num_deleted_experiments"):
        submission = replace(submission, num_deleted=request.num_deleted_experiments)
    submission = replace(submission, is_paused=request.paused, forked_from=request.forked_from)
    rules, now = term.context.rules, time.time()
    await term.store.commit_asked(lambda records: submit_experiment(records, submission, rules, now))
    experiment = term.state.experiment_of_request(request.request_id)
    assert experiment is not None, "a submit that was committed can be found"
    own = (submission.owner, submission.code_sha256, submission.config_json)
    if (experiment.owner, experiment.code_sha256, experiment.config_json) != own:
        # Another submit under this id came first. To compare what the two mean takes longer than all else here.
        check_repeated(experiment, submitted)
    slots = submission.settled.resources.slots_per_trial
    _log.info("submitted", experiment_id=experiment.id, owner=experiment.owner, slots=slots)
    return scheduler_pb2.SubmitExperimentResponse(
        experiment=wire.to_proto(experiment), revision=term.state.revision, warnings=warnings
    )


def _check_quotas(term: Term, submission: AdmittedSubmission, now: float) -> list[str]:
    """Returns warnings. Raises GanglineError `quota.never_fits`, and those of a workspace or project that does not take
    the experiment."""
    project = home_of(term.state, submission.owner, submission.workspace, submission.project)
    return check_submit(term.state, submission.owner, project.id, submission.settled, now)


def _find_sources(term: Term, request: scheduler_pb2.SubmitExperimentRequest, earlier: Experiment | None) -> list[str]:
    """Returns the configurations whose secrets this submit may take over: those of the user's own experiments, of the
    template, which gives them to everyone who includes it, and of the defaults of its project and workspace."""
    if MASK not in request.config_json:
        return []
    parent = term.state.find(Experiment, request.forked_from) if request.forked_from else None
    template = term.state.find(Template, request.template) if request.template else None
    own = [
        experiment for experiment in (earlier, parent) if experiment is not None and experiment.owner == request.owner
    ]
    defaults = [as_config(each) for each in _find_defaults(term.state, request.config_json)]
    return [record.config_json for record in (*own, template) if record is not None] + defaults


def _find_defaults(records: Records, config_json: str) -> list[ProjectDefaults]:
    """Returns the defaults of the project that a configuration names, and of its workspace. The admission refuses a
    project that does not exist."""
    settled = settle(config_json)
    try:
        workspace, project = find_home(
            settled.workspace, settled.project, records.all_of(Workspace), records.all_of(Project)
        )
    except GanglineError:
        return []
    return [project.defaults, workspace.defaults]


async def submit_group(
    term: Term, requests: Sequence[scheduler_pb2.SubmitExperimentRequest], rng: Random
) -> list[scheduler_pb2.SubmitResult]:
    """Returns one result for each request, in their order.

    Raises GanglineError when one of them cannot be written now: then the caller repeats the whole group, and request
    ids find the submits that were written.
    """
    if len(requests) > MAX_GROUP:
        raise invalid("request.too_many", f"{len(requests)} submits in one call; send at most {MAX_GROUP}")
    outcomes = await asyncio.gather(*(_attempt(term, request, rng) for request in requests))
    passing = [outcome for outcome in outcomes if isinstance(outcome, GanglineError) and _may_pass(outcome)]
    if passing:
        # Others of the group may have been written.
        is_untouched = len(passing) == len(outcomes) and all(error.effect is Effect.NONE for error in passing)
        first = passing[0]
        effect = Effect.NONE if is_untouched else Effect.UNKNOWN
        raise GanglineError(first.code, first.message, first.kind, effect)
    return [_result(outcome) for outcome in outcomes]


async def _attempt(
    term: Term, request: scheduler_pb2.SubmitExperimentRequest, rng: Random
) -> scheduler_pb2.SubmitExperimentResponse | GanglineError:
    try:
        return await submit_one(term, request, rng)
    except GanglineError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug that one submit meets must not fail the others
        _log.error("a submit failed", request_id=request.request_id, exc_info=error)
        text = f"the submit failed: {type(error).__name__}; see the scheduler's log"
        return GanglineError("rpc.internal", text, ErrorKind.INTERNAL)


def _may_pass(error: GanglineError) -> bool:
    """Returns whether the same submit may succeed a moment later, here or with the next leader."""
    return error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT) or error.code == NOT_LEADER_CODE


def _result(outcome: scheduler_pb2.SubmitExperimentResponse | GanglineError) -> scheduler_pb2.SubmitResult:
    if isinstance(outcome, GanglineError):
        return scheduler_pb2.SubmitResult(error=rpc.detail_of(outcome), status=rpc.status_number_of(outcome))
    return scheduler_pb2.SubmitResult(created=outcome)
