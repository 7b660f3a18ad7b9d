"""PURE: a new experiment, with the first trials that its searcher asks for and their requests for slots."""

from __future__ import annotations

from dataclasses import dataclass

from gangline.domain.experiment import Experiment
from gangline.domain.resource import Counter
from services.scheduler.facts import Facts
from services.scheduler.records import SINGLETON, Change, Draft, Records
from services.scheduler.transition.rules import Rules
from services.scheduler.transition.search import begin_search


@dataclass(frozen=True, slots=True)
class Submission:
    """Describes a validated request for an experiment. seed: of its search and of its first trial."""

    request_id: str
    owner: str
    facts: Facts
    config_json: str
    code_sha256: str
    seed: int


def submit(records: Records, submission: Submission, rules: Rules, now: float) -> Change:
    """Creates the experiment, unless this request id made one before; find that by `experiment_of_request`."""
    if records.experiment_of_request(submission.request_id) is not None:
        return Change()
    counter = records.find(Counter, SINGLETON) or Counter(1)
    experiment = Experiment(
        id=counter.next_value,
        name=submission.facts.name,
        owner=submission.owner,
        config_json=submission.config_json,
        code_sha256=submission.code_sha256,
        request_id=submission.request_id,
        created_at=now,
    )
    draft = Draft(records)
    draft.put(Counter(experiment.id + 1))
    draft.put(experiment)
    begin_search(draft, experiment, submission.seed, rules, now)
    return draft.change
