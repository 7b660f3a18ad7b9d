"""The leader refuses by its own records what a gateway should not have let through."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from gangline.domain.state import Availability
from gangline.domain.user import CLUSTER_NAME
from gangline.errors import GanglineError
from gangline.v1 import access_pb2
from tests.integration.scheduler.conftest import Bench
from tests.support.scheduler import config_json


async def _code(call: Awaitable[object]) -> str:
    with pytest.raises(GanglineError) as caught:
        await call
    return caught.value.code


async def test_the_leader_decides_by_its_own_records(bench: Bench) -> None:
    await bench.scheduler()
    await bench.agent("a1")
    for _ in range(2):
        await bench.caller.submit(config_json())
    # Every editor ends the work of others as long as the cluster is open, but deletes none of it.
    assert (await bench.caller.end(1, user="eve")).experiment.id == 1
    assert await _code(bench.caller.delete_experiment(1, user="eve")) == "auth.not_owner"
    assert await _code(bench.caller.change_agent("a1", Availability.DRAINING, user="eve")) == "auth.not_admin"
    close = access_pb2.SchedulerServiceAssignRoleRequest(
        request_id="close", role=access_pb2.ROLE_EDITOR, subject_group="everyone", user="eve"
    )
    # A user without a record changes no roles.
    assert await _code(bench.caller.call("AssignRole", close)) == "auth.inactive"
    close.user, close.is_admin = CLUSTER_NAME, True
    await bench.caller.call("AssignRole", close)
    assert await _code(bench.caller.end(2, user="eve")) == "auth.not_owner"
    assert (await bench.caller.end(2)).experiment.id == 2
