"""PURE: a trial's request for slots. Every trial that is to wait for slots is queued here."""

from __future__ import annotations

from gangline.domain.allocation import Request
from gangline.domain.experiment import Trial
from services.scheduler.facts import DEFAULT_POOL, Facts
from services.scheduler.records import Draft
from services.scheduler.transition.rules import Rules


def queue(draft: Draft, trial: Trial, facts: Facts, rules: Rules, not_before_at: float = 0.0) -> None:
    """A trial that runs again keeps its place in the queue, so it counts from when it was made."""
    pool = facts.pool or DEFAULT_POOL
    draft.put(
        Request(
            trial_id=trial.id,
            experiment_id=trial.experiment_id,
            pool=pool,
            slots=facts.slots,
            priority=facts.priority if facts.priority is not None else rules.default_priority(pool),
            is_single_agent=facts.is_single_agent,
            submitted_at=trial.created_at,
            not_before_at=not_before_at,
        )
    )
