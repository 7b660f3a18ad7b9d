"""PURE: the submit of an experiment: whether it may be submitted, with which defaults, and the records that it makes.

Refuses a request that can never run: a configuration that is not valid, a pool that does not exist, a gang that its
pool can never hold. Everything else may wait in the queue. A new experiment has the first trials that its searcher
asks for, and their requests for slots.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gangline.config import check_config
from gangline.config.hyperparameter import Random
from gangline.domain.experiment import Experiment
from gangline.domain.limits import MOST_COUNT
from gangline.domain.resource import Agent, Counter
from gangline.domain.search import SearchPreview, total_lengths
from gangline.domain.settled.reading import settle_values
from gangline.domain.settled.record import Settled
from gangline.domain.state import State
from gangline.errors import GanglineError, conflict, invalid, not_found
from services.scheduler.placement.capacity.feasibility import never_fits
from services.scheduler.placement.request.snapshot import PoolConfig
from services.scheduler.searcher.interface import Brief
from services.scheduler.searcher.optuna_class import check_packages
from services.scheduler.searcher.replay import make_searcher
from services.scheduler.searcher.study import first_suggestions
from services.scheduler.state.records import SINGLETON, Draft, Records, StateChange
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of_parsed
from services.scheduler.transition.project.project_move import home_of
from services.scheduler.transition.removal import check_code_stays
from services.scheduler.transition.search import begin_search


def admit(
    submitted: Mapping[str, str], pools: Sequence[PoolConfig], agents: Iterable[Agent], rng: Random
) -> tuple[AdmittedSubmission, list[str]]:
    """Returns the submission to write, and warnings.

    submitted: request_id, owner, config_json, code_sha256 and template, as the caller sent them. rng: chooses a
    seed where the configuration names none. Raises GanglineError `config.*`, `pool.not_found` or `request.never_fits`.
    """
    if not submitted["request_id"]:
        raise invalid("request.no_id", "a submit needs a request id; the client makes one for each experiment")
    config = check_config(submitted["config_json"])
    config_json = config.model_dump_json()
    settled = settled_of_parsed(config_json, config)
    warnings = check_place(settled, pools, agents)
    submission = AdmittedSubmission(
        request_id=submitted["request_id"],
        owner=submitted["owner"],
        settled=settled,
        config_json=config_json,
        code_sha256=submitted["code_sha256"],
        seed=_choose_seed(settled, rng),
        workspace=config.workspace,
        project=config.project,
        template=submitted.get("template", ""),
        labels=tuple(config.labels),
    )
    return submission, warnings


def check_place(settled: Settled, pools: Sequence[PoolConfig], agents: Iterable[Agent]) -> list[str]:
    """Returns warnings. Raises GanglineError `pool.not_found` or `request.never_fits`."""
    pool = _find_pool(settled, pools)
    return _check_fit(settled, pool, [agent for agent in agents if agent.pool == pool.name])


def check_repeated(experiment: Experiment, submitted: Mapping[str, str]) -> None:
    """Refuses another submit under the request id that made `experiment`: its answer would name a wrong experiment.

    Resources, project, labels and description are not compared, because users may change them later.

    Raises GanglineError `request.reused`.
    """
    is_same = (experiment.owner, experiment.code_sha256) == (submitted["owner"], submitted["code_sha256"])
    if is_same and _unchanging(experiment.config_json) == _unchanging(submitted["config_json"]):
        return
    raise conflict(
        "request.reused",
        f"request id {experiment.request_id!r} was used before, for another configuration, code or user; use a new one",
    )


def _unchanging(config_json: str) -> dict[str, object]:
    return check_config(config_json).model_dump(exclude={"resources", "workspace", "project", "description", "labels"})


def preview(
    config_json: str, limit: int, rng: Random, pools: Sequence[PoolConfig] = (), agents: Sequence[Agent] = ()
) -> SearchPreview:
    """Returns the first trials that this configuration would make. pools, agents: where they have to fit; empty for no
    such check. Raises GanglineError `config.*`, `pool.not_found`, `request.never_fits`."""
    settled = settle_values(check_config(config_json))
    if pools:
        check_place(settled, pools, agents)
    check_packages(settled.searcher.sampler, settled.searcher.pruner)
    seed = _choose_seed(settled, rng)
    searcher = make_searcher(settled, seed)
    numbers = range(1, min(limit, searcher.num_planned) + 1)
    if searcher.hyperparameters(1) is None:
        points = first_suggestions(Brief(settled.searcher, settled.hyperparameters, seed), limit)
    else:
        points = [searcher.hyperparameters(number) or {} for number in numbers]
    section, num_trials = settled.searcher, searcher.num_planned
    brackets = section.brackets
    totals = total_lengths(brackets) if brackets else (num_trials * (section.length or 0),) * 3
    at_once = sum(bracket.max_concurrent_trials for bracket in brackets) or section.max_concurrent_trials
    return SearchPreview(
        searcher=section.name,
        seed=seed,
        num_trials=num_trials,
        max_concurrent_trials=min(at_once, num_trials),
        hyperparameters_json=tuple(map(json.dumps, points)),
        unit=section.unit_name if section.length is not None else "",
        brackets=brackets,
        min_total=min(totals[0], MOST_COUNT),
        expected_total=min(totals[1], MOST_COUNT),
        max_total=min(totals[2], MOST_COUNT),
        slots_per_trial=settled.resources.slots_per_trial,
    )


def find_pool(name: str, pools: Sequence[PoolConfig]) -> PoolConfig:
    """Returns the pool of this name, or the only pool where no name is given.

    Raises GanglineError `pool.not_found` or `pool.unnamed`, naming the pools.
    """
    pool_names = ", ".join(sorted(pool.name for pool in pools))
    if not name and len(pools) > 1:
        raise invalid("pool.unnamed", f"name one of the pools: {pool_names}")
    pool = next((pool for pool in pools if pool.name == name or not name), None)
    if pool is None:
        raise not_found("pool.not_found", f"there is no pool {name!r}; the pools are {pool_names}")
    return pool


def _choose_seed(settled: Settled, rng: Random) -> int:
    seed = settled.reproducibility.experiment_seed
    return rng.randint(0, 2**31 - 1) if seed is None else seed


def _find_pool(settled: Settled, pools: Sequence[PoolConfig]) -> PoolConfig:
    name = settled.resources.pool_name
    pool = next((pool for pool in pools if pool.name == name), None)
    if pool is not None:
        return pool
    pool_names = ", ".join(sorted(pool.name for pool in pools))
    raise GanglineError(
        "pool.not_found", f"resources.resource_pool: there is no pool {name!r}; the pools are {pool_names}"
    )


def _check_fit(settled: Settled, pool: PoolConfig, agents: Sequence[Agent]) -> list[str]:
    """Returns warnings. Lost agents count, because they may come back. Raises GanglineError `request.never_fits`."""
    sizes = [len(agent.slots) for agent in agents]
    slots, is_single_node = settled.resources.slots_per_trial, settled.resources.is_single_node
    sentence = never_fits(slots, pool.name, sizes, is_single_node, pool.allow_heterogeneous_fits)
    if sentence is not None:
        key = "slots_per_trial" if settled.task_kind is None else "slots"
        raise invalid("request.never_fits", f"{key}: {sentence}")
    return [] if agents else [f"pool {pool.name!r} has no agents yet; the experiment waits until some join"]


@dataclass(frozen=True, slots=True)
class AdmittedSubmission:
    """Describes a validated request for an experiment."""

    request_id: str
    owner: str
    settled: Settled
    config_json: str
    code_sha256: str
    seed: int  # seed of its search and of its first trial
    workspace: str = ""  # name; empty for the default project
    project: str = ""  # name; empty for the default project
    template: str = ""  # name of the template that the configuration includes; empty for none
    labels: tuple[str, ...] = ()
    # number of experiments deleted by the time the code was found in the storage; None if unknown
    num_deleted: int | None = None
    is_paused: bool = False
    forked_from: int = 0  # id of the experiment from which it was forked; 0 for none


def submit_experiment(records: Records, submission: AdmittedSubmission, rules: Rules, now: float) -> StateChange:
    """Creates the experiment, unless this request id made one before; find that by `experiment_of_request`.

    Raises GanglineError `code.deleting`, `workspace.not_found`, `project.not_found`, `project.incomplete`,
    `workspace.archived`, `project.archived`, `auth.no_role`.
    """
    if records.experiment_of_request(submission.request_id) is not None:
        return StateChange()
    project = home_of(records, submission.owner, submission.workspace, submission.project)
    check_code_stays(records, submission.code_sha256, submission.num_deleted)
    counter = records.find(Counter, SINGLETON) or Counter(1)
    experiment = Experiment(
        id=counter.next_value,
        name=submission.settled.name,
        owner=submission.owner,
        config_json=submission.config_json,
        code_sha256=submission.code_sha256,
        request_id=submission.request_id,
        created_at=now,
        project_id=project.id,
        template=submission.template,
        labels=tuple(sorted(set(submission.labels))),
        forked_from=submission.forked_from,
        task_kind=submission.settled.task_kind,
    )
    if submission.is_paused:
        experiment = replace(experiment, state=State.PAUSED, reason=f"created paused by {submission.owner}")
    draft = Draft(records)
    draft.put(Counter(experiment.id + 1))
    draft.put(experiment)
    begin_search(draft, experiment, submission.seed, rules, now)
    return draft.change
