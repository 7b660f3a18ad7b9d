"""Short commands one after another in one process of a trial runner: real runners below a roster, no scheduler."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from google.protobuf import json_format

from gangline.domain.settled.reading import settle
from gangline.domain.state import ExitKind
from gangline.domain.storage.partial import PREFIX
from gangline.v1 import agent_pb2, runner_pb2, types_pb2
from services.agent.allocations import command_runner
from services.agent.allocations.journal import Journal, open_journal
from services.agent.allocations.journal_record import JournalStop, Phase, Process, parse_record
from services.agent.allocations.launcher import Launcher, RunnerProgram
from services.agent.allocations.recovery import RecoveryVerdict, plan_recovery
from services.agent.allocations.roster import Roster
from services.agent.allocations.warm import WarmTemplate
from services.agent.machine import metrics
from services.common import disk
from tests.support.agent_process import is_running, wait_until
from tests.support.runner_process import end_drainer, make_spec


class Commands:
    """A roster that runs one command after another."""

    def __init__(self, journal: Journal, template: WarmTemplate, folder: Path) -> None:
        self.folder = folder
        self.journal = journal
        self.exits: dict[str, types_pb2.ExitReport] = {}
        self.statuses: list[agent_pb2.AllocationStatus] = []
        self._template = template
        self.renew_roster()

    def renew_roster(self) -> None:
        self.launcher = Launcher(RunnerProgram(), self._template, "")
        self.roster = Roster("a1", self.journal, self.launcher, self._on_status)

    def begin(self, allocation_id: str, command: str, slot: str = "a1/0") -> None:
        away = ["127.0.0.1:1"]
        spec = make_spec([("a1", 1)], 0, command, allocation_id=allocation_id, scheduler=away, gateway=away)
        spec.storage_url = f"file://{self.folder}/storage"
        self.roster.accept(spec, (slot,), "")

    async def run(self, allocation_id: str, command: str, slot: str = "a1/0") -> types_pb2.ExitReport:
        self.begin(allocation_id, command, slot)
        return await self.end(allocation_id)

    async def end(self, allocation_id: str) -> types_pb2.ExitReport:
        return await wait_until(lambda: self.exits.get(allocation_id))

    def process(self, allocation_id: str) -> Process:
        lifecycle = self.roster.find(allocation_id)
        assert lifecycle is not None
        assert lifecycle.record.process is not None
        return lifecycle.record.process

    def _on_status(self, status: agent_pb2.AllocationStatus) -> None:
        self.statuses.append(status)
        if status.state == types_pb2.STATE_TERMINAL:
            self.exits[status.allocation_id] = status.exit


@pytest_asyncio.fixture(scope="module")
async def template(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WarmTemplate]:
    """One for all of the tests, because its imports take longer than a test."""
    folder = tmp_path_factory.mktemp("template")
    made = WarmTemplate(
        "runner-template", (*RunnerProgram().preload, "services.agent.allocations.runner_entry"), folder
    )
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def commands(tmp_path: Path, template: WarmTemplate) -> AsyncIterator[Commands]:
    with open_journal(tmp_path, 0) as journal:
        made = Commands(journal, template, tmp_path)
        yield made
        await made.roster.stop_all(0.0, "the test is over")
        await made.roster.close()
    end_drainer(tmp_path)


async def test_commands_in_a_row_share_one_process_and_nothing_else(commands: Commands) -> None:
    told = commands.folder / "told"
    report = f'echo "$PWD $$ $(ps -o sid= -p $$) $OWN $(ls -l /proc/$$/fd | grep -c allocations)" >> {told}'
    reused = metrics.runner_starts.labels(kind="reused")._value.get()
    processes: list[Process] = []
    # On a busy machine a command may take too long for its process to take another one.
    while len(processes) < 3 or len({*processes[-3:]}) > 1:
        assert len(processes) < 20, "no three commands in a row shared a process"
        number = len(processes) + 1
        own = f"export OWN=${{OWN:-unset}}; {report}; export OWN={number}"
        assert (await commands.run(f"{number}.1.1", own)).kind == types_pb2.EXIT_KIND_COMPLETED
        processes.append(commands.process(f"{number}.1.1"))
    num_reused = len(processes) - len({*processes})
    assert metrics.runner_starts.labels(kind="reused")._value.get() == reused + num_reused
    for number, line in enumerate(told.read_text().splitlines(), 1):
        directory, pid, session, own, num_open = line.split()
        assert directory == str(commands.journal.folder(f"{number}.1.1").path / "code")
        assert session == pid, "each leads a session of its own"
        assert own == "unset"
        assert num_open == "0", "no file of any allocation is open in it"
    for number in range(1, len(processes) + 1):
        folder = commands.journal.folder(f"{number}.1.1")
        assert f'"allocation_id": "{number}.1.1"' in folder.log_path.read_text()
        assert not folder.is_locked()


async def test_a_command_of_which_there_is_something_to_say_is_the_last_one_of_its_process(commands: Commands) -> None:
    await commands.run("1.1.1", "true")
    report = await commands.run("2.1.1", "exit 3")
    assert (report.kind, report.exit_code) == (types_pb2.EXIT_KIND_USER_ERROR, 3)
    assert (await commands.run("3.1.1", "true")).kind == types_pb2.EXIT_KIND_COMPLETED
    assert commands.process("1.1.1") == commands.process("2.1.1") != commands.process("3.1.1")


async def test_nothing_of_a_command_is_left_when_the_next_one_starts(commands: Commands) -> None:
    pids = commands.folder / "pids"
    leave = f"setsid sh -c 'echo $$ >> {pids}; exec sleep 600' >/dev/null 2>&1 & while ! [ -s {pids} ]; do :; done"
    for number in range(1, 10, 2):
        await commands.run(f"{number}.1.1", leave)
        assert not is_running(int(pids.read_text()))
        pids.unlink()
        await commands.run(f"{number + 1}.1.1", "true")
        # On a busy machine the first command may take so long that its process is not used again.
        if commands.process(f"{number}.1.1") == commands.process(f"{number + 1}.1.1"):
            return
    pytest.fail("no process ran two commands")


async def test_a_command_that_goes_on_keeps_its_process_to_itself(commands: Commands) -> None:
    await commands.run("1.1.1", "sleep 0.6")
    await commands.run("2.1.1", "true")
    assert commands.process("1.1.1") != commands.process("2.1.1")
    await wait_until(lambda: not is_running(commands.process("1.1.1").pid))


def _is_lone(spec: runner_pb2.RunnerSpec) -> bool:
    return command_runner.is_lone_command(spec, settle(spec.config_json))


async def test_only_a_command_that_is_alone_gets_such_a_process(commands: Commands) -> None:
    await commands.run("1.1.1", "true")
    spec = make_spec([("a1", 2)], 0, "true", allocation_id="2.1.1")
    assert not _is_lone(spec)
    assert not _is_lone(make_spec([("a1", 1)], 0, "python3 train.py"))
    assert not _is_lone(make_spec([("a1", 1)], 0, "model_def:Trial"))
    assert not _is_lone(make_spec([("a1", 1), ("a2", 1)], 0, "true"))
    assert not _is_lone(make_spec([("a1", 1)], 0, "echo 'no end"))
    assert _is_lone(make_spec([("a1", 1)], 0, "true"))
    commands.roster.accept(spec, ("a1/0", "a1/1"), "")
    await commands.end("2.1.1")
    assert commands.process("1.1.1") != commands.process("2.1.1")


async def test_a_process_that_was_told_to_stop_takes_no_other_command(commands: Commands) -> None:
    await commands.run("1.1.1", "true")
    started = commands.folder / "started"
    commands.begin("2.1.1", f"trap '' TERM; touch {started}; while :; do sleep 0.01; done")
    await wait_until(started.exists)
    commands.roster.stop("2.1.1", 10, JournalStop(ExitKind.KILLED, "the test says so", time.time() + 60))
    assert (await commands.end("2.1.1")).kind == types_pb2.EXIT_KIND_KILLED
    await commands.run("3.1.1", "true")
    assert commands.process("1.1.1") == commands.process("2.1.1") != commands.process("3.1.1")
    await wait_until(lambda: not is_running(commands.process("2.1.1").pid))


async def test_a_process_that_was_killed_while_it_was_idle_costs_no_command(commands: Commands) -> None:
    await commands.run("1.1.1", "true")
    pid = commands.process("1.1.1").pid
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not is_running(pid))
    assert (await commands.run("2.1.1", "true")).kind == types_pb2.EXIT_KIND_COMPLETED
    assert commands.process("2.1.1").pid != pid


async def test_no_command_survives_the_kill_of_a_process_that_had_run_another(commands: Commands) -> None:
    await commands.run("1.1.1", "true")
    child = commands.folder / "child"
    commands.begin("2.1.1", f"echo $$ > {child}.draft; mv {child}.draft {child}; exec sleep 600")
    await wait_until(child.exists)
    assert commands.process("1.1.1") == commands.process("2.1.1")
    os.kill(commands.process("2.1.1").pid, signal.SIGKILL)
    assert (await commands.end("2.1.1")).kind == types_pb2.EXIT_KIND_RUNNER_LOST
    assert not is_running(int(child.read_text()))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Phase]]:
    """Which records of the journal the agent has synced to the disk, by allocation and phase."""
    synced: list[tuple[str, Phase]] = []
    write = disk.write_atomic

    def note(path: Path, text: str, mode: int = 0o644, *, is_durable: bool = True) -> None:
        write(path, text, mode, is_durable=is_durable)
        if is_durable:
            record = parse_record(text)
            synced.append((record.allocation_id, record.phase))

    monkeypatch.setattr("services.common.state_folder.write_atomic", note)
    return synced


async def test_a_short_command_does_not_make_its_agent_wait_for_the_disk(
    commands: Commands, synced: list[tuple[str, Phase]]
) -> None:
    """An agent has one thread for all of its allocations, and a synced write takes milliseconds."""
    await commands.run("1.1.1", "true")
    assert synced == []
    assert (commands.journal.folder("1.1.1").path / "record.json").exists()
    spec = make_spec([("a1", 2)], 0, "true", allocation_id="2.1.1")
    commands.roster.accept(spec, ("a1/0", "a1/1"), "")
    await commands.end("2.1.1")
    assert synced == [("2.1.1", Phase.RUNNING)], "the start of a gang survives a power cut"


async def test_an_end_that_only_the_agent_knows_is_synced(commands: Commands, synced: list[tuple[str, Phase]]) -> None:
    started = commands.folder / "started"
    commands.begin("1.1.1", f"touch {started}; exec sleep 600")
    await wait_until(started.exists)
    os.kill(commands.process("1.1.1").pid, signal.SIGKILL)
    await commands.end("1.1.1")
    assert synced == [("1.1.1", Phase.ENDED)]


async def test_the_end_of_a_short_command_is_all_that_is_told_of_it(commands: Commands) -> None:
    # The first one waits for the warm process.
    await commands.run("1.1.1", "true")
    commands.statuses.clear()
    await commands.run("2.1.1", "true")
    assert [status.state for status in commands.statuses] == [types_pb2.STATE_TERMINAL]
    assert commands.statuses[0].accepted_at > 0
    commands.statuses.clear()
    spec = make_spec([("a1", 1)], 0, "sleep 1", allocation_id="3.1.1", scheduler=["127.0.0.1:1"])
    # The leader gives its agent 0.8 s to accept.
    spec.allocation.created_at, spec.allocation.deadline_at = 100.0, 100.8
    commands.roster.accept(spec, ("a1/0",), "")
    await commands.end("3.1.1")
    # A second one of a running command has the address of its metrics.
    *running, ended = [status.state for status in commands.statuses]
    assert (set(running), ended) == ({types_pb2.STATE_RUNNING}, types_pb2.STATE_TERMINAL)
    assert len(running) <= 2


async def test_commands_of_a_burst_share_a_few_processes(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    commands.renew_roster()
    for number in range(1, 41):
        commands.begin(f"{number}.1.1", "true", f"a1/{number}")
    for number in range(1, 41):
        assert (await commands.end(f"{number}.1.1")).kind == types_pb2.EXIT_KIND_COMPLETED
    assert len({commands.process(f"{number}.1.1").pid for number in range(1, 41)}) <= 12


async def test_a_command_waits_for_the_start_of_others_and_not_for_their_end(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_runner, "TURN_SECONDS", 600.0)
    for number in range(1, 11):
        commands.begin(f"{number}.1.1", f"touch {commands.folder}/{number}; exec sleep 600", f"a1/{number}")
    await wait_until(lambda: all((commands.folder / str(number)).exists() for number in range(1, 11)))


async def test_a_start_that_hangs_holds_up_no_other_for_long(commands: Commands) -> None:
    for number in range(1, 5):
        code = make_spec(
            [("a1", 1)], 0, "true", allocation_id=f"{number}.1.1", code_sha256="0" * 64, gateway=["127.0.0.1:1"]
        )
        commands.roster.accept(code, (f"a1/{number}",), "")
    began_at = time.monotonic()
    assert (await commands.run("9.1.1", "true")).kind == types_pb2.EXIT_KIND_COMPLETED
    assert time.monotonic() - began_at < 10


async def test_a_command_that_is_stopped_before_its_turn_never_starts(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_runner, "TURN_SECONDS", 600.0)
    turns = [await commands.launcher.turns.take() for _ in range(max(2, len(os.sched_getaffinity(0))))]
    started = commands.folder / "started"
    commands.begin("1.1.1", f"touch {started}")
    await asyncio.sleep(0)
    commands.roster.stop("1.1.1", 10, JournalStop(ExitKind.KILLED, "the test says so", time.time() + 60))
    report = await commands.end("1.1.1")
    assert report.message == "stopped before its trial runner started: the test says so"
    for turn in turns:
        turn.end()
    await commands.run("2.1.1", "true", "a1/1")
    assert not started.exists()


async def test_many_commands_after_one_another_give_their_turns_back(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_runner, "TURN_SECONDS", 600.0)
    num_turns = max(2, len(os.sched_getaffinity(0)))
    for number in range(1, num_turns + 2):
        end = "true" if number % 2 else "exit 3"
        await commands.run(f"{number}.1.1", end)


async def test_idle_processes_end(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_runner, "IDLE_SECONDS", 0.3)
    await commands.run("1.1.1", "true")
    pid = commands.process("1.1.1").pid
    nursery = int(commands.journal.folder("1.1.1").nursery_path.read_text())
    assert is_running(pid)
    await wait_until(lambda: not is_running(pid) and not is_running(nursery))


async def test_a_process_goes_on_without_its_agent_until_its_command_has_ended(
    commands: Commands,
) -> None:
    await commands.run("1.1.1", "true")
    go, started = commands.folder / "go", commands.folder / "started"
    commands.begin("2.1.1", f"touch {started}; while ! [ -e {go} ]; do sleep 0.01; done")
    await wait_until(started.exists)
    process = commands.process("2.1.1")
    assert process == commands.process("1.1.1")
    # All that the agent's death does to it: its sockets are closed.
    for lifecycle in commands.roster._lifecycles.values():
        if lifecycle._command_runner is not None:
            lifecycle._command_runner.close()
    await commands.roster.close()

    commands.renew_roster()
    commands.roster.recover()
    assert is_running(process.pid)
    go.touch()
    assert (await commands.end("2.1.1")).kind == types_pb2.EXIT_KIND_COMPLETED
    await wait_until(lambda: not is_running(process.pid))


async def test_a_restarted_agent_tells_the_end_of_one_command_and_leaves_the_next_one_in_its_process_alone(
    commands: Commands,
) -> None:
    await commands.run("1.1.1", "true")
    go, started = commands.folder / "go", commands.folder / "started"
    commands.begin("2.1.1", f"touch {started}; while ! [ -e {go} ]; do sleep 0.01; done")
    await wait_until(started.exists)
    assert commands.process("2.1.1") == commands.process("1.1.1")
    await commands.roster.close()
    commands.exits.clear()

    commands.renew_roster()
    commands.roster.recover()
    assert (await commands.end("1.1.1")).kind == types_pb2.EXIT_KIND_COMPLETED
    go.touch()
    assert (await commands.end("2.1.1")).kind == types_pb2.EXIT_KIND_COMPLETED


async def test_a_command_whose_process_died_while_the_agent_was_away_is_not_started_again(
    commands: Commands,
) -> None:
    starts = commands.folder / "starts"
    commands.begin("1.1.1", f"echo x >> {starts}; exec sleep 600")
    await wait_until(starts.exists)
    process = commands.process("1.1.1")
    await commands.roster.close()
    os.kill(process.pid, signal.SIGKILL)
    await wait_until(lambda: not commands.journal.folder("1.1.1").is_locked())

    commands.renew_roster()
    commands.roster.recover()
    assert (await commands.end("1.1.1")).kind == types_pb2.EXIT_KIND_RUNNER_LOST
    assert starts.read_text() == "x\n"


async def test_an_ended_command_is_not_taken_for_the_one_that_its_process_runs_now(commands: Commands) -> None:
    """The agent was killed after the process had ended the first command and before that was journaled."""
    await commands.run("1.1.1", "true")
    folder = commands.journal.folder("1.1.1")
    record = folder.load_record()
    assert record is not None
    folder.save(replace(record, phase=Phase.RUNNING, status=None))
    assert is_running(commands.process("1.1.1").pid)
    (survey,) = commands.journal.survey()
    assert plan_recovery(survey.findings) is RecoveryVerdict.CONCLUDE
    status = folder.load_exit()
    assert status is not None
    assert json_format.MessageToDict(status)["exit"]["kind"] == "EXIT_KIND_COMPLETED"


@pytest.mark.parametrize(
    ("last", "kind"), [("exit 0", types_pb2.EXIT_KIND_COMPLETED), ("exit 3", types_pb2.EXIT_KIND_USER_ERROR)]
)
async def test_a_runner_that_is_killed_while_it_copies_output_takes_no_outcome_with_it(
    commands: Commands, last: str, kind: int
) -> None:
    """The storage does not take the file: the unfinished copy is a pipe that nobody reads."""
    folder = commands.journal.folder("1.1.1")
    copy = commands.folder / f"storage/outputs/1.1/{PREFIX}1.1.1-{hashlib.sha256(b'a').hexdigest()[:16]}"
    copy.parent.mkdir(parents=True)
    os.mkfifo(copy)
    commands.begin("1.1.1", f'echo 1 > "$GANGLINE_OUTPUT_DIR/a"; {last}')
    await wait_until(folder.outcome_path.exists)
    assert not folder.has_exit, "the agent would kill a runner that has reported its end and goes on"
    os.kill(commands.process("1.1.1").pid, signal.SIGKILL)
    report = await commands.end("1.1.1")
    # Lets the copying process go on, wherever it is by now; it finds that its runner has gone.
    reader = os.open(copy, os.O_RDONLY | os.O_NONBLOCK)
    copy.unlink()
    os.close(reader)
    assert report.kind == kind, report
    assert "its trial runner was lost while it copied the files of $GANGLINE_OUTPUT_DIR" in report.message
    assert f"stay below {folder.forgotten_path} on a1 until" in report.message
    assert (folder.output_path / "a").read_text() == "1\n"


async def test_a_runner_that_is_killed_while_it_delivers_its_last_reports_takes_no_outcome_with_it(
    commands: Commands,
) -> None:
    """No scheduler takes the reports, for which the runner waits."""
    folder = commands.journal.folder("1.1.1")
    commands.begin("1.1.1", "sleep 0.6")
    await wait_until(folder.outcome_path.exists)
    assert not folder.has_exit
    os.kill(commands.process("1.1.1").pid, signal.SIGKILL)
    report = await commands.end("1.1.1")
    assert (report.kind, report.message) == (types_pb2.EXIT_KIND_COMPLETED, "")
    assert [each.WhichOneof("report") for each in commands.statuses[-1].undelivered] == ["running"]
