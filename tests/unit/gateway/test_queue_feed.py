"""The queue that streams share, while the roles of their callers change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Hashable, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sse_starlette import ServerSentEvent

from gangline.domain.access import Role, RoleAssignment, WorkspaceRoles
from gangline.domain.allocation import Request
from gangline.domain.experiment import Experiment, Project, Trial, Workspace
from gangline.domain.task import Task
from gangline.domain.user import User
from services.common import keys
from services.common.server import Principal
from services.gateway.http.live import queue_feed as module
from services.gateway.http.live.queue_feed import OtherScopeError, QueueFeed
from services.gateway.http.live.stream import LiveHub, Stream
from services.gateway.http.live.subscription import Subscription
from services.gateway.mirror.notification import NotificationBoard
from services.gateway.usecase.bundle import Shared, UseCases
from services.gateway.usecase.shared.following import Following
from services.gateway.usecase.shared.view import Views
from tests.support.stand_in_mirror import StandInMirror

LAB, SECRET = 2, 3
ANN, BOB = Principal("user", "ann"), Principal("user", "bob")
VIEWERS = (RoleAssignment(Role.VIEWER, 5), RoleAssignment(Role.VIEWER, 6))


def _task(trial_id: str) -> Task:
    number = int(trial_id.partition(".")[0])
    return Task(Trial(trial_id, number, 1), "digits", request=Request(trial_id, number, "default", 1))


async def test_a_reading_of_another_scope_reaches_no_reader_of_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.05)
    feed = QueueFeed("narrow")

    async def narrow() -> tuple[Hashable, list[Task]]:
        return "narrow", [_task("2.1")]

    async def wide() -> tuple[Hashable, list[Task]]:
        return "wide", [_task("2.1"), _task("3.1")]

    first = await feed.since("", narrow)
    assert first is not None
    # Both ask before the reading begins, so they would share it.
    promoted, other = await asyncio.gather(
        feed.since(first.version, wide), feed.since(first.version, narrow), return_exceptions=True
    )
    assert isinstance(promoted, OtherScopeError)
    assert other is None
    whole = await feed.since("", narrow)
    assert whole is not None
    assert "3.1" not in "".join(whole.rows)


class Leader:
    """In place of the leader's answers about the queue: the calls wait until the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.default_priority_by_pool: Mapping[str, int] = {}

    async def standings(self, trial_ids: Collection[str], seconds: float) -> Mapping[str, Any]:
        self.is_asked.set()
        await self.gate.wait()
        return {}


class Reader:
    async def newest(self, trial_ids: Collection[str]) -> Mapping[str, Any]:
        return {}


class Gateway:
    """Two workspaces in a closed cluster, of which ann and bob view the first, with one waiting trial in each."""

    def __init__(self) -> None:
        self.mirror, self.leader, self.hub = StandInMirror(), Leader(), LiveHub()
        for name, number in (("ann", 5), ("bob", 6)):
            self.mirror.put(keys.user(name), User(name, "", id=number))
        self.mirror.put(keys.roles(0), WorkspaceRoles(0))
        self.mirror.put(keys.roles(LAB), WorkspaceRoles(LAB, VIEWERS))
        for number in (LAB, SECRET):
            self.mirror.put(keys.workspace(number), Workspace(number, f"w{number}"))
            self.mirror.put(keys.project(number), Project(number, number, f"p{number}"))
            self.mirror.put(keys.experiment(number), Experiment(number, "e", "root", "{}", "", project_id=number))
            self.mirror.put(keys.trial(f"{number}.1"), Trial(f"{number}.1", number, 1))
            self.mirror.put(keys.request(f"{number}.1"), Request(f"{number}.1", number, "default", 1))
        nothing = cast("Any", None)
        parts: dict[str, Any] = {field.name: SimpleNamespace() for field in fields(Shared)}
        following = Following(self.mirror, NotificationBoard())
        parts["history"] = SimpleNamespace(reader=Reader(), following=following)
        views = Views(self.mirror, cast("Any", Reader()), cast("Any", self.leader))
        shared = Shared(**{**parts, "mirror": self.mirror, "views": views, "pending": self.leader})
        self.cases = UseCases(nothing, nothing, nothing, shared)

    def stream(self, principal: Principal) -> AsyncIterator[ServerSentEvent]:
        return Stream(self.hub, self.cases.of(principal), Subscription(queue=True)).events()

    def let_ann_view(self, *workspace_ids: int) -> None:
        for number in (LAB, SECRET):
            others = VIEWERS[1:] if number == LAB else ()
            own = VIEWERS[:1] if number in workspace_ids else ()
            self.mirror.put(keys.roles(number), WorkspaceRoles(number, (*own, *others)))


async def _next(events: AsyncIterator[ServerSentEvent]) -> tuple[str, str]:
    async with asyncio.timeout(20):
        event = await anext(events)
    return str(event.event), str(event.data)


async def test_tasks_come_with_the_scope_that_chose_them() -> None:
    gateway = Gateway()
    cases = gateway.cases.of(ANN)
    before = cases.sight().key
    listing = asyncio.create_task(cases.queue.list_in_scope())
    await gateway.leader.is_asked.wait()
    gateway.let_ann_view(LAB, SECRET)
    gateway.leader.gate.set()
    scope, tasks = await listing
    assert {task.trial.id for task in tasks} == {"2.1", "3.1"}
    assert scope == cases.sight().key != before


async def test_a_role_that_comes_during_a_reading_shows_nothing_to_others() -> None:
    gateway = Gateway()
    ann, bob = gateway.stream(ANN), gateway.stream(BOB)
    assert [(await _next(each))[0] for each in (ann, bob)] == ["open", "open"]
    # Ann's reading begins after both have asked, so bob waits for it.
    of_ann, of_bob = (asyncio.create_task(_next(each)) for each in (ann, bob))
    await gateway.leader.is_asked.wait()
    gateway.let_ann_view(LAB, SECRET)
    gateway.leader.gate.set()
    event, text = await of_bob
    assert event == "changes"
    assert '"2.1"' in text
    assert '"3.1"' not in text
    assert (await of_ann)[0] == "reset"
    event, text = await _next(ann)
    assert event == "changes"
    assert '"3.1"' in text


async def test_a_role_that_goes_during_anothers_reading_ends_the_sight_at_once() -> None:
    gateway = Gateway()
    ann, bob = gateway.stream(ANN), gateway.stream(BOB)
    assert [(await _next(each))[0] for each in (bob, ann)] == ["open", "open"]
    of_bob, of_ann = (asyncio.create_task(_next(each)) for each in (bob, ann))
    await gateway.leader.is_asked.wait()
    gateway.let_ann_view()
    gateway.leader.gate.set()
    assert '"2.1"' in (await of_bob)[1]
    assert (await of_ann)[0] == "reset"
    assert '"2.1"' not in (await _next(ann))[1]
