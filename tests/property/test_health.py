"""Invariants of a GPU's health: applications disable nothing, one finding is not enough, every GPU recovers."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from services.agent.devices.gpu_health import BURST_SECONDS, GpuHealth, GpuReading, Policy, after_reading, after_xid
from services.agent.devices.xid import XidKind, classify

CODES = range(200)
INNOCENT = [code for code in CODES if classify(code).kind in (XidKind.APPLICATION, XidKind.CONTAINED)]
APPLICATION = [code for code in CODES if classify(code).kind is XidKind.APPLICATION]
GUILTY = [code for code in CODES if classify(code).kind is XidKind.HARDWARE]
UNKNOWN = [code for code in CODES if classify(code).kind is XidKind.UNKNOWN]


@dataclass(frozen=True)
class Step:
    """An XID or a reading, some seconds after the step before."""

    what: int | GpuReading
    seconds: float


POLICIES = st.builds(
    Policy,
    num_confirmations=st.integers(2, 4),
    num_good_checks=st.integers(1, 5),
    window_seconds=st.floats(1.0, 10_000.0),
)
CLEAN = st.builds(GpuReading, num_uncorrected=st.sampled_from([None, 0]), is_remap_pending=st.booleans())
READINGS = st.builds(
    GpuReading,
    problem=st.sampled_from(["", "", "it is lost"]),
    num_uncorrected=st.none() | st.integers(0, 5),
    is_remap_pending=st.booleans(),
    has_remap_failed=st.booleans(),
)
SECONDS = st.floats(0.0, 5000.0)


def _steps(what: st.SearchStrategy[int | GpuReading]) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.builds(Step, what, SECONDS), max_size=30)


def _follow(steps: list[Step], policy: Policy, health: GpuHealth | None = None) -> list[GpuHealth]:
    """The health after each step, and before the first."""
    states, now = [health or GpuHealth()], 0.0
    for step in steps:
        now += step.seconds
        if isinstance(step.what, GpuReading):
            states.append(after_reading(states[-1], step.what, now, policy))
        else:
            states.append(after_xid(states[-1], step.what, now, policy))
    return states


@given(_steps(st.sampled_from(INNOCENT) | st.sampled_from(UNKNOWN) | CLEAN), POLICIES)
def test_no_application_fault_and_no_contained_error_disables(steps: list[Step], policy: Policy) -> None:
    assert all(not health.problem for health in _follow(steps, policy))


@given(_steps(st.sampled_from(list(CODES)) | READINGS), st.sampled_from(APPLICATION), POLICIES, SECONDS)
def test_application_fault_changes_nothing_at_any_time(
    steps: list[Step], code: int, policy: Policy, seconds: float
) -> None:
    last = _follow(steps, policy)[-1]
    assert after_xid(last, code, sum(step.seconds for step in steps) + seconds, policy) is last


@given(
    _steps(st.sampled_from(INNOCENT) | CLEAN),
    st.lists(st.sampled_from(GUILTY), min_size=1, max_size=10),
    _steps(st.sampled_from(INNOCENT) | st.builds(GpuReading, num_uncorrected=st.sampled_from([None, 0]))),
    POLICIES,
)
def test_one_unconfirmed_event_never_disables(
    before: list[Step], burst: list[int], after: list[Step], policy: Policy
) -> None:
    """However many XIDs it raises at once."""
    event = [Step(code, BURST_SECONDS / 20) for code in burst]
    assert all(not health.problem for health in _follow([*before, *event, *after], policy))


@given(_steps(st.sampled_from(INNOCENT) | CLEAN), READINGS, _steps(st.sampled_from(INNOCENT) | CLEAN), POLICIES)
def test_one_bad_check_never_disables(before: list[Step], bad: GpuReading, after: list[Step], policy: Policy) -> None:
    assert all(not health.problem for health in _follow([*before, Step(bad, 15.0), *after], policy))


@given(_steps(st.sampled_from(list(CODES)) | READINGS), POLICIES)
def test_enough_good_checks_bring_it_back(steps: list[Step], policy: Policy) -> None:
    """Whatever it went through; a reset sets its counters to zero."""
    good = [Step(GpuReading(num_uncorrected=0), 15.0)] * policy.num_good_checks
    assert _follow([*steps, *good], policy)[-1].problem == ""


@given(_steps(st.sampled_from(list(CODES)) | READINGS), POLICIES)
def test_health_says_why_and_stays_small(steps: list[Step], policy: Policy) -> None:
    for health in _follow(steps, policy):
        assert len(health.suspicions) <= len(steps)
        assert not health.problem or health.problem.strip()
        assert health.good_checks < policy.num_good_checks
