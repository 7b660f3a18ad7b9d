"""A trial under `parallelism: auto` goes on with another strategy where the chosen one refuses it in its first steps.
Lack of memory is in test_retry.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.config.strategy_choice import MOST_BYTES, CandidateRow, StrategyChoice, parse_choice
from gangline.domain.allocation import Allocation, ExitReport, Member
from gangline.domain.experiment import Trial
from gangline.domain.state import ExitKind, Outcome, State
from services.scheduler.state.rules import Rules
from services.scheduler.transition.retry import RetryDecision, RetryTerms, decide, step_down_if_it_helps
from services.scheduler.transition.strategy_step import new_choice

_DDP = CandidateRow("ddp", "ddp", bytes={"total": 800}, step_seconds=2.0)
_ZERO1 = CandidateRow("zero1", "zero1", bytes={"total": 600}, step_seconds=3.0)
_PIPELINE = CandidateRow("pipeline (stages 2)", "pipeline", {"stages": 2}, bytes={"total": 500}, step_seconds=1.0)
_OTHER = CandidateRow("pipeline (stages 2 recompute full)", "pipeline", {"stages": 2}, "full", step_seconds=1.5)
_CHOICE = StrategyChoice("pipeline (stages 2)", 2, (_DDP, _ZERO1, _PIPELINE, _OTHER), 1000)
_LINE = "pipeline cannot run this trial"


def _refusal(agent_id: str = "a1", code: str = "parallelism.train_batch", at: float = 2.0) -> ExitReport:
    return ExitReport(
        agent_id,
        ExitKind.CONFIGURATION_ERROR,
        _LINE,
        failed_at=at,
        ended_at=at + 1,
        batches_completed=2,
        error_code=code,
    )


def _decide(record: StrategyChoice | None, *exits: ExitReport, started: int = 0) -> RetryDecision:
    members = tuple(Member(f"a{rank}", rank, (f"a{rank}/0",)) for rank in range(2))
    allocation = Allocation("1.1.1", "1.1", 1, 1, 5, "default", members, State.STOPPING, exits)
    trial = Trial("1.1", 1, 1, restarts=2, strategy_choice_json=record.to_json() if record is not None else "")
    return step_down_if_it_helps(decide(trial, allocation, RetryTerms(Rules(), 100.0, 2)), trial, allocation, started)


def test_a_refusal_in_the_first_steps_is_answered_by_another_strategy() -> None:
    decision = _decide(_CHOICE, ExitReport("a0", ExitKind.PEER_FAILED), _refusal())
    assert (decision.outcome, decision.restarts, decision.delay_seconds) == (None, 2, 0.0)
    assert decision.reason == (
        f"agent a1: {_LINE}; pipeline (stages 2) refuses the trial, and auto goes on with another strategy"
    )
    assert decision.strategy == replace(_CHOICE, refused={"pipeline": _LINE})


@pytest.mark.parametrize(
    ("record", "report", "started"),
    [
        (None, _refusal(), 0),
        (_CHOICE, _refusal(code=""), 0),
        (_CHOICE, _refusal(code="config.batch_size"), 0),
        (_CHOICE, _refusal(code="parallelism.auto"), 0),
        (_CHOICE, replace(_refusal(), batches_completed=10), 0),
        (_CHOICE, replace(_refusal(), batches_completed=110), 100),
        (replace(_CHOICE, refused={"pipeline": _LINE}), _refusal(), 0),
        (replace(_CHOICE, rows=(_PIPELINE, _OTHER)), _refusal(), 0),
        (replace(_CHOICE, rows=(_PIPELINE, replace(_DDP, refusal="does not fit"))), _refusal(), 0),
        (replace(_CHOICE, rows=(_PIPELINE, _DDP), refused={"ddp": "no"}), _refusal(), 0),
        (replace(_CHOICE, slots=4), _refusal(), 0),
    ],
    ids=[
        "named", "no code", "other code", "of auto itself", "late", "late after a checkpoint", "second time",
        "no other strategy", "no other fits", "all have refused", "other slots",
    ],
)  # fmt: skip
def test_a_refusal_is_final_otherwise(record: StrategyChoice | None, report: ExitReport, started: int) -> None:
    decision = _decide(record, report, started=started)
    assert (decision.outcome, decision.strategy) == (Outcome.FAILED, None)
    assert decision.reason.startswith(f"agent a1: {_LINE}; not tried again, because a configuration that cannot work")


def test_the_tenth_batch_after_a_checkpoint_is_still_one_of_the_first() -> None:
    assert _decide(_CHOICE, replace(_refusal(), batches_completed=109), started=100).outcome is None


def test_refusals_on_record_stay_in_a_record_of_the_greatest_length() -> None:
    trial = Trial("1.1", 1, 1, strategy_choice_json=replace(_CHOICE, refused={"ddp": "x" * 400}).to_json())
    note = "n" * (MOST_BYTES - len(_CHOICE.to_json()) - 100)
    sent = replace(_CHOICE, notes=(note,)).to_json()
    assert parse_choice(new_choice(trial, sent)).refused == {"ddp": "refused the trial"}
    assert new_choice(replace(trial, strategy_choice_json=""), sent) == sent


def test_a_late_refusal_names_the_next_candidate() -> None:
    decision = _decide(_CHOICE, replace(_refusal(), batches_completed=10))
    assert decision.reason.endswith(
        "a configuration that cannot work with pipeline (stages 2), which auto has chosen, would come again; name "
        "parallelism: ddp instead"
    )
    last = _decide(replace(_CHOICE, rows=(_PIPELINE,)), _refusal())
    assert last.reason.endswith("with pipeline (stages 2), which auto has chosen, would come again")


def test_the_first_of_two_errors_counts() -> None:
    """A member whose code fails by itself is no refusal, whatever the other one meets later."""
    failed = ExitReport("a0", ExitKind.USER_ERROR, "ValueError: no", failed_at=1.0, ended_at=2.0)
    decision = _decide(_CHOICE, failed, _refusal())
    assert (decision.outcome, decision.strategy) == (Outcome.FAILED, None)
    assert "all 2 restarts are used up" in decision.reason
    assert _decide(_CHOICE, replace(failed, failed_at=3.0), _refusal()).strategy is not None
    other = replace(_refusal("a0", "parallelism.model", 1.0), message="another line")
    decision = _decide(_CHOICE, other, _refusal())
    assert decision.strategy is not None
    assert decision.strategy.refused == {"pipeline": "another line"}


def test_refusals_and_lack_of_memory_are_counted_apart() -> None:
    refused = replace(_CHOICE, choice="ddp", refused={"pipeline": _LINE})
    memory = replace(_refusal(code=""), kind=ExitKind.OUT_OF_MEMORY)
    assert _decide(refused, memory).strategy == replace(refused, out_of_memory=("ddp",))
    lower = replace(_CHOICE, out_of_memory=("zero3",))
    assert _decide(lower, _refusal()).strategy == replace(lower, refused={"pipeline": _LINE})
