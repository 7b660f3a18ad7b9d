"""A program that starts warm does what a python3 would do that was started with the same words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm_program, warm_python
from tests.support.runner_process import living
from tests.support.wait import until
from tests.support.warm_program import WarmPair

_TELL = """
import os, sys
import beside
print(sys.argv, __name__, os.getcwd(), os.environ["TOLD"], beside.__file__, sys.stdin.read())
print(os.getsid(0) == os.getpid())
sys.stderr.write("to standard error\\n")
"""
_STAND = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_python.install_commands(tmp_path_factory.mktemp("warm"), WarmPair(warm_program.folder()).ranks())


@pytest.mark.parametrize(
    "words",
    [
        ["code/tell.py", "a", "-m"],
        ["-u", "-m", "tell", "b"],
        ["-c", "import sys; print(sys.argv, sys.path[0]); sys.exit(3)", "c"],
        ["-c", "import sys; sys.exit('a reason')"],
        ["code/fail.py"],
        ["-c", "import os; os._exit(5)"],
        ["-c", "import os; os.kill(os.getpid(), 9)"],
    ],
    ids=lambda words: words[0] + words[1] if len(words) > 1 else words[0],
)
def test_it_prints_and_ends_as_a_started_one(warm: Path, tmp_path: Path, words: list[str]) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "tell.py").write_text(_TELL)
    (code / "beside.py").touch()
    (code / "fail.py").write_text("def fail():\n    raise ValueError('odd')\n\n\nfail()\n")
    environment = {**os.environ, "TOLD": "by the environment", "PYTHONPATH": str(code)}

    def run(program: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [program, *words],
            cwd=tmp_path,
            env=environment,
            input="to its input",
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        return done.returncode, done.stdout, done.stderr

    assert run(str(warm / "python3")) == run(sys.executable)


def test_what_it_starts_is_warm(warm: Path) -> None:
    """torch is loaded in the process that a program starts as its own interpreter."""
    inner = "import sys; print('torch' in sys.modules)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    done = subprocess.run([warm / "python3", "-c", outer], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


async def test_it_ends_with_its_command_and_gets_its_signals(warm: Path) -> None:
    def start() -> tuple[subprocess.Popen[str], int]:
        command = subprocess.Popen([warm / "python3", "-c", _STAND], stdout=subprocess.PIPE, text=True)
        assert command.stdout is not None
        return command, int(command.stdout.readline())

    command, program = start()
    command.kill()
    command.communicate()
    await until(lambda: not living([program]), "the end of the program", 20)
    command, program = start()
    command.send_signal(signal.SIGTERM)
    command.communicate()
    assert (command.returncode, living([program])) == (7, [])
