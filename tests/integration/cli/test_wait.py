"""`experiment wait` and `experiment follow`: their progress, their exit status, and Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess

import pytest

from gangline.v1 import gateway_pb2 as pb
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway
from tests.support.terminal import CLI, Terminal
from tests.support.view import make_experiment, make_lifecycle, make_search

GOES_ON = "experiment 1 goes on; look at it with: gangline experiment follow 1; end it with: gangline experiment kill 1"
END = [
    "experiment 1 digits: COMPLETED after 12.5 s",
    "  validation: accuracy 0.972",
    "  checkpoint: c0ffee (after 200 batches)",
    "  next: gangline experiment metrics 1",
    "  next: gangline checkpoint download c0ffee",
]
PROGRESS = [
    "experiment 1 digits: QUEUED, needs 4 slots; 2 are free; starts if 2 more slots became free",
    "experiment 1 digits: RUNNING on a1 (2 slots), a2 (2 slots), 50 of 200 batches (25%), loss 0.5, 1234 samples/s",
]


@pytest.fixture
def ended(gateway: StandInGateway) -> StandInGateway:
    gateway.experiments[1] = make_experiment()
    gateway.views[1] = make_lifecycle()
    return gateway


@pytest.fixture
def running(gateway: StandInGateway) -> StandInGateway:
    gateway.experiments[1] = make_experiment()
    gateway.views[1] = make_lifecycle()[:2]
    return gateway


@pytest.mark.usefixtures("ended")
def test_wait_writes_its_progress_to_standard_error(cli: Cli) -> None:
    ran = cli("experiment", "wait", "1")
    assert (ran.status, ran.out.splitlines(), ran.err.splitlines()) == (0, END, PROGRESS)


@pytest.mark.usefixtures("ended")
def test_wait_with_json_writes_the_json_alone(cli: Cli) -> None:
    ran = cli("experiment", "wait", "1", "--json")
    assert (ran.status, ran.err) == (0, "")
    assert json.loads(ran.out)["experiment"]["outcome"] == "COMPLETED"


@pytest.mark.usefixtures("ended")
def test_follow_shows_the_same_as_create_with_follow(cli: Cli) -> None:
    ran = cli("experiment", "follow", "1")
    assert (ran.status, ran.out.splitlines(), ran.err) == (0, [*PROGRESS, *END], "")
    assert json.loads(cli("experiment", "follow", "1", "--json").out)["experiment"]["outcome"] == "COMPLETED"


@pytest.mark.parametrize("verb", ["wait", "follow"])
@pytest.mark.parametrize("outcome", ["FAILED", "CANCELED"])
def test_only_a_completed_experiment_is_a_success(cli: Cli, gateway: StandInGateway, verb: str, outcome: str) -> None:
    gateway.experiments[1] = make_experiment("TERMINAL", outcome, ended_at=1001.0)
    gateway.views[1] = [pb.ExperimentView(experiment=gateway.experiments[1])]
    ran = cli("experiment", verb, "1")
    assert ran.status == 1
    assert ran.out.startswith(f"experiment 1 digits: {outcome} after 1.0 s")
    missing = cli("experiment", verb, "9")
    assert (missing.status, missing.out, missing.err) == (2, "", "error: there is no experiment 9\n")


@pytest.mark.parametrize("verb", ["wait", "follow"])
@pytest.mark.usefixtures("running")
def test_ctrl_c_on_a_terminal_says_that_the_experiment_goes_on(environment: dict[str, str], verb: str) -> None:
    with Terminal((*CLI, "experiment", verb, "1"), environment) as terminal:
        terminal.read_until(lambda raw: "50 of 200 batches" in raw)
        terminal.type("\x03")
        shown = terminal.end()
    assert shown.status == 130
    assert "".join(shown.lines[-2:]).endswith(GOES_ON[-70:])
    assert GOES_ON in re.sub(r"\s+", " ", " ".join(shown.lines))


@pytest.mark.parametrize("arguments", [("wait", "1"), ("wait", "1", "--json"), ("follow", "1")], ids=" ".join)
@pytest.mark.usefixtures("running")
def test_an_interrupt_without_a_terminal_leaves_standard_output_alone(
    environment: dict[str, str], running: StandInGateway, arguments: tuple[str, ...]
) -> None:
    command = [*CLI, "experiment", *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert running.is_watched.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == GOES_ON
    assert out.splitlines() in ([], PROGRESS[:1], PROGRESS) if arguments[0] == "follow" else out == ""


@pytest.mark.parametrize("verb", ["wait", "follow"])
def test_a_search_of_forty_trials_fits_the_terminal(
    environment: dict[str, str], gateway: StandInGateway, verb: str
) -> None:
    gateway.experiments[1] = make_experiment()
    gateway.views[1] = [make_search(40)]
    with Terminal((*CLI, "experiment", verb, "1"), environment) as terminal:
        raw = terminal.read_until(lambda raw: "waits:" in raw and "1.17" in raw)
        terminal.type("\x03")
        assert terminal.end().status == 130
    for text in ("13 of 40 trials ended, about 32 min left", "12 COMPLETED", "best accuracy 0.62: trial 1.12", "━"):
        assert text in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw)
