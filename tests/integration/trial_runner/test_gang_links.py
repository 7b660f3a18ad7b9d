"""A gang of real processes from start to end: two runners, four ranks, one all_reduce; and how each failure ends it."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from gangline.domain.state import ExitKind
from gangline.launch.child import descendants
from tests.integration.trial_runner.conftest import World
from tests.support.runner_peers import SchedulerPeer
from tests.support.runner_process import TOKEN, living
from tests.support.wait import until

JOIN = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("pid", os.getpid(), flush=True)
"""
SUM = (
    JOIN
    + """
x = torch.full((1,), float(rank + 1))
dist.all_reduce(x)
print(f"sum {int(x)} of {dist.get_world_size()}")
print("services", sorted(name for name in sys.modules if name.split(".")[0] == "services"))
print("env", os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"])
print("threads", torch.get_num_threads(), "stdin", repr(sys.stdin.read()))
from gangline import get_cluster_info
addresses = get_cluster_info().addresses
print("addresses", len(addresses), addresses[0] == os.environ["MASTER_ADDR"])
dist.destroy_process_group()
"""
)
LOOP = """
x = torch.zeros(1)
while True:
    dist.all_reduce(x)
    time.sleep(0.01)
"""


def end_seconds(world: World, *agents: str) -> list[float]:
    """How long each runner took from the moment at which it noticed the failure until its last rank was gone, as it
    measured that by its own monotonic clock."""
    pattern = re.compile(r"all ranks of (\S+) were gone (\d+\.\d+) s after the failure was noticed")
    matches = [match for match in map(pattern.fullmatch, world.gateway.lines("runner")) if match is not None]
    assert sorted(match[1] for match in matches) == sorted(agents)
    return [float(match[2]) for match in matches]


async def test_two_runners_form_a_gang_of_four_ranks(world: World) -> None:
    await world.start(SUM, (2, 2))
    reports = await world.wait()
    assert [report.kind for report in reports] == [ExitKind.COMPLETED, ExitKind.COMPLETED], reports
    assert world.gateway.lines("stdout").count("sum 10 of 4") == 4
    assert world.gateway.lines("stdout").count("services []") == 4
    assert world.gateway.lines("stdout").count("addresses 2 True") == 4
    assert sorted(line for line in world.gateway.lines("stdout") if line.startswith("env")) == [
        "env 0 0 1",
        "env 0 1 1",
        "env 1 0 1",
        "env 1 1 1",
    ]
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    assert world.gateway.lines("stdout").count(f"threads {cores} stdin ''") == 4
    for node_rank in (0, 1):
        timeline = world.scheduler.reports_of("running", node_rank)[0].timeline
        assert 0 < timeline.runner_up_at <= timeline.rendezvous_at <= timeline.ranks_up_at
        assert world.scheduler.reports_of("running", node_rank)[0].metrics_address


async def test_ranks_use_a_services_folder_of_their_own(world: World) -> None:
    script = "import services.model\nprint('mine:', services.model.NAME)"
    await world.start(script, (1,), files={"services/model.py": "NAME = 'the user'"})
    (report,) = await world.wait()
    assert report.kind is ExitKind.COMPLETED, report
    assert "mine: the user" in world.gateway.lines("stdout")


async def test_a_rank_that_raises_is_named_and_ends_everybody_within_a_second(world: World) -> None:
    script = JOIN + "if rank == 1:\n    time.sleep(0.2)\n    print('now', time.time(), flush=True)\n"
    script += "    raise ValueError('bad batch')\n" + LOOP
    await world.start(script, (2, 2))
    first, second = await world.wait()
    assert (first.kind, first.rank) == (ExitKind.USER_ERROR, 1)
    assert first.message == "ValueError: bad batch"
    assert any("bad batch" in line for line in first.last_lines)
    assert second.kind is ExitKind.PEER_FAILED
    assert second.message == "ended because rank 1 on a1 failed first: ValueError: bad batch"
    assert living(world.rank_pids()) == []
    raised_at = next(float(line.split()[1]) for line in world.gateway.lines("stdout", 1) if line.startswith("now"))
    assert abs(first.failed_at - raised_at) < 0.5
    assert max(end_seconds(world, "a1", "a2")) < 1.0


async def test_a_rank_that_is_killed_is_named_with_its_signal(world: World) -> None:
    await world.start(JOIN + LOOP, (2, 2))
    await world.wait_pids(4)
    victim = next(int(line.split()[1]) for line in world.gateway.lines("stdout", 3) if line.startswith("pid"))
    os.kill(victim, signal.SIGKILL)
    first, second = await world.wait()
    assert (second.kind, second.rank, second.signal) == (ExitKind.SIGNAL, 3, 9)
    assert second.message == "ended by signal 9 (SIGKILL)"
    assert first.kind is ExitKind.PEER_FAILED
    assert "rank 3 on a2 failed first" in first.message
    assert max(end_seconds(world, "a1", "a2")) < 1.0
    assert living(world.rank_pids()) == []


HANDLED = """
import os, sys, time, traceback

try:
    raise MemoryError("shard 3 is too large")
except MemoryError as error:
    {report}
for step in range(3):
    print("step", step, "fine", flush=True)
os._exit(7)
"""
PRINTED = 'print(f"MemoryError: {error}, skipped", flush=True)'
TRACED = "traceback.print_exc(); time.sleep(1.2)"


@pytest.mark.parametrize("report", [PRINTED, TRACED])
async def test_an_error_that_the_code_went_on_from_is_not_the_cause_of_its_exit_code(world: World, report: str) -> None:
    await world.start(HANDLED.replace("{report}", report), (1,), entrypoint="python3 train.py")
    (ended,) = await world.wait()
    assert (ended.kind, ended.exit_code, ended.rank) == (ExitKind.USER_ERROR, 7, 0)
    assert ended.message.startswith("exited with code 7; its last line")
    assert ended.message.endswith('was "step 2 fine"')
    assert ended.last_lines[-1] == "step 2 fine"


async def test_the_traceback_of_a_program_below_a_shell_is_the_cause_of_its_exit_code(world: World) -> None:
    await world.start("print('begun')\nimport no_such", (1,), entrypoint="bash -c 'python3 train.py || exit 5'")
    (ended,) = await world.wait()
    assert (ended.kind, ended.exit_code) == (ExitKind.IMPORT_ERROR, 5)
    assert ended.message == "ModuleNotFoundError: No module named 'no_such'; exited with code 5"


async def test_a_rank_that_hangs_after_its_training_does_not_change_the_outcome(world: World) -> None:
    # A rank may be through before another one has joined. None of them has trained then.
    script = JOIN + "import atexit\natexit.register(time.sleep, 600)\ndist.barrier()\nprint('trained', flush=True)"
    await world.start(script, (2,))
    await world.gateway.wait_line("trained")
    trained_at = time.time()
    (report,) = await world.wait(20)
    assert report.kind is ExitKind.COMPLETED, report
    assert 4 < time.time() - trained_at < 8
    assert living(world.rank_pids()) == []


async def test_no_rank_survives_the_kill_of_its_runner(world: World) -> None:
    script = JOIN + "import subprocess\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    script += "print('pid', child.pid, flush=True)\n" + LOOP
    (runner,) = await world.start(script, (2,))
    pids = await world.wait_pids(4)
    nursery = runner.nursery_pid()
    below = [nursery, *descendants(nursery), *pids]
    assert set(pids) <= set(descendants(nursery))
    recorded = [int(pid) for pid in (runner.directory / "ranks.pid").read_text().split()]
    assert len(recorded) == 2
    assert all(os.getpgid(pid) == pid for pid in recorded), "the agent ends them by their groups"
    runner.kill(signal.SIGKILL)
    await until(lambda: not living(below), "the end of all ranks", 5)


async def test_a_lost_runner_ends_the_rest_of_the_gang(world: World) -> None:
    first, second = await world.start(JOIN + LOOP, (1, 1))
    await world.wait_pids(2)
    second.kill(signal.SIGKILL)
    report = await first.wait()
    assert report.kind is ExitKind.PEER_FAILED
    assert report.message == "ended because the trial runner of agent a2 is gone"
    assert max(end_seconds(world, "a1")) < 1.0
    assert living(world.rank_pids()) == []


async def test_a_member_that_does_not_come_is_named(world: World) -> None:
    await world.prepare(SUM, (1, 1), rendezvous_seconds=1.0)
    report = await world.launch(0).wait()
    assert report.kind is ExitKind.RENDEZVOUS
    assert report.message == "a2 did not arrive within 1 s"
    assert any("waiting for the other members of the gang: a2 missing since" in line for line in world.gateway.lines())


async def test_a_silent_scheduler_ends_the_rendezvous_all_the_same(world: World) -> None:
    await world.prepare(SUM, (1, 1), rendezvous_seconds=0.5)
    await world.scheduler.stop()
    report = await world.launch(0).wait(20)
    assert report.kind is ExitKind.RENDEZVOUS
    address = world.scheduler.address
    expected = f"the rendezvous was not complete after 0.5 s: the scheduler at {address} did not answer"
    assert report.message == expected


async def test_the_gang_meets_through_the_leader_that_a_standby_names(world: World) -> None:
    await world.prepare(SUM, (1, 1))
    standby = SchedulerPeer(TOKEN, [], [])
    await standby.start()
    world.schedulers.append(standby)
    standby.leader_address = world.scheduler.address
    for node_rank, spec in enumerate(world.specs):
        spec.scheduler_addresses[:] = [standby.address]
        world.launch(node_rank)
    reports = await world.wait()
    assert [report.kind for report in reports] == [ExitKind.COMPLETED, ExitKind.COMPLETED], reports
    assert world.gateway.lines("stdout").count("sum 3 of 2") == 2


async def test_a_gang_whose_scheduler_restarts_while_it_meets_meets_all_the_same(world: World) -> None:
    await world.prepare(SUM, (1, 1))
    world.launch(0)
    await until(lambda: world.scheduler.num_joins == 1, "the first member's hello")
    await world.scheduler.stop()
    world.scheduler.forget()
    await world.scheduler.start()
    world.launch(1)
    reports = await world.wait()
    assert [report.kind for report in reports] == [ExitKind.COMPLETED, ExitKind.COMPLETED], reports
    assert world.scheduler.num_joins >= 3


async def test_training_goes_on_without_scheduler_and_gateway(world: World) -> None:
    script = JOIN + "for step in range(20):\n    dist.all_reduce(torch.zeros(1))\n    time.sleep(0.05)\nprint('done')"
    await world.start(script, (1, 1))
    await world.wait_pids(2)
    await world.scheduler.stop()
    await world.gateway.stop()
    reports = await world.wait()
    assert [report.kind for report in reports] == [ExitKind.COMPLETED, ExitKind.COMPLETED], reports
    await world.gateway.start()
    await world.gateway.wait_for(lambda: world.gateway.lines("stdout").count("done") == 2, 20, "both last lines")
