"""Commands on a pseudo terminal: no list has a line that is wider than the terminal, and its states are coloured."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable

import pytest
from rich.cells import cell_len

from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import types_pb2
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway
from tests.support.terminal import CLI, Shown, run_on_terminal
from tests.support.view import make_agent_view, make_allocation, make_experiment, make_search, make_trial

LONG = "a-very-long-name-of-an-experiment-" * 4
WIDE = "実験の名前がとても長い" * 6
LISTS = [
    ("experiment", "list"), ("experiment", "trials", "1"), ("job", "list"), ("task", "list"), ("agent", "list"),
    ("slot", "list"), ("checkpoint", "list"), ("fusion", "list"),
]  # fmt: skip
TerminalCli = Callable[..., Shown]


@pytest.fixture
def full(gateway: StandInGateway) -> StandInGateway:
    """Every list has rows with long names, wide characters and long reasons."""
    now = time.time()
    gateway.views[1] = [make_search(40, now)]
    gateway.experiments = {
        1: make_experiment(name=LONG, owner="somebody-with-a-long-name", created_at=now - 300),
        2: make_experiment("TERMINAL", "FAILED", id=2, name=WIDE, created_at=now - 10000, ended_at=now),
        3: make_experiment("QUEUED", id=3, created_at=now - 3),
    }
    gateway.progress = {
        1: pb.ExperimentProgress(experiment_id=1, num_trials_ended=12, num_trials_planned=40),
        2: pb.ExperimentProgress(experiment_id=2, num_trials_planned=1, batches_completed=50, batches_total=200),
    }
    reason = types_pb2.Reason(
        code=types_pb2.REASON_CODE_NO_CAPACITY, eta_at=now + 600,
        message="needs 16 slots; the largest set of idle agents has 8 (a1: 4, a2: 4), and the others are in use",
    )  # fmt: skip
    request = types_pb2.Request(trial_id="2.1", slots=16, submitted_at=now - 300, pool="the-pool-of-the-large-machines")
    allocation = make_allocation(*((f"agent-with-a-long-name-{number}", 4) for number in range(4)))
    gateway.tasks = [
        pb.Task(trial=make_trial(), experiment_name=LONG, allocation=allocation),
        pb.Task(trial=make_trial("QUEUED", id="2.1"), experiment_name=WIDE, request=request, reason=reason),
    ]
    view = make_agent_view()
    view.agent.pool, view.agent.hostname = "the-pool-of-the-large-machines", f"{'host-' * 8}.example.org"
    for slot in view.agent.slots:
        slot.model, slot.is_healthy, slot.problem = "NVIDIA H200 141GB HBM3e", False, "ECC errors; reset it " * 4
    gateway.agents = [view]
    gateway.checkpoints = [
        types_pb2.Checkpoint(
            id="0b5e6f0e-9f5c-4f0e-8d8e-5f8f5e5a0c0d", trial_id="1.12", experiment_id=1, batches_completed=123456789,
            file_bytes={"a": 2048}, created_at=now - 300, state=types_pb2.CHECKPOINT_STATE_DELETING,
        )
    ]  # fmt: skip
    gateway.fusion = [
        types_pb2.FusionRecord(
            key="0123456789abcdef-01", summary="12.5 M parameters, 256 ranks on 32 agents, bfloat16, NCCL over RDMA",
            bucket_bytes=[1 << 20, 3 << 20, 9 << 20], total_bytes=48 << 20, steps=24, trial_id="3.1", created_at=now,
        )
    ]  # fmt: skip
    return gateway


@pytest.fixture
def terminal(environment: dict[str, str]) -> TerminalCli:
    def run(*arguments: str, columns: int = 80, **variables: str) -> Shown:
        return run_on_terminal((*CLI, *arguments), environment | variables, columns=columns)

    return run


def _widest(shown: Shown) -> int:
    return max(map(cell_len, shown.lines))


# One process for all lists: its start takes longer than a list.
_ALL_LISTS = """
from gangline.cli.main import run
for words in {lists}:
    print("list:", *words, run(words), flush=True)
"""


@pytest.mark.usefixtures("full")
def test_no_line_of_a_list_is_wider_than_the_terminal(environment: dict[str, str]) -> None:
    shown = run_on_terminal((CLI[0], "-c", _ALL_LISTS.format(lists=LISTS)), environment)
    assert shown.status == 0
    assert _widest(shown) <= 80
    ends = [number for number, line in enumerate(shown.lines) if line.startswith("list: ")]
    assert [shown.lines[number] for number in ends] == [f"list: {' '.join(command)} 0" for command in LISTS]
    # Each has headings and a row at least.
    assert all(end - before > 2 for before, end in zip([-1, *ends[:-1]], ends, strict=True))


@pytest.mark.usefixtures("full")
def test_rows_keep_ids_and_states_and_say_how_far(terminal: TerminalCli) -> None:
    shown = terminal("experiment", "list")
    headings, queued, failed, running = shown.lines
    assert headings.split() == ["ID", "NAME", "STATE", "OWNER", "PROGRESS", "AGE", "TOOK"]
    assert re.fullmatch(r"1 +a-very-\S*… +RUNNING +somebody\S* +12/40 trials +5 min +-", running)
    assert re.fullmatch(r"2 +実験\S*… +FAILED +admin +50/200 batches +3 h +3 h", failed)
    assert queued.split()[:5] == ["3", "digits", "QUEUED", "admin", "-"]
    # The columns stand below one another although a wide character takes two cells.
    assert cell_len(failed[: failed.index("FAILED")]) == cell_len(running[: running.index("RUNNING")])


@pytest.mark.usefixtures("full")
def test_columns_states_the_width_and_wide_shows_all(terminal: TerminalCli) -> None:
    narrow = terminal("job", "list", COLUMNS="40")
    assert _widest(narrow) <= 40
    assert [line.split()[0] for line in narrow.lines] == ["TRIAL", "1.1", "2.1"]
    wide = terminal("job", "list", "--wide")
    assert LONG in wide.raw
    assert WIDE in wide.raw
    assert "WHERE OR WHY NOT" in wide.lines[0]
    assert LONG in terminal("job", "list", columns=400).raw


@pytest.mark.usefixtures("full")
def test_states_are_coloured_unless_no_color_is_set(terminal: TerminalCli) -> None:
    assert "\x1b[31mFAILED\x1b[0m" in terminal("experiment", "list").raw
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in terminal("experiment", "list", **variables).raw


@pytest.mark.usefixtures("full")
def test_a_name_acts_on_no_terminal(terminal: TerminalCli, gateway: StandInGateway) -> None:
    gateway.experiments[1].name = "x\x1b]0;owned\x07\r\nfake"
    gateway.views[1][0].experiment.config_json = '{"searcher": {"metric": "\\u001b[2J"}}'
    assert "\\x1b]0;owned\\x07" in terminal("experiment", "list").raw
    assert "\x1b]" not in terminal("experiment", "list").raw
    assert "\x1b[2J" not in terminal("experiment", "trials", "1").raw


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
@pytest.mark.usefixtures("full")
def test_no_terminal_gets_the_whole_table_without_colours(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    ran = cli(*command)
    assert ran.status == 0, ran.err
    _check_whole(ran.out, command)


@pytest.mark.usefixtures("full")
def test_a_pipe_gets_the_whole_table_without_colours(environment: dict[str, str]) -> None:
    command = ("experiment", "list")
    ran = subprocess.run([*CLI, *command], env=environment | {"COLUMNS": "40"}, capture_output=True, check=True)
    _check_whole(ran.stdout.decode(), command)


def _check_whole(table: str, command: tuple[str, ...]) -> None:
    assert "\x1b" not in table
    assert "…" not in table
    assert max(map(len, table.splitlines())) > 80 or command[0] == "checkpoint"


@pytest.mark.usefixtures("full")
def test_a_list_to_a_pipe_loads_nothing_for_terminals_or_submits(
    environment: dict[str, str], gateway: StandInGateway
) -> None:
    """A program that reads lists pays for neither."""
    gateway.experiments[2].name = "digits"
    program = (
        "import sys; from gangline.cli.main import run; status = run(['experiment', 'list']); "
        "print(sorted({'rich', 'pathspec', 'gangline.config'} & sys.modules.keys()), file=sys.stderr); sys.exit(status)"
    )
    command = [CLI[0], "-c", program]
    ran = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    assert ran.stderr == "[]\n"
