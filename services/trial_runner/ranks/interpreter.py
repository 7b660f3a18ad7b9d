"""The Python that runs the ranks: the agent's own, the one that the experiment names, that of a container's image, or a
private environment above one of the first two.

The preparation of the ranks calls it. Only ranks on the agent's own Python can be forked from a warm process. A user
chooses the interpreter, and may have put it into the code. So it is looked for with the rights of the ranks' user, and
only the nursery runs it, as that user.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gangline.errors import invalid, unavailable
from gangline.launch import private_environment
from services.common.access.user_rights import is_file_of, is_folder_of
from services.common.rank_rules import RankUser
from services.trial_runner.ranks.container import Container

# Limit for a step in another interpreter. A cold start from a network disk takes seconds.
STEP_SECONDS = 60.0
# Runs a command as the ranks' user. Returns what it printed, and why it failed: empty if it did not.
Run = Callable[[Sequence[str]], Awaitable[tuple[str, str]]]
# The machine has no room for another process, whichever program that would be.
_MACHINES_ERRORS = {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_PROBE = "import importlib.metadata as metadata; print(metadata.version('gangline'))"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python on which ranks run."""

    path: Path  # the executable
    is_agents: bool  # whether the nursery runs on it, as the agent's own or that of a container

    @property
    def programs_directory(self) -> Path:
        return self.path.parent

    def rank_command(self) -> list[str]:
        """Returns the command of a rank in a fresh process. -P: the user's folder must not hide Gangline."""
        return [str(self.path), "-P", "-m", "gangline.rank.entrypoint"]


def own_interpreter() -> Interpreter:
    return Interpreter(Path(sys.executable), is_agents=True)


async def find_interpreter(
    named: str, agent_id: str, user: RankUser | None, run: Run, *, needs_library: bool
) -> Interpreter:
    """Returns the interpreter that `environment.python` names.

    named: an executable, or the folder of a virtual environment; empty for the agent's own Python. user: of the ranks.
    needs_library: whether the ranks import Gangline from it. Raises GanglineError `environment.*`.
    """
    if not named:
        return own_interpreter()
    path = _locate(named, agent_id, user)
    if needs_library:
        found, problem = await run([str(path), "-I", "-c", _PROBE])
        if problem:
            text = f"environment.python: {path} on {agent_id} cannot import Gangline ({problem}); install it there"
            advice = f"{path} -m pip install gangline=={version('gangline')}"
            raise invalid("environment.no_library", f"{text}: {advice} (docs/install.md says from where)")
        if found != version("gangline"):
            text = f"environment.python: {path} on {agent_id} has Gangline {found}, the agent {version('gangline')}"
            raise invalid("environment.no_library", f"{text}; install the agent's version there")
    return Interpreter(path, is_agents=False)


def contained_interpreter(container: Container, *, needs_library: bool) -> Interpreter:
    """Returns the interpreter in a container's image, which runs the nursery, so the ranks are forks of it.

    Raises GanglineError `environment.no_library` if the ranks need Gangline and the image lacks what it imports.
    """
    if needs_library and container.problem:
        text = f"environment.image: {container.python} in {container.image} cannot run Gangline ({container.problem})"
        advice = f"{container.python} -m pip install gangline[train]=={version('gangline')}"
        raise invalid("environment.no_library", f"{text}; install it in the image: {advice} (docs/install.md)")
    return Interpreter(Path(container.python), is_agents=True)


def _locate(named: str, agent_id: str, user: RankUser | None) -> Path:
    path = Path(named)
    if is_folder_of(user, path):
        path /= "bin/python3"
    if not is_file_of(user, path):
        raise invalid("environment.no_python", f"environment.python: there is no interpreter {path} on {agent_id}")
    return path


async def make_private(lower: Interpreter, folder: Path, run: Run) -> Interpreter:
    """Makes a private environment above `lower`. Raises GanglineError `environment.no_folder`.

    run: for an interpreter that the user has chosen. The agent's own makes the folder itself, because the ranks' user
    may be unable to start it.
    """
    command = [str(lower.path), "-I", private_environment.__file__, str(folder)]
    _, problem = await (_run_own if lower.is_agents else run)(command)
    if problem:
        raise unavailable("environment.no_folder", f"cannot make a virtual environment with {lower.path}: {problem}")
    return Interpreter(folder / "bin/python3", lower.is_agents)


async def _run_own(command: Sequence[str]) -> tuple[str, str]:
    """Runs the agent's own interpreter with the rights of the agent. Returns what it printed, and why it failed: empty
    if it did not.

    Raises GanglineError `environment.no_answer`, or OSError, if the machine is the cause: it is too slow, or out of
    memory or processes.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        if error.errno in _MACHINES_ERRORS:
            raise
        return "", str(error)
    try:
        async with asyncio.timeout(STEP_SECONDS):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise unavailable("environment.no_answer", f"{command[0]} did not answer within {STEP_SECONDS:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == -signal.SIGKILL:
        raise unavailable("environment.no_answer", f"{command[0]} was killed (SIGKILL) before it had answered")
    lines = err.decode(errors="replace").strip().splitlines()
    problem = (lines[-1] if lines else f"exit code {process.returncode}") if process.returncode else ""
    return out.decode(errors="replace").strip(), problem
