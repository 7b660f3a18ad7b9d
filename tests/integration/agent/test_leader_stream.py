"""The link against real gRPC servers: standbys, new leaders, old epochs, lost streams, statuses that must arrive."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from gangline.protocol import rpc
from gangline.v1 import agent_pb2, types_pb2
from services.agent.allocations.command_check import refuse_epoch
from services.agent.connection import leader_stream as link_module
from services.agent.connection.heartbeat import STALLED_SECONDS, HeartbeatThread
from services.agent.connection.leader_answers import LeaderAnswers, Outbox
from services.agent.connection.leader_stream import LeaderStream
from tests.support.agent_process import wait_until
from tests.support.stand_in_scheduler import TOKEN, StandInScheduler

# After the heartbeat that follows a welcome, none is due for days.
FAR_LEASE_SECONDS = 1e6


class RecordingPeer:
    """An agent of which only the link's side is real."""

    def __init__(self) -> None:
        self.highest_epoch = 0
        self.commands: list[agent_pb2.ConnectResponse] = []
        self.ended: list[agent_pb2.AllocationStatus] = []

    def hello(self) -> agent_pb2.AgentHello:
        return agent_pb2.AgentHello(
            agent=types_pb2.Agent(id="a1"), highest_epoch=self.highest_epoch, allocations=self.ended
        )

    def refuse_leader(self, epoch: int) -> str:
        refusal = refuse_epoch(epoch, self.highest_epoch)
        self.highest_epoch = max(self.highest_epoch, epoch)
        return refusal

    async def on_command(self, command: agent_pb2.ConnectResponse) -> None:
        self.commands.append(command)

    def unforgotten(self) -> Sequence[agent_pb2.AllocationStatus]:
        return self.ended


class Linked:
    """A running link over recording schedulers."""

    def __init__(self) -> None:
        self.peer = RecordingPeer()
        self.outbox: Outbox = asyncio.Queue()
        self.answers = LeaderAnswers(self.outbox)
        self.link: LeaderStream | None = None
        self._schedulers: list[StandInScheduler] = []
        self._task: asyncio.Task[None] | None = None

    async def serve(self, epoch: int = 10, listen: str = "127.0.0.1:0") -> StandInScheduler:
        scheduler = StandInScheduler(epoch)
        await scheduler.start(listen)
        self._schedulers.append(scheduler)
        return scheduler

    def start(self, *addresses: str, token: str = TOKEN) -> LeaderStream:
        self.link = LeaderStream(addresses, token, self.peer, self.outbox, self.answers)
        self._task = asyncio.create_task(self.link.run())
        return self.link

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for scheduler in self._schedulers:
            await scheduler.stop()


@pytest.fixture
async def linked() -> AsyncIterator[Linked]:
    linked = Linked()
    yield linked
    await linked.close()


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _ended(allocation_id: str) -> agent_pb2.AllocationStatus:
    exit_report = types_pb2.ExitReport(kind=types_pb2.EXIT_KIND_COMPLETED)
    return agent_pb2.AllocationStatus(allocation_id=allocation_id, state=types_pb2.STATE_TERMINAL, exit=exit_report)


async def test_hello_and_heartbeats(linked: Linked) -> None:
    scheduler = await linked.serve()
    linked.start(scheduler.address)
    await scheduler.wait_for(lambda: scheduler.num_heartbeats >= 3)
    assert [hello.agent.id for hello in scheduler.hellos] == ["a1"]
    assert linked.answers.heartbeat_at is not None


async def test_commands_arrive_in_order(linked: Linked) -> None:
    scheduler = await linked.serve()
    linked.start(scheduler.address)
    await scheduler.wait_connected()
    for number in range(1, 20):
        scheduler.forget(f"{number}.1.1")
    await wait_until(lambda: len(linked.peer.commands) == 19)
    assert [command.forget.allocation_id for command in linked.peer.commands] == [f"{n}.1.1" for n in range(1, 20)]


async def test_standby_names_a_leader_that_was_not_configured(linked: Linked) -> None:
    standby, leader = await linked.serve(), await linked.serve()
    standby.leader = leader.address
    linked.start(standby.address)
    await leader.wait_connected()
    assert standby.hellos == []


async def test_standbys_that_name_each_other_are_not_asked_in_a_tight_loop(linked: Linked) -> None:
    first, second = await linked.serve(), await linked.serve()
    first.leader, second.leader = second.address, first.address
    linked.start(first.address, second.address)
    await wait_until(lambda: first.num_refused + second.num_refused >= 4)
    first.leader = ""
    await first.wait_connected()
    assert first.num_refused + second.num_refused < 100


async def test_first_address_is_dead(linked: Linked) -> None:
    scheduler = await linked.serve()
    linked.start(_free_address(), scheduler.address)
    await scheduler.wait_connected()


async def test_leader_that_steps_down_is_left_for_the_next(linked: Linked) -> None:
    first, second = await linked.serve(10), await linked.serve(11)
    second.leader = first.address
    linked.start(first.address, second.address)
    await first.wait_connected()
    first.leader, second.leader = second.address, ""
    first.drop_streams()
    await second.wait_connected()
    assert second.hellos[0].highest_epoch == 10


async def test_leader_that_dies_and_comes_back_elsewhere(linked: Linked) -> None:
    address = _free_address()
    first = await linked.serve(10)
    linked.start(first.address, address)
    await first.wait_connected()
    await first.stop()
    second = await linked.serve(11, address)
    await second.wait_connected()


async def test_no_scheduler_at_first(linked: Linked) -> None:
    address = _free_address()
    linked.start(address)
    await asyncio.sleep(0)
    scheduler = await linked.serve(listen=address)
    await scheduler.wait_connected()


async def test_leader_of_an_older_epoch_is_refused(linked: Linked) -> None:
    """One that was deposed and has not noticed yet: its welcome is worth nothing."""
    old, new = await linked.serve(9), await linked.serve(11)
    linked.peer.highest_epoch = 11
    linked.start(old.address, new.address)
    await new.wait_connected()
    await old.wait_for(lambda: not old.streams)
    assert old.num_heartbeats == 0
    assert linked.peer.highest_epoch == 11


async def test_wrong_token_is_tried_on_and_not_fatal(linked: Linked) -> None:
    scheduler = await linked.serve()
    linked.start(scheduler.address, token="not-the-token-of-the-cluster")
    await wait_until(lambda: scheduler.num_unauthenticated >= 3)
    assert scheduler.hellos == []


async def test_final_statuses_come_again_until_forgotten(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "RESEND_SECONDS", 0.1)
    scheduler = await linked.serve()
    linked.peer.ended = [_ended("1.1.1")]
    linked.start(scheduler.address)
    await scheduler.wait_for(lambda: len(scheduler.statuses) >= 4)
    linked.peer.ended = []
    seen, beats = len(scheduler.statuses), scheduler.num_heartbeats
    await scheduler.wait_for(lambda: scheduler.num_heartbeats >= beats + 5)
    assert len(scheduler.statuses) <= seen + 1, "one may have been on its way"


async def test_status_is_sent_at_once(linked: Linked) -> None:
    scheduler = await linked.serve()
    linked.start(scheduler.address)
    await scheduler.wait_connected()
    linked.outbox.put_nowait(agent_pb2.ConnectRequest(status=_ended("1.1.1")))
    await scheduler.wait_status("1.1.1", types_pb2.STATE_TERMINAL)


async def test_every_message_tells_when_it_was_sent(linked: Linked) -> None:
    scheduler = await linked.serve()
    linked.start(scheduler.address)
    await scheduler.wait_connected()
    linked.outbox.put_nowait(agent_pb2.ConnectRequest(status=_ended("1.1.1")))
    await scheduler.wait_for(lambda: scheduler.statuses and scheduler.num_heartbeats)
    assert all(0 <= latency < 60 for latency in scheduler.latencies)


async def test_slots_are_sent_at_once(linked: Linked) -> None:
    scheduler = await linked.serve()
    linked.start(scheduler.address)
    await scheduler.wait_connected()
    slot = types_pb2.Slot(id="a1/GPU-1", problem="it is lost")
    linked.outbox.put_nowait(agent_pb2.ConnectRequest(slots=agent_pb2.AgentSlots(slots=[slot])))
    await scheduler.wait_for(lambda: scheduler.slots)
    assert scheduler.problems == {"a1/GPU-1": "it is lost"}


async def test_statuses_of_a_lost_stream_are_in_the_next_hello(linked: Linked) -> None:
    first, second = await linked.serve(10), await linked.serve(11)
    linked.start(first.address, second.address)
    await first.wait_connected()
    linked.peer.ended = [_ended("1.1.1")]
    await first.stop()
    linked.outbox.put_nowait(agent_pb2.ConnectRequest(status=_ended("1.1.1")))
    await second.wait_connected()
    assert [status.allocation_id for status in second.hellos[0].allocations] == ["1.1.1"]


async def test_reconnect_greets_anew(linked: Linked) -> None:
    scheduler = await linked.serve()
    link = linked.start(scheduler.address)
    await scheduler.wait_connected()
    known = len(scheduler.hellos)
    link.reconnect()
    await scheduler.wait_greeted(known)


async def test_silent_server_is_left(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that accepts and never answers must not hold the agent up."""
    monkeypatch.setattr(link_module, "WELCOME_SECONDS", 0.3)
    scheduler = await linked.serve()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        linked.start(f"127.0.0.1:{silent.getsockname()[1]}", scheduler.address)
        await scheduler.wait_connected()


async def test_silent_leader_is_left_as_soon_as_a_standby_names_another(linked: Linked) -> None:
    """The old leader keeps its stream open, as one that is paused. The question that the agent put to it before it was
    known to lead stays unanswered, and holds up nothing."""
    old, standby, new = await linked.serve(10), await linked.serve(10), await linked.serve(11)
    standby.leader = old.address
    linked.start(old.address, standby.address)
    await old.wait_connected()
    await standby.wait_for(lambda: standby.num_questions, 5)
    standby.tell(11, new.address)
    await asyncio.wait_for(new.wait_connected(), 2)
    assert new.hellos[0].highest_epoch == 10
    await old.wait_for(lambda: not old.streams)


async def test_scheduler_that_leads_anew_is_greeted_again(linked: Linked) -> None:
    """It was paused, and has lost and won the leadership since. Its stream of before may be known to no one there."""
    scheduler = await linked.serve(10)
    linked.start(scheduler.address)
    await scheduler.wait_connected()
    await scheduler.wait_for(lambda: scheduler.num_questions)
    scheduler.epoch = 11
    scheduler.tell(11, scheduler.address)
    await scheduler.wait_for(lambda: len(scheduler.hellos) >= 2)
    assert scheduler.hellos[1].highest_epoch == 10
    await scheduler.wait_for(lambda: any(beat.epoch == 11 for _, beat in scheduler.pulses))


async def test_scheduler_whose_welcome_is_older_than_its_term_is_greeted_again(linked: Linked) -> None:
    """The agent hears of the new term before the welcome, which was on its way since the last one."""
    scheduler = await linked.serve(10)
    scheduler.welcomes.clear()
    linked.start(scheduler.address)
    await scheduler.wait_for(lambda: scheduler.hellos and scheduler.num_questions)
    scheduler.epoch = 11
    scheduler.tell(11, scheduler.address)
    await scheduler.wait_for(lambda: scheduler.num_questions >= 2)
    scheduler.welcomes.set()
    await scheduler.wait_for(lambda: len(scheduler.hellos) >= 2)
    await scheduler.wait_for(lambda: any(beat.epoch == 11 for _, beat in scheduler.pulses))


async def test_leader_that_is_not_newer_is_not_followed(linked: Linked) -> None:
    old, standby, leader = await linked.serve(9), await linked.serve(10), await linked.serve(10)
    standby.leader = leader.address
    linked.start(leader.address, standby.address)
    await leader.wait_connected()
    await standby.wait_for(lambda: standby.num_questions)
    standby.tell(9, old.address, [leader.address, standby.address])
    await standby.wait_for(lambda: standby.num_questions >= 2)
    assert old.hellos == []
    assert len(leader.hellos) == 1


async def test_schedulers_that_were_started_later_are_known(linked: Linked) -> None:
    first = await linked.serve(10)
    linked.start(first.address)
    await first.wait_connected()
    # The only scheduler is asked itself.
    await first.wait_for(lambda: first.num_questions)
    second = await linked.serve(11)
    for scheduler in (first, second):
        scheduler.tell(0, "", [first.address, second.address])
    await second.wait_for(lambda: second.num_questions)
    await first.stop()
    await asyncio.wait_for(second.wait_connected(), 5)


async def test_heartbeats_come_over_a_connection_of_their_own(linked: Linked) -> None:
    scheduler = await linked.serve(10)
    linked.start(scheduler.address)
    await scheduler.wait_for(lambda: len(scheduler.pulses) >= 5)
    assert {(beat.agent_id, beat.epoch) for _, beat in scheduler.pulses} == {("a1", 10)}
    # They end with the stream that they belong to.
    second = await linked.serve(11)
    scheduler.leader = second.address
    scheduler.drop_streams()
    await second.wait_for(lambda: len(second.pulses) >= 5)
    assert {beat.epoch for _, beat in second.pulses} == {11}
    seen = len(scheduler.pulses)
    await second.wait_for(lambda: len(second.pulses) >= 15)
    assert len(scheduler.pulses) <= seen + 1, "one may have been on its way"


async def test_heartbeats_of_both_connections_are_due_together(linked: Linked) -> None:
    """At the same times as other periodic work of this machine, so that they wake each process once."""
    scheduler = await linked.serve(10)
    scheduler.lease_seconds = 5.0
    # The first heartbeats follow the welcome. They are sent in the middle of a period, which is 1 s.
    await asyncio.sleep((0.5 - time.monotonic()) % 1.0)
    linked.start(scheduler.address)
    await scheduler.wait_for(lambda: len(scheduler.pulses) >= 4 and len(scheduler.beaten_at) >= 4)
    for times in ([at for at, _ in scheduler.pulses], scheduler.beaten_at):
        late_seconds = [at % 1.0 for at in times[1:4]]
        assert min(late_seconds) < 0.2, late_seconds


async def test_an_event_loop_that_has_stopped_for_good_is_not_spoken_for(linked: Linked) -> None:
    scheduler = await linked.serve(10)
    alive_at = time.monotonic() - STALLED_SECONDS
    beat = agent_pb2.HeartbeatRequest(agent_id="a1", epoch=10)
    heartbeat_thread = HeartbeatThread(scheduler.address, rpc.token_metadata(TOKEN), beat, 0.02, lambda: alive_at)
    heartbeat_thread.start()
    try:
        await asyncio.sleep(0.5)
        assert scheduler.pulses == []
        alive_at = time.monotonic()
        await scheduler.wait_for(lambda: scheduler.pulses)
    finally:
        heartbeat_thread.stop()


async def test_a_question_is_answered_after_the_orders_before_it(linked: Linked) -> None:
    scheduler = await linked.serve()
    scheduler.answers, scheduler.promises_answers, scheduler.lease_seconds = True, True, FAR_LEASE_SECONDS
    linked.start(scheduler.address)
    # The one heartbeat that follows a welcome at once.
    await scheduler.wait_for(lambda: scheduler.num_heartbeats == 1)
    scheduler.answers = False
    asking = [asyncio.create_task(linked.answers.ask_leader()) for _ in range(3)]
    await scheduler.wait_for(lambda: scheduler.num_heartbeats == 2)
    scheduler.forget("1.1.1")
    await wait_until(lambda: len(linked.peer.commands) == 1)
    assert not any(task.done() for task in asking), "an order is no answer, nor is the welcome"
    scheduler.answer()
    await asyncio.wait_for(asyncio.gather(*asking), 20)
    assert scheduler.num_heartbeats == 2, "questions at the same time are one"


async def test_a_question_of_a_lost_stream_is_answered_over_the_next(linked: Linked) -> None:
    scheduler = await linked.serve()
    scheduler.answers, scheduler.promises_answers, scheduler.lease_seconds = True, True, FAR_LEASE_SECONDS
    linked.start(scheduler.address)
    await scheduler.wait_for(lambda: scheduler.num_heartbeats == 1)
    scheduler.answers = False
    asking = asyncio.create_task(linked.answers.ask_leader())
    await scheduler.wait_for(lambda: scheduler.num_heartbeats == 2)
    scheduler.drop_streams()
    await scheduler.wait_for(lambda: scheduler.num_heartbeats == 3)
    assert not asking.done()
    scheduler.answer()
    await asyncio.wait_for(asking, 20)
