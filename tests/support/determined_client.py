"""The published client of Determined, in a virtual environment of its own: its command line and its SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.once import install_once

VERSION = "0.38.1"
# Runs commands of its command line one after another in one process, and prints what each of them printed. A command
# that asks for passwords gets those of its line.
_DRIVER = """
import contextlib, getpass, io, json, os, tempfile, traceback

commands, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
printed = tempfile.TemporaryFile("w+")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(printed.fileno(), 1)
os.dup2(printed.fileno(), 2)
from determined.cli import cli

passwords = []
getpass.getpass = lambda *_: passwords.pop(0)
for line in commands:
    words, passwords[:] = json.loads(line)
    printed.truncate(0)
    printed.seek(0)
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            cli.main(words)
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
            code = -1
    printed.seek(0)
    print(json.dumps([code, said.getvalue() + printed.read()]), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Said:
    """What a command printed, on both outputs, and its exit code."""

    code: object
    text: str

    def __contains__(self, text: str) -> bool:
        return text in self.text


class DeterminedClient:
    def __init__(self, python: Path, environment: dict[str, str], folder: Path) -> None:
        self._python, self.environment, self._folder = python, environment, folder
        self._driver = self._start([str(python), "-c", _DRIVER])

    def run(self, *words: str, passwords: Sequence[str] = ()) -> Said:
        """Runs `det WORDS`. passwords: what a user types when asked for them."""
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps([words, passwords]) + "\n")
        self._driver.stdin.flush()
        line = self._driver.stdout.readline()
        assert line, f"det {' '.join(words)} ended the process"
        return Said(*json.loads(line))

    def works(self, *words: str, passwords: Sequence[str] = ()) -> Said:
        """Runs a command that has to succeed."""
        said = self.run(*words, passwords=passwords)
        assert said.code == 0, f"det {' '.join(words)}: {said.text}"
        return said

    def script(self, source: str) -> str:
        """Runs a script that uses the SDK. Returns what it printed."""
        process = self._start([str(self._python), "-c", source])
        printed, _ = process.communicate(timeout=100)
        assert process.returncode == 0, printed
        return printed

    def close(self) -> None:
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        self._driver.wait(30)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=self.environment, cwd=self._folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


@contextmanager
def determined_client(cluster: Cluster, folder: Path, user: str = "admin") -> Iterator[DeterminedClient]:
    """A client that has nothing but the address of a cluster, and a user with a password."""
    home = folder / "home"
    home.mkdir(parents=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "DET_MASTER": cluster.http_url,
        "DET_USER": user,
        "DET_PASS": cluster.login.token,
    }
    client = DeterminedClient(install_determined(), environment, folder)
    try:
        yield client
    finally:
        client.close()


def install_determined() -> Path:
    """Returns the interpreter of the virtual environment, which the first caller makes."""

    def command(folder: Path) -> list[str]:
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
        packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
        # Few of its 4000 modules are imported, so each is compiled when it is.
        return [sys.executable, "--no-compile", "--target", packages, f"determined=={VERSION}"]

    return install_once(f"determined-{VERSION}", f"determined {VERSION}", command) / "bin" / "python"
