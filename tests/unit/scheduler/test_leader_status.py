"""How long a scheduler keeps a caller while no leader is known."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gangline.domain.resource import ServiceInstance
from gangline.errors import GanglineError
from services.common.etcd import EtcdClient
from services.scheduler.leader import leader_status as seat_module
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.leader.term import Term
from services.scheduler.state.directory import Directory
from services.scheduler.state.records import SchedulerState

OTHER = ServiceInstance(id="s2", kind="scheduler", grpc_address="10.0.0.2:8082")


@pytest.fixture
def directory() -> Directory:
    return Directory(cast("EtcdClient", None))


@pytest.fixture
def leader_status(directory: Directory) -> LeaderStatus:
    return LeaderStatus("s1", directory)


def _lead(directory: Directory, leader: ServiceInstance | None, epoch: int) -> None:
    directory.leader, directory.leader_epoch = leader, epoch
    directory.notify()


async def test_caller_is_kept_until_another_leader_is_known(leader_status: LeaderStatus, directory: Directory) -> None:
    reaching = asyncio.create_task(leader_status.reach())
    await asyncio.sleep(0.05)
    assert not reaching.done()
    _lead(directory, OTHER, 5)
    with pytest.raises(GanglineError, match=r"the leader is at 10\.0\.0\.2:8082"):
        await asyncio.wait_for(reaching, 1)


async def test_caller_is_kept_until_the_own_term_is_open(leader_status: LeaderStatus, directory: Directory) -> None:
    _lead(directory, ServiceInstance(id="s1", kind="scheduler", grpc_address="10.0.0.1:8082"), 6)
    reaching = asyncio.create_task(leader_status.reach())
    await asyncio.sleep(0.05)
    assert not reaching.done(), "it is elected, but cannot serve yet"
    term = cast("Term", _StandInTerm())
    leader_status.take(term)
    assert await asyncio.wait_for(reaching, 1) is term


async def test_caller_is_not_kept_for_ever(leader_status: LeaderStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat_module, "HOLD_SECONDS", 0.05)
    with pytest.raises(GanglineError, match="no scheduler leads right now"):
        await asyncio.wait_for(leader_status.reach(), 1)


class _StandInTerm:
    state = SchedulerState.of([])

    class store:  # noqa: N801 - an attribute of a term
        epoch = 6

    class context:  # noqa: N801 - an attribute of a term
        own_address = "10.0.0.1:8082"
