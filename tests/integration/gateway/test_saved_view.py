"""Saved views: their calls over both surfaces, their limits, and changes that meet, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
import pytest_asyncio
import sqlalchemy as sa

from gangline import AsyncClient
from gangline.domain.saved_view import MAX_CONTENT_BYTES, MAX_VIEWS, SavedView, change_view
from gangline.errors import GanglineError
from gangline.v1 import gateway_pb2 as pb
from services.common.etcd import EtcdClient
from services.gateway.history.saved_view import SavedViewStore
from tests.support.gateway import USER_TOKEN, Client, add_user
from tests.support.wait import until_async

ROUTE = "/api/v1/saved-views"
RUNNING = {"filters": {"states": ["RUNNING"]}, "columns": [{"name": "id", "pinned": True}, {"name": "owner"}]}


@pytest_asyncio.fixture
async def users(client: Client, etcd: EtcdClient) -> AsyncIterator[list[AsyncClient]]:
    """Returns clients of alice, of bob and of the administrator carol, once the gateway knows them."""
    names = ("alice", "bob", "carol")
    tokens = [USER_TOKEN, "token-of-bob-in-the-tests", "token-of-carol-in-the-tests"]
    for number, (name, token) in enumerate(zip(names, tokens, strict=True), 1):
        await add_user(etcd, name, token, number=number, is_admin=name == "carol")

    async def is_seen() -> bool:
        return (await client.http.get("/api/v1/users/3")).status_code == 200

    await until_async(is_seen, "the gateway knowing all users")
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(AsyncClient(client.grpc_address, token)) for token in tokens]


async def refusal(call: Awaitable[object]) -> GanglineError:
    with pytest.raises(GanglineError) as raised:
        await call
    return raised.value


async def test_a_view_is_of_its_owner_and_others_open_it_by_its_id(users: list[AsyncClient]) -> None:
    alice, bob, carol = users
    view = await alice.create_saved_view("experiments", "running", RUNNING)
    other = await alice.create_saved_view("checkpoints", "best", {})
    assert (view.content, view.version, view.owner_id) == (RUNNING, 1, 1)
    assert await alice.list_saved_views() == [other, view]
    assert await alice.list_saved_views("experiments") == [view]
    assert await bob.list_saved_views() == []
    assert await bob.get_saved_view(view.id) == view
    refused = await refusal(bob.update_saved_view(view.id, 1, name="mine"))
    assert refused.code == "auth.not_owner"
    assert "only alice and administrators may" in refused.message
    assert (await carol.update_saved_view(view.id, 1, name="all running")).name == "all running"
    # The same name is free for bob.
    assert (await bob.create_saved_view("checkpoints", "best", {})).id != other.id


async def test_a_change_is_made_from_the_present_version(users: list[AsyncClient]) -> None:
    alice = users[0]
    view = await alice.create_saved_view("experiments", "running", RUNNING)
    renamed = await alice.update_saved_view(view.id, 1, name="now", request_id="once")
    assert (renamed.name, renamed.content, renamed.version) == ("now", RUNNING, 2)
    assert await alice.update_saved_view(view.id, 1, name="now", request_id="once") == renamed
    changed = await alice.update_saved_view(view.id, 2, content={"sort": "-id"})
    assert (changed.name, changed.content, changed.version) == ("now", {"sort": "-id"}, 3)
    assert changed.updated_at > changed.created_at == view.created_at
    refused = await refusal(alice.update_saved_view(view.id, 2, name="late"))
    assert (refused.code, "version 3" in refused.message) == ("saved_view.changed", True)
    assert await alice.get_saved_view(view.id) == changed


async def test_a_name_is_of_one_view_and_a_request_makes_one(users: list[AsyncClient]) -> None:
    alice = users[0]
    view = await alice.create_saved_view("experiments", "running", RUNNING, request_id="once")
    other = await alice.create_saved_view("experiments", "other", {})
    assert await alice.create_saved_view("experiments", "running", RUNNING, request_id="once") == view
    for call, code in (
        (alice.create_saved_view("experiments", "running", {}), "saved_view.exists"),
        (alice.update_saved_view(other.id, 1, name="running"), "saved_view.exists"),
        (alice.create_saved_view("experiments", "third", RUNNING, request_id="once"), "request.reused"),
        (alice.create_saved_view("trials", "running", RUNNING, request_id="once"), "request.reused"),
        (alice.get_saved_view("none"), "saved_view.not_found"),
        (alice.update_saved_view("none", 1), "saved_view.not_found"),
    ):
        assert (await refusal(call)).code == code
    assert await alice.list_saved_views() == [other, view]
    changed = await alice.update_saved_view(view.id, 1, name="renamed")
    assert await alice.create_saved_view("experiments", "running", RUNNING, request_id="once") == changed


@pytest.mark.parametrize(
    ("list_name", "name", "content", "code"),
    [
        ("Experiments", "x", {}, "saved_view.list"),
        ("", "x", {}, "saved_view.list"),
        ("experiments", " ", {}, "saved_view.name"),
        ("experiments", "x" * 101, {}, "saved_view.name"),
        ("experiments", "a\x1bb", {}, "saved_view.name"),
        ("experiments", "x", {"a": "x" * MAX_CONTENT_BYTES}, "saved_view.content"),
    ],
)
async def test_what_cannot_be_kept_is_refused_in_one_line(
    client: Client, list_name: str, name: str, content: dict[str, Any], code: str
) -> None:
    async with AsyncClient(client.grpc_address, USER_TOKEN) as alice:
        refused = await refusal(alice.create_saved_view(list_name, name, content))
        assert (refused.code, len(refused.message.splitlines())) == (code, 1)
        answer = await client.http.post(ROUTE, json={"list": list_name, "name": name, "content": content})
        assert (answer.status_code, answer.json()["code"]) == (400, code)
        assert await alice.list_saved_views() == []


async def test_a_content_that_no_reader_could_show_is_refused(client: Client, users: list[AsyncClient]) -> None:
    refused = await refusal(users[0].create_saved_view("experiments", "x", {"a": "\ud800"}))
    assert refused.code == "document.invalid"
    request = pb.CreateSavedViewRequest(request_id="r", list_name="experiments", name="x", content_json="[]")
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await client.gateway.CreateSavedView(request, metadata=client.metadata)
    assert "expected a JSON object, found list" in str(failure.value.details())


async def test_the_largest_content_is_kept_and_no_more_views_than_the_limit(users: list[AsyncClient]) -> None:
    alice = users[0]
    largest = {"a": "x" * (MAX_CONTENT_BYTES - len('{"a":""}'))}
    assert (await alice.create_saved_view("experiments", "largest", largest)).content == largest
    await asyncio.gather(*(alice.create_saved_view("trials", f"v{number}", {}) for number in range(MAX_VIEWS - 1)))
    refused = await refusal(alice.create_saved_view("trials", "further", {}))
    assert (refused.code, str(MAX_VIEWS) in refused.message) == ("saved_view.too_many", True)
    assert len(await alice.list_saved_views()) == MAX_VIEWS


async def test_the_owner_and_administrators_delete_a_view(client: Client, users: list[AsyncClient]) -> None:
    alice, bob, carol = users
    view = await alice.create_saved_view("experiments", "running", RUNNING)
    others = [await alice.create_saved_view("trials", name, {}) for name in ("a", "b")]
    refused = await refusal(bob.delete_saved_view(view.id))
    assert (refused.code, "delete the saved view 'running'" in refused.message) == ("auth.not_owner", True)
    assert await alice.list_saved_views() == [view, *others]
    assert await alice.delete_saved_view(view.id)
    assert not await alice.delete_saved_view(view.id)
    assert (await refusal(bob.get_saved_view(view.id))).code == "saved_view.not_found"
    assert await carol.delete_saved_view(others[0].id)
    answers = [await client.http.delete(f"{ROUTE}/{others[1].id}") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [204, 404]
    assert await alice.list_saved_views() == []
    # The name is free again.
    assert (await alice.create_saved_view("experiments", "running", {})).version == 1


async def test_the_routes(client: Client, users: list[AsyncClient]) -> None:
    bob = users[1]
    new = {"list": "experiments", "name": "running", "content": RUNNING}
    answers = [await client.http.post(ROUTE, json=new, headers={"Idempotency-Key": "once"}) for _ in range(2)]
    view = answers[0].json()["view"]
    assert answers[1].json()["view"] == view
    assert {key: view[key] for key in ("list", "name", "content", "userId", "version")} == {
        **new,
        "userId": 1,
        "version": 1,
    }
    assert (await client.http.get(f"{ROUTE}?list=experiments")).json() == {"views": [view]}
    assert (await client.http.get(f"{ROUTE}?list=trials")).json() == {"views": []}
    assert (await client.http.get(f"{ROUTE}/{view['id']}")).json() == {"view": view}
    patched = await client.http.patch(f"{ROUTE}/{view['id']}", json={"version": 1, "content": {}})
    assert (patched.json()["view"]["content"], patched.json()["view"]["version"]) == ({}, 2)
    late = await client.http.patch(f"{ROUTE}/{view['id']}", json={"version": 1, "name": "late"})
    assert (late.status_code, late.json()["code"]) == (409, "saved_view.changed")
    assert (await client.http.get(f"{ROUTE}/none")).status_code == 404
    assert (await bob.get_saved_view(view["id"])).content == {}


def renamed(number: int) -> Callable[[SavedView], SavedView]:
    return lambda view: change_view(view, 1, f"n{number}", None, 20.0)


def stored(number: int = 0, name: str = "running", content_json: str = "{}") -> SavedView:
    return SavedView(f"id-{number}", "experiments", name, 1, content_json, 1, 10.0, 10.0)


async def test_of_changes_that_meet_one_is_made(engine: sa.Engine) -> None:
    store = SavedViewStore(engine)
    await store.create(stored(), "r")
    changes = (store.change("id-0", renamed(number), f"r{number}") for number in range(8))
    results = await asyncio.gather(*changes, return_exceptions=True)
    made = [result for result in results if isinstance(result, SavedView)]
    assert [await store.find("id-0")] == made
    assert {result.code for result in results if isinstance(result, GanglineError)} == {"saved_view.changed"}


async def test_of_creations_that_meet_one_is_made(engine: sa.Engine) -> None:
    store = SavedViewStore(engine)
    creations = (store.create(stored(number), f"r{number}") for number in range(8))
    results = await asyncio.gather(*creations, return_exceptions=True)
    assert await store.list(1, "") == [result for result in results if isinstance(result, SavedView)]
    assert {result.code for result in results if isinstance(result, GanglineError)} == {"saved_view.exists"}
