"""Work that may start beside a reservation: nothing that could delay its holder, in whatever order running work ends.

On call, work may also start in the place of less urgent work.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.state import ReasonCode
from services.scheduler.placement import AgentRoom, PendingRequest, Plan, PoolConfig, Running, Snapshot, plan

NOW = 1000.0
POOL = PoolConfig("default")
ON_CALL = PoolConfig("default", is_preemption_on=True, backfill="on_call")


def _request(number: int, slots: int, **fields: object) -> PendingRequest:
    base = PendingRequest(f"{number}.1", str(number), "default", slots, submitted_at=float(number))
    return replace(base, **fields)  # type: ignore[arg-type]  # any field


def _work(number: int, agents: str, slots: int, **fields: object) -> Running:
    """agents: the letter of each, with so many slots on each."""
    held = dict.fromkeys(agents, slots)
    base = Running(f"{number}.1.1", f"{number}.1", str(number), "default", held, started_at=500.0)
    return replace(base, **fields)  # type: ignore[arg-type]  # any field


def _plan(config: PoolConfig, sizes: dict[str, int], requests: list[PendingRequest], running: list[Running]) -> Plan:
    used = {agent: sum(work.slots_by_agent.get(agent, 0) for work in running) for agent in sizes}
    agents = tuple(AgentRoom(agent, "default", slots, used[agent]) for agent, slots in sizes.items())
    return plan(Snapshot((config,), agents, tuple(requests), tuple(running)), NOW)


def _started(decided: Plan) -> dict[str, dict[str, int]]:
    return {assignment.trial_id: dict(assignment.slots_by_agent) for assignment in decided.assignments}


def _stopped(decided: Plan) -> list[str]:
    return [preemption.allocation_id for preemption in decided.preemptions]


def test_ends_that_are_guessed_alike_may_come_one_by_one() -> None:
    """After the first of them the head fits, if its second slot has stayed free."""
    running = [_work(number, "a", 1, estimated_end_at=NOW + 500) for number in (10, 11, 12)]
    decided = _plan(POOL, {"a": 4}, [_request(1, 2), _request(2, 1, priority=60, estimated_seconds=5.0)], running)
    assert _started(decided) == {}
    reason = decided.reasons["2.1"]
    assert (reason.code, reason.blocking_ids) == (ReasonCode.BEHIND_RESERVATION, ("1.1",))
    assert reason.message == "needs 1 slot; 2 slots (a: 2) are kept for trial 1.1, which is expected to start in 500 s"


def test_every_agent_on_which_the_head_may_start_is_kept() -> None:
    running = [_work(10, "a", 3, estimated_end_at=NOW + 100), _work(11, "b", 3, estimated_end_at=NOW + 9000)]
    decided = _plan(POOL, {"a": 4, "b": 4, "c": 2}, [_request(1, 4), _request(2, 1), _request(3, 2)], running)
    assert _started(decided) == {"2.1": {"c": 1}}
    only = _plan(POOL, {"a": 4, "b": 4}, [_request(1, 4), _request(2, 1)], running)
    assert _started(only) == {}
    assert only.reasons["2.1"].message.endswith(
        "are kept for trial 1.1, which is expected to start in 100 s, as are all others that would let it start sooner"
    )


@pytest.mark.parametrize(("held", "num_spare"), [((3, 3), 0), ((2, 3), 0), ((2, 2), 1), ((1, 4), 2)])
def test_slots_that_the_head_lacks_after_no_set_of_ends_are_spare(held: tuple[int, int], num_spare: int) -> None:
    """The head needs 5 of 8 slots. Where 2 and 2 are held it gets 6 or 8, with 1 and 4 it gets 7 or 8."""
    running = [_work(10 + number, "a", slots) for number, slots in enumerate(held)]
    requests = [_request(1, 5), *(_request(number, 1) for number in range(2, 6))]
    assert len(_started(_plan(POOL, {"a": 8}, requests, running))) == num_spare


def test_an_agent_that_no_gang_can_have_is_free_for_all() -> None:
    """The gang takes two whole agents of 4; the agent of 3 is of no use to it, nor one that is busy for others."""
    running = [_work(10, "a", 4), _work(11, "b", 1)]
    requests = [_request(1, 8), _request(2, 1), _request(3, 1)]
    assert _started(_plan(POOL, {"a": 4, "b": 4, "c": 3}, requests, running)) == {"2.1": {"c": 1}, "3.1": {"c": 1}}
    mixed = replace(POOL, allow_heterogeneous_fits=True)
    assert _started(_plan(mixed, {"a": 4, "b": 4, "c": 3}, [_request(1, 7), *requests[1:]], running)) == {}


def test_known_ends_keep_the_agents_of_the_reservation_alone() -> None:
    ends = [_work(10, "a", 3, estimated_end_at=NOW + 100), _work(11, "b", 3, estimated_end_at=NOW + 900)]
    bounded = [replace(work, is_bounded=True) for work in ends]
    requests = [_request(1, 4), _request(2, 1)]
    assert _started(_plan(POOL, {"a": 4, "b": 4}, requests, bounded)) == {"2.1": {"b": 1}}
    # One guess beside it: the head may start on b earlier than is known of a.
    assert _started(_plan(POOL, {"a": 4, "b": 4}, requests, [bounded[0], ends[1]])) == {}
    # A bound that has passed is none.
    late = [replace(work, estimated_end_at=NOW - 1) for work in bounded]
    assert _started(_plan(POOL, {"a": 4, "b": 4}, requests, late)) == {}


def test_guesses_may_end_between_known_ends() -> None:
    """2 of 9 slots are free and 5 are wanted. One guess alone gives the head 5 after both of the known ends."""
    bounded = [_work(9 + n, "a", 1, estimated_end_at=NOW + 100 * n, is_bounded=True) for n in (1, 2)]
    guesses = [_work(20, "a", 1), _work(21, "a", 4)]
    requests = [_request(1, 5), _request(2, 1)]
    assert _started(_plan(POOL, {"a": 9}, requests, [*bounded, *guesses])) == {}
    # Without the second of them the head gets 6 or more at any time.
    last = [*bounded[:1], _work(11, "a", 1, is_preemptible=False, draining_by_agent={"a": 1}), *guesses]
    assert _started(_plan(POOL, {"a": 9}, requests, last)) == {"2.1": {"a": 1}}


def test_work_that_is_certainly_over_may_use_what_is_kept() -> None:
    running = [_work(10, "a", 3, estimated_end_at=NOW + 100, is_bounded=True)]
    short = _request(2, 1, estimated_seconds=100.0, is_bounded=True)
    assert _started(_plan(POOL, {"a": 4}, [_request(1, 4), short], running)) == {"2.1": {"a": 1}}
    for late in (replace(short, estimated_seconds=101.0), replace(short, is_bounded=False)):
        assert _started(_plan(POOL, {"a": 4}, [_request(1, 4), late], running)) == {}
    guess = [replace(running[0], is_bounded=False)]
    assert _started(_plan(POOL, {"a": 4}, [_request(1, 4), short], guess)) == {}
    # Nor where another agent is known to be free by then: the guess may end earlier.
    bounded = _work(11, "b", 4, estimated_end_at=NOW + 100, is_bounded=True)
    assert _started(_plan(POOL, {"a": 4, "b": 4}, [_request(1, 4), short], [*guess, bounded])) == {}


def test_a_request_on_call_takes_the_place_of_less_urgent_work() -> None:
    """The head cannot have the place: work that is as urgent holds the other half of its agent."""
    head, next_ = _request(1, 4, priority=10), _request(2, 2, priority=42)
    running = [_work(10, "a", 2, priority=10), _work(11, "a", 2, priority=80)]
    decided = _plan(ON_CALL, {"a": 4}, [head, next_], running)
    assert decided.reservations["default"].trial_id == "1.1"
    assert _stopped(decided) == ["11.1.1"]
    assert decided.reasons["2.1"].code is ReasonCode.WAITING_FOR_PREEMPTION
    # It stops once only, and the place goes to the request, which the head may have stopped.
    stopping = [running[0], replace(running[1], is_stopping=True)]
    assert _stopped(_plan(ON_CALL, {"a": 4}, [head, next_], stopping)) == []
    [started] = _plan(ON_CALL, {"a": 4}, [head, next_], running[:1]).assignments
    assert (started.trial_id, started.is_on_call) == ("2.1", True)
    taken = [_work(2, "a", 2, priority=42, is_on_call=True)]
    assert _stopped(_plan(ON_CALL, {"a": 4}, [head], taken)) == ["2.1.1"]


def test_the_head_goes_before_requests_on_call() -> None:
    head, next_ = _request(1, 4, priority=10), _request(2, 2, priority=42)
    running = [_work(11, "a", 2, priority=80)]
    decided = _plan(ON_CALL, {"a": 4}, [head, next_], running)
    assert [(preemption.allocation_id, preemption.for_trial_id) for preemption in decided.preemptions] == [
        ("11.1.1", "1.1")
    ]


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (ON_CALL, {"is_preemptible": False}),
        (ON_CALL, {"priority": 80}),
        (replace(ON_CALL, backfill=True), {}),
        (replace(ON_CALL, backfill=False), {}),
        (POOL, {}),
    ],
)
def test_nobody_else_takes_a_place_that_is_kept(config: PoolConfig, fields: dict[str, object]) -> None:
    """Work that cannot be stopped would hold up the head, and an equal is no reason to stop anybody."""
    running = [_work(10, "a", 2, priority=10), _work(11, "a", 2, priority=80)]
    requests = [_request(1, 4, priority=10), _request(2, 2, **{"priority": 42, **fields})]
    decided = _plan(config, {"a": 4}, requests, running)
    assert (_stopped(decided), _started(decided)) == ([], {})
