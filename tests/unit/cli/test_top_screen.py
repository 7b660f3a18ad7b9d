"""The screen of `gangline top`: what it shows at any size, and what the keys do."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given
from rich.cells import cell_len

from gangline.cli.output.keyboard import name_keys
from gangline.cli.output.top_screen import SORTS, Glance, Screen, draw, press, rows_of, selected
from gangline.domain.allocation import Allocation, Member, Reason, Request
from gangline.domain.experiment import Trial
from gangline.domain.history import ProgressPoint
from gangline.domain.resource import Agent, Slot
from gangline.domain.state import ReasonCode, State
from gangline.domain.task import Task
from gangline.domain.view import AgentView

NOW = 1000.0
HEIGHT = 24


def _running(number: int, name: str = "digits", owner: str = "ann", slots: int = 2, done: int = 50) -> Task:
    trial = Trial(f"{number}.1", number, 1, state=State.RUNNING)
    member = Member("agent-1", 0, tuple(f"agent-1/{slot}" for slot in range(slots)))
    allocation = Allocation(f"{number}.1.1", trial.id, number, 1, 1, "default", (member,), State.RUNNING)
    return Task(trial, name, allocation=allocation, owner=owner, progress=ProgressPoint(done, 200, 10.0))


def _waiting(number: int, place: int, eta_at: float | None = None, owner: str = "bob") -> Task:
    trial = Trial(f"{number}.1", number, 1, state=State.QUEUED)
    request = Request(trial.id, number, "default", 4)
    reason = Reason(ReasonCode.NO_CAPACITY, "needs 4 slots", "something ends", eta_at=eta_at)
    return Task(trial, "long", request=request, reason=reason, queue_place=place, owner=owner)


AGENT = AgentView(Agent("agent-1", slots=(Slot("agent-1/0"), Slot("agent-1/1"))), {"agent-1/0": "1.1.1"})
# The gateway lists waiting trials in the order of the queue.
TASKS = (_waiting(2, 1, NOW + 240), _running(1), _waiting(3, 2), _running(4, "cats", "bob", 1, 150))
GLANCE = Glance(TASKS, (AGENT,), NOW)


def _ids(screen: Screen) -> list[str]:
    return [task.trial.id for task in selected(GLANCE.tasks, screen)]


def _press(*keys: str, screen: Screen | None = None, glance: Glance = GLANCE) -> Screen:
    pressed = screen or Screen()
    for key in keys:
        changed = press(pressed, key, glance, HEIGHT)
        assert changed is not None
        pressed = changed
    return pressed


def test_running_trials_come_first_and_the_queue_in_its_order() -> None:
    assert _ids(Screen()) == ["1.1", "4.1", "2.1", "3.1"]


def test_a_row_says_who_how_far_where_and_when() -> None:
    rows = {row[0]: row for row in rows_of(GLANCE.tasks, NOW)}
    assert rows["1.1"] == ("1.1", "digits", "ann", "RUNNING", "2", "25%", "-", "agent-1 (2)")
    assert rows["2.1"] == ("2.1", "long", "bob", "QUEUED", "4", "-", "4 min", "NO_CAPACITY")


def test_the_head_counts_slots_and_trials() -> None:
    lines = [line.text for line in draw(GLANCE, Screen(), 80, HEIGHT)]
    assert lines[0].endswith("2 running, 2 waiting")
    assert lines[1] == "pool default: 1 of 2 slots used, 1 agent"
    paused = replace(TASKS[0], trial=replace(TASKS[0].trial, state=State.PAUSED), queue_place=0)
    glance = replace(GLANCE, tasks=(paused, *TASKS[1:]))
    assert draw(glance, Screen(), 100, HEIGHT)[0].text.endswith("2 running, 1 waiting, 1 paused")


def test_sorting_and_reversing() -> None:
    assert _press("s").sort == "owner"
    assert _ids(_press("s")) == ["1.1", "4.1", "2.1", "3.1"]
    assert _ids(_press("s", "r")) == ["3.1", "2.1", "4.1", "1.1"]
    assert _ids(Screen(sort="progress")) == ["4.1", "1.1", "2.1", "3.1"]
    assert _press(*["s"] * len(SORTS)).sort == "queue"


def test_filtering_while_typing_and_after() -> None:
    screen = _press("/", "B", "o", "x", "backspace", "b")
    assert screen.is_typing
    assert _ids(screen) == ["4.1", "2.1", "3.1"]
    kept = _press("enter", screen=screen)
    assert (kept.is_typing, kept.pattern) == (False, "Bob")
    assert _press("escape", screen=kept).pattern == ""
    # q is a letter like any other while a filter is typed.
    assert _press("/", "q").pattern == "q"
    assert press(Screen(), "q", GLANCE, HEIGHT) is None


def test_scrolling_ends_with_the_list() -> None:
    many = replace(GLANCE, tasks=tuple(_running(number) for number in range(1, 51)))
    last = _press(*["page down"] * 9, glance=many)
    assert last.offset == 50 - (HEIGHT - 4)
    assert draw(many, last, 80, HEIGHT)[-1].text.startswith("50.1 ")
    assert _press("up", screen=last, glance=many).offset == last.offset - 1
    assert _press("down").offset == 0


def test_a_problem_is_told_above_the_last_answer() -> None:
    lines = [line.text for line in draw(replace(GLANCE, problem="the gateway is away"), Screen(), 80, HEIGHT)]
    assert "the gateway is away" in lines
    assert any(line.startswith("1.1") for line in lines)


@given(
    name=st.text(max_size=40), owner=st.text(max_size=20), width=st.integers(20, 200), height=st.integers(1, 40),
    number=st.integers(0, 60),
)  # fmt: skip
def test_no_line_is_wider_than_the_terminal(name: str, owner: str, width: int, height: int, number: int) -> None:
    glance = replace(GLANCE, tasks=tuple(_running(n, name, owner) for n in range(1, number + 1)))
    lines = draw(glance, Screen(), width, height)
    assert len(lines) <= height
    assert all(cell_len(line.text) <= width and "\n" not in line.text for line in lines)


def test_names_of_keys() -> None:
    assert name_keys("\x1b[A") == ["up"]
    assert name_keys("/ab\r") == ["/", "a", "b", "enter"]
    assert name_keys("\x1b") == ["escape"]
    assert name_keys("\x1b[99z") == []
    assert name_keys("\x7f") == ["backspace"]
