"""The gateway's calls to the leader: while leadership moves, and while there is no leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from gangline.domain.experiment import Trial
from gangline.domain.state import State
from gangline.errors import Effect, ErrorKind, GanglineError
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2
from services.common import keys
from services.common.etcd import EtcdClient, Put
from services.common.server import Principal
from services.gateway.leader import leader_client as leader_module
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Mirror
from tests.support.gateway import CLUSTER_TOKEN
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until, within

# How long the calls of these tests wait for a leader. A call that must not wait ends in less than half of it.
PATIENCE_SECONDS = 8.0
ALICE = Caller(Principal(kind="user", name="alice"), "r7")
SUBMIT = scheduler_pb2.SubmitExperimentRequest(request_id="r1", owner="alice", config_json="{}")


@pytest_asyncio.fixture
async def mirror(etcd: EtcdClient) -> AsyncIterator[Mirror]:
    mirror = Mirror(etcd)
    await mirror.start()
    yield mirror
    await mirror.stop()


@pytest_asyncio.fixture
async def gateway(mirror: Mirror) -> AsyncIterator[Leader]:
    gateway = Leader(mirror, CLUSTER_TOKEN, patience_seconds=PATIENCE_SECONDS)
    yield gateway
    await gateway.close()


@pytest_asyncio.fixture
async def schedulers(etcd: EtcdClient, mirror: Mirror) -> AsyncIterator[list[StandInLeader]]:
    """The first one leads, and the mirror knows."""
    pair = [StandInLeader(etcd, CLUSTER_TOKEN), StandInLeader(etcd, CLUSTER_TOKEN)]
    await pair[0].start()
    await pair[1].start(leads=False)
    await until(lambda: mirror.state.leader is not None, "the mirror seeing the leader")
    yield pair
    for scheduler in pair:
        await scheduler.stop()


async def test_change_waits_for_the_next_leader_and_keeps_its_request_id(
    gateway: Leader, schedulers: list[StandInLeader]
) -> None:
    old, new = schedulers
    old.is_standby = True
    submitting = asyncio.create_task(gateway.call(lambda scheduler: scheduler.SubmitExperiment, SUBMIT))
    await until(lambda: bool(old.submissions), "the old leader being asked")
    await new.lead()
    answer = await within(8, submitting)
    assert answer.experiment.id == 1
    assert {submission.request_id for submission in (*old.submissions, *new.submissions)} == {"r1"}


async def test_change_outlives_a_leader_that_is_killed(gateway: Leader, schedulers: list[StandInLeader]) -> None:
    old, new = schedulers
    await old.stop()
    submitting = asyncio.create_task(gateway.call(lambda scheduler: scheduler.SubmitExperiment, SUBMIT))
    await old.resign()
    await new.lead()
    assert (await within(8, submitting)).experiment.id == 1


async def test_change_leaves_a_leader_that_hangs(
    gateway: Leader, schedulers: list[StandInLeader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "TRY_SECONDS", 0.3)
    old, new = schedulers
    old.is_quiet = True
    submitting = asyncio.create_task(gateway.call(lambda scheduler: scheduler.SubmitExperiment, SUBMIT))
    await until(lambda: bool(old.submissions), "the old leader being asked")
    await new.lead()
    assert (await within(8, submitting)).experiment.id == 1


async def test_change_leaves_a_silent_leader_as_soon_as_another_leads(
    gateway: Leader, schedulers: list[StandInLeader]
) -> None:
    old, new = schedulers
    old.is_quiet = True
    submitting = asyncio.create_task(gateway.call(lambda scheduler: scheduler.SubmitExperiment, SUBMIT))
    await until(lambda: bool(old.submissions), "the old leader being asked")
    await new.lead()
    assert (await within(leader_module.TRY_SECONDS / 2, submitting)).experiment.id == 1


async def test_refusal_by_the_leader_is_final_and_keeps_its_code(
    gateway: Leader, schedulers: list[StandInLeader]
) -> None:
    started = time.monotonic()
    with pytest.raises(GanglineError) as failure:
        await gateway.call(
            lambda scheduler: scheduler.KillExperiment,
            scheduler_pb2.SchedulerServiceKillExperimentRequest(request_id="r", experiment_id=404),
        )
    assert (failure.value.code, failure.value.kind) == ("experiment.not_found", ErrorKind.NOT_FOUND)
    assert time.monotonic() - started < PATIENCE_SECONDS / 2


async def test_a_users_change_carries_its_id_and_its_user_and_is_readable_afterwards(
    gateway: Leader, schedulers: list[StandInLeader], mirror: Mirror, etcd: EtcdClient
) -> None:
    await etcd.commit([Put(keys.trial("7.1"), wire.encode(Trial("7.1", 7, 1)))])
    request = scheduler_pb2.SchedulerServiceKillTrialRequest(trial_id="7.1")
    await gateway.change(ALICE, lambda scheduler: scheduler.KillTrial, request)
    ended = mirror.state.trials.find(keys.trial("7.1"))
    assert ended is not None
    assert (ended.state, ended.reason) == (State.TERMINAL, "killed by alice")
    assert (request.request_id, request.user) == ("r7", "alice")


@pytest.mark.parametrize(
    ("request_id", "code"),
    [("", "request.no_id"), ("r" * 201, "request.long_id")],
)
async def test_a_users_change_is_checked_before_it_leaves(
    gateway: Leader, schedulers: list[StandInLeader], request_id: str, code: str
) -> None:
    request = scheduler_pb2.ProfileTrialRequest(trial_id="7.1", batches=1)
    with pytest.raises(GanglineError) as failure:
        await gateway.change(replace(ALICE, request_id=request_id), lambda scheduler: scheduler.ProfileTrial, request)
    assert failure.value.code == code
    assert schedulers[0].trace_orders == []


async def test_patience_ends(mirror: Mirror, schedulers: list[StandInLeader]) -> None:
    schedulers[0].is_standby = True
    gateway = Leader(mirror, CLUSTER_TOKEN, patience_seconds=0.5)
    with pytest.raises(GanglineError) as failure:
        await within(5, gateway.call(lambda scheduler: scheduler.SubmitExperiment, SUBMIT))
    assert failure.value.code == "scheduler.not_leader"
    assert len(schedulers[0].submissions) >= 2
    await gateway.close()


async def test_without_a_leader_the_error_says_so_and_what_still_works(mirror: Mirror) -> None:
    patience_seconds = 2.0
    gateway = Leader(mirror, CLUSTER_TOKEN, patience_seconds=patience_seconds)
    with pytest.raises(GanglineError) as failure:
        await within(20, gateway.call(lambda scheduler: scheduler.SubmitExperiment, SUBMIT))
    assert (failure.value.code, failure.value.kind) == ("gateway.no_leader", ErrorKind.UNAVAILABLE)
    assert failure.value.message.startswith("no scheduler leads this cluster")
    # The patience is over by now, so the next one is told at once.
    started = time.monotonic()
    with pytest.raises(GanglineError):
        await gateway.call(lambda scheduler: scheduler.SubmitExperiment, SUBMIT)
    assert time.monotonic() - started < patience_seconds / 2
    await gateway.close()


async def test_calls_that_only_explain_do_not_wait(gateway: Leader) -> None:
    started = time.monotonic()
    with pytest.raises(GanglineError):
        await gateway.call_once(lambda scheduler: scheduler.ListPending, scheduler_pb2.ListPendingRequest(), 1.0)
    assert time.monotonic() - started < PATIENCE_SECONDS / 2


async def test_an_error_says_what_is_known_over_all_tries(
    mirror: Mirror, schedulers: list[StandInLeader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that stands by has done nothing. One that keeps quiet may have, whatever the next try answers."""
    # Long beside the pauses of a busy machine: a standby that answers later than this counts as quiet.
    monkeypatch.setattr(leader_module, "TRY_SECONDS", 1.5)
    gateway = Leader(mirror, CLUSTER_TOKEN, patience_seconds=2.5)
    schedulers[0].is_standby = True
    with pytest.raises(GanglineError) as failure:
        await gateway.call(lambda scheduler: scheduler.SubmitExperiment, SUBMIT)
    assert (failure.value.kind, failure.value.effect) == (ErrorKind.UNAVAILABLE, Effect.NONE)

    schedulers[0].is_standby, schedulers[0].is_quiet = False, True
    submitting = asyncio.create_task(gateway.call(lambda scheduler: scheduler.SubmitExperiment, SUBMIT))
    num_before = len(schedulers[0].submissions)
    await until(lambda: len(schedulers[0].submissions) > num_before, "the quiet leader being asked")
    schedulers[0].is_standby, schedulers[0].is_quiet = True, False
    with pytest.raises(GanglineError) as failure:
        await within(8, submitting)
    assert (failure.value.code, failure.value.effect) == ("scheduler.not_leader", Effect.UNKNOWN)
    await gateway.close()


async def test_a_failure_that_says_little_names_etcds_trouble(mirror: Mirror) -> None:
    gateway = Leader(mirror, CLUSTER_TOKEN, patience_seconds=0.2, etcd_problem=lambda: "etcd has no quorum")
    with pytest.raises(GanglineError) as failure:
        await within(5, gateway.call(lambda scheduler: scheduler.SubmitExperiment, SUBMIT))
    assert (failure.value.code, failure.value.effect) == ("gateway.no_etcd", Effect.NONE)
    assert failure.value.message.startswith("etcd has no quorum (no scheduler leads this cluster")
    await gateway.close()
