"""Programs that are forked for tests of whole clusters look like programs that were started, and end with the run."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.launch import forkserver
from gangline.launch.child import descendants
from tests.support import warm_program
from tests.support.cluster import COMMAND
from tests.support.warm_program import WarmFolder, WarmPair


@pytest.fixture(scope="module")
def pair() -> WarmPair:
    return WarmPair(warm_program.folder())


@pytest.mark.parametrize("words", [["--version"], ["experiment", "describe", "--no-such-option"], ["no-such-command"]])
def test_a_forked_command_prints_and_exits_as_a_started_one(pair: WarmPair, words: list[str]) -> None:
    started = subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False)
    forked = pair.run(words, os.environ, 60.0)
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_a_fork_shows_its_own_arguments_and_environment(pair: WarmPair, tmp_path: Path) -> None:
    environment = {**os.environ, "SHOWN": "x" * 2000}
    pid = forkserver.fork(
        pair.services(),
        f"{__name__}:show_and_tell",
        {"words": ["python", "-m", "services.agent", "--id", "a1"]},
        environment=environment,
        directory=str(tmp_path),
    )
    end = os.pidfd_open(pid)
    assert select.select([end], [], [], 60.0)[0]
    os.close(end)
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["words"] == ["python", "-m", "services.agent", "--id", "a1"]
    assert told["shown"] == told["seen by C"] == environment


def show_and_tell(arguments: dict[str, list[str]], _fds: list[int]) -> int:
    """In the fork."""
    warm_program.show(arguments["words"])
    shown = Path("/proc/self/environ").read_bytes().rstrip(b"\0").split(b"\0")
    # A program that is started from here has what C's own list of variables has.
    seen = subprocess.run([sys.executable, "-S", "-c", _TELL], capture_output=True, text=True, check=True).stdout
    told = {
        "words": Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0"),
        "shown": dict(os.fsdecode(entry).split("=", 1) for entry in shown),
        "seen by C": json.loads(seen),
    }
    Path("told.json").write_text(json.dumps(told))
    return 0


_TELL = "import json, os; print(json.dumps(dict(os.environ)))"


def test_a_fork_server_is_started_once_and_ends_with_the_folder_of_its_run() -> None:
    folder = WarmFolder()

    def serving() -> int:
        return int(forkserver.describe(WarmPair(folder.path).socket("small", "decimal"))["pid"])

    first = serving()
    assert first in descendants(os.getpid())
    assert serving() == first
    os.kill(first, signal.SIGKILL)
    second = serving()
    assert second != first
    end = os.pidfd_open(second)
    folder.close()
    assert select.select([end], [], [], 60.0)[0]
    os.close(end)
