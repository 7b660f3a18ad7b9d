"""Quotas through real schedulers, a real gateway and its clients: one user is at the quota, another goes on, and the
leader is killed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gangline.client import AsyncClient
from gangline.domain.quota import SlotUse, user_subject, workspace_subject
from gangline.domain.state import ExitKind, State
from gangline.errors import GanglineError
from gangline.protocol import wire
from services.common import keys
from tests.integration.scheduler.conftest import Bench
from tests.support.gateway import USER_TOKEN, GatewayProcess, add_user
from tests.support.scheduler import config_json
from tests.support.scripted_agent import ScriptedAgent
from tests.support.wait import until_async

BOB_TOKEN = "token-of-bob-in-the-tests"
ADMIN_TOKEN = "token-of-an-administrator-in-the-tests"


@pytest_asyncio.fixture
async def gateway(bench: Bench) -> AsyncIterator[GatewayProcess]:
    await add_user(bench.etcd)
    await add_user(bench.etcd, "bob", BOB_TOKEN)
    await add_user(bench.etcd, "root", ADMIN_TOKEN, is_admin=True)
    process = GatewayProcess(bench.directory, bench.settings.endpoints[0])
    yield process
    await process.end()


async def _waits(bench: Bench, experiment_id: int) -> str:
    """Returns why the first trial waits, once it does."""
    reasons: dict[str, str] = {}

    async def is_known() -> bool:
        pending = await bench.caller.list_pending()
        reasons.update({each.request.trial_id: each.reason.message for each in pending})
        return f"{experiment_id}.1" in reasons

    await until_async(is_known, f"a reason for experiment {experiment_id}")
    return reasons[f"{experiment_id}.1"]


async def _runs(agent: ScriptedAgent, allocation_id: str) -> None:
    async def is_started() -> bool:
        return allocation_id in agent.journal

    await until_async(is_started, allocation_id)


async def _seconds(bench: Bench, subject_id: str) -> float:
    for item in (await bench.etcd.list(keys.slot_use(subject_id))).items:
        return wire.decode(SlotUse, item.value).slot_seconds
    return 0.0


async def test_a_user_at_the_quota_waits_while_another_goes_on_over_a_change_of_the_leader(
    bench: Bench, gateway: GatewayProcess
) -> None:
    leader = await bench.scheduler("s1")
    await gateway.start()
    agent = await bench.agent("a1", 8)
    admin = AsyncClient(gateway.addresses["grpc"], ADMIN_TOKEN)
    quota = await admin.set_quota("user", "alice", max_slots=2)
    assert (quota.max_slots, quota.held_slots, quota.changed_by) == (2, 0, "root")
    await bench.caller.submit(config_json(2), owner="alice")
    await _runs(agent, "1.1.1")
    waiting = await bench.caller.submit(config_json(1), owner="alice")
    assert list(waiting.warnings) == [
        "user alice has 2 of 2 slots, and this needs 1 more; it waits until some are free"
    ]
    await bench.caller.submit(config_json(4), owner="bob")
    await _runs(agent, "3.1.1")
    assert await _waits(bench, 2) == "needs 1 slot; user alice has or was promised 2 of 2 slots"
    leader.end()
    await bench.scheduler("s2")
    await bench.caller.submit(config_json(2), owner="bob")
    await _runs(agent, "4.1.1")
    assert await _waits(bench, 2) == "needs 1 slot; user alice has or was promised 2 of 2 slots"
    agent.finish("1.1.1", ExitKind.COMPLETED)
    await _runs(agent, "2.1.1")
    agent.finish("2.1.1", ExitKind.COMPLETED)
    await bench.eventually(lambda: bench.experiment(2), lambda record: record.state is State.TERMINAL)
    expected = 0.0
    for trial_id, slots in (("1.1", 2), ("2.1", 1)):
        trial = await bench.trial(trial_id)
        assert trial is not None
        [usage] = trial.attempt_usages
        expected += slots * (usage.ended_at - usage.started_at)
    assert abs(await _seconds(bench, user_subject("alice").id) - expected) < 1e-6
    assert abs(await _seconds(bench, workspace_subject(1).id) - expected) < 1e-6
    view = await admin.find_quota("user", "alice")
    assert view.held_slots == 0
    assert abs(view.used_hours * 3600 - expected) < 1e-6
    with pytest.raises(GanglineError) as failure:
        await bench.caller.submit(config_json(4), owner="alice")
    assert failure.value.code == "quota.never_fits"
    assert failure.value.message.startswith("would need 4 slots, user alice may have 2; ask an administrator, or set")
    await admin.set_quota("user", "alice", slot_hours=expected / 3600)
    await bench.caller.submit(config_json(1), owner="alice")
    assert "slot-hours of this month" in await _waits(bench, 5)
    await admin.remove_quota("user", "alice")
    await _runs(agent, "5.1.1")
    await admin.close()


async def test_users_see_their_own_quota_and_set_none(bench: Bench, gateway: GatewayProcess) -> None:
    await bench.scheduler("s1")
    await gateway.start()
    address = f"http://{gateway.addresses['http']}/api/v1"
    clients = {
        name: httpx.AsyncClient(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=20)
        for name, token in (("root", ADMIN_TOKEN), ("alice", USER_TOKEN), ("bob", BOB_TOKEN))
    }

    async def names(user: str) -> list[str]:
        quotas: list[dict[str, Any]] = (await clients[user].get("/quotas")).json()["quotas"]
        return [f"{quota['kind']} {quota['name']}" for quota in quotas]

    body = {"maxSlots": 8, "slotHours": 12.5}
    for path in ("user/alice", "user/bob", "workspace/Uncategorized"):
        answer = await clients["root"].put(f"/quotas/{path}", json=body)
        assert answer.status_code == 200, answer.text
    quota = answer.json()["quota"]
    assert (quota["maxSlots"], quota["leftSlots"], quota["slotHours"], quota["leftHours"]) == (8, 8, 12.5, 12.5)
    assert await names("root") == ["user alice", "user bob", "workspace Uncategorized"]
    assert await names("alice") == ["user alice", "workspace Uncategorized"]
    assert (await clients["bob"].get("/quotas/user/alice")).status_code == 404
    assert (await clients["bob"].get("/quotas/user/bob")).json()["quota"]["changedBy"] == "root"
    for method, content in (("PUT", body), ("DELETE", None)):
        answer = await clients["bob"].request(method, "/quotas/user/bob", json=content)
        assert answer.status_code == 403, answer.text
        assert answer.json()["code"] == "auth.not_admin"
    for bad in ({}, {"maxSlots": 10**9}, {"maxSlots": 1.5}):
        assert (await clients["root"].put("/quotas/user/bob", json=bad)).status_code == 400
    assert (await clients["root"].put("/quotas/user/carl", json=body)).status_code == 404
    for _ in range(2):
        assert (await clients["root"].delete("/quotas/user/bob")).status_code == 204
    assert await names("bob") == ["workspace Uncategorized"]
    await asyncio.gather(*(client.aclose() for client in clients.values()))
