"""Gangline's own programs as forks of processes that have imported them, one pair for all workers of a test run.

`services` has imported the command line, the supervisor, the services and what trial runners need; `ranks` has torch,
what ranks need, and scikit-learn. A program that is forked reads its arguments and environment, shows both in /proc,
leads its own session, takes signals and ends as one that was started by its command. Its parent is the process that
started it, so a supervisor reaps its services. An agent has its two fork servers forked as well. tests/conftest.py owns
the folder in which the pair is found, and with it the pair's end. Called by tests/support/cluster.py and fleet.py. The
programs of warm_python.py are forks of `ranks`.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gangline.errors import GanglineError
from gangline.launch import child, forkserver
from tests.support.namespace import enter_namespaces
from tests.support.source import ROOT

if TYPE_CHECKING:
    from tests.support.forked_service import ForkedService

PROGRAMS = {
    "gangline.local.supervisor": "gangline.local.supervisor",
    "services.scheduler": "services.scheduler.__main__",
    "services.gateway": "services.gateway.__main__",
    "services.agent": "services.agent.__main__",
}
COMMAND_LINE = "gangline.cli.__main__"
# What the two processes show in /proc as arguments and environment has at least this room for that of their forks.
SHOWN_BYTES = 1 << 14
IMPORT_SECONDS = 200.0
COMMAND_SECONDS = 600.0  # limit of a command of `install_command`; who runs it has a shorter one
_COMMAND = """#!{python} -IS
import sys
sys.path.insert(0, {root!r})
from tests.support import warm_program
warm_program.call({services!r})
"""


_folder = ""


def use_folder(path: str) -> None:
    """Tells this process the folder of its test run."""
    global _folder  # noqa: PLW0603 - one test run a process
    _folder = path


def folder() -> str:
    return _folder


class WarmFolder:
    """Where the pair of a test run is found. The process that makes it ends the pair by `close`, or by its own end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gl-")
        fifo = Path(self._folder.name) / "parent"
        os.mkfifo(fifo)
        # Open for writing as well: then the fork servers can open it, and see its end when this process is gone.
        self._held = os.open(fifo, os.O_RDWR | os.O_CLOEXEC)

    @property
    def path(self) -> str:
        return self._folder.name

    def close(self) -> None:
        os.close(self._held)
        self._folder.cleanup()


class WarmPair:
    """The two fork servers of a test run, started by the first test that needs them. folder: of a WarmFolder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], seconds: float, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs `gangline ARGUMENTS` to its end, in a folder or in that of this process. Raises
        subprocess.TimeoutExpired."""
        services = self.services()
        if arguments[0] == "up":
            self.ranks()
        place = str(folder or Path.cwd())
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            fds = (output.fileno(), errors.fileno())
            words, status = _run_command(services, arguments, environment, seconds=seconds, place=place, outputs=fds)
            for file in (output, errors):
                file.seek(0)
            return subprocess.CompletedProcess(words, status, output.read().decode(), errors.read().decode())

    def install_command(self, folder: Path) -> Path:
        """Writes a `gangline` into a folder, for lines of a shell, and returns the folder. Its standard input is not
        that of the fork."""
        self.ranks()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "gangline"
        path.write_text(_COMMAND.format(python=sys.executable, root=str(ROOT), services=self.services()))
        path.chmod(0o755)
        return folder

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path, place: int | None = None
    ) -> ForkedService:
        """Starts a service. words: its command. log: takes its output. place: the process whose namespaces it shall
        have; by default those of the pair."""
        from tests.support.forked_service import ForkedService

        services = self.services()
        if words[2] == "services.agent":
            self.ranks()
        code = tempfile.TemporaryFile()  # noqa: SIM115 - closed once the service has ended
        request = {"module": PROGRAMS[words[2]], "words": list(words), "pair": str(self._folder), "place": place}
        with log.open("ab") as output:
            fds = [output.fileno(), output.fileno(), code.fileno()]
            pid = forkserver.fork(
                services, f"{__name__}:enter", request, environment=environment, directory=str(folder), fds=fds
            )
        await_shown(pid, words[-1])
        return ForkedService(pid, code)

    def services(self) -> str:
        """Returns the socket path of the fork server of programs."""
        return self.socket("services", _service_modules())

    def ranks(self) -> str:
        """Returns the socket path of the fork server that has torch and the training library loaded."""
        return self.socket("ranks", _rank_modules())

    def socket(self, name: str, preload: str) -> str:
        """Returns the path at which the fork server answers once it is warm. Starts it if none answers."""
        path = self._folder / f"{name}.sock"
        with (self._folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                description = forkserver.describe(str(path), IMPORT_SECONDS)
            except GanglineError:
                path.unlink(missing_ok=True)
                self._start(path, preload)
                description = forkserver.describe(str(path), IMPORT_SECONDS)
            # It has one thread and all modules, else its forks could not do what a program of their own does.
            assert (description["failed"], description["threads"]) == ({}, 1), description
        return str(path)

    def _start(self, path: Path, preload: str) -> None:
        arguments = ["--socket", str(path), "--preload", preload + "," * SHOWN_BYTES]
        parent = os.open(self._folder / "parent", os.O_RDONLY)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gangline.launch.forkserver", *arguments],
                stdin=parent,
                cwd="/",
                env={**os.environ, "GANGLINE_TEST_ROOM": "." * SHOWN_BYTES},
                start_new_session=True,
            )
        finally:
            os.close(parent)
        while not path.exists():
            assert process.poll() is None, "the fork server ended"
            select.select([], [], [], 0.01)


def _service_modules() -> str:
    from services.agent.allocations.launcher import RunnerProgram

    programs = (COMMAND_LINE, "gangline.cli.main", *PROGRAMS.values(), __name__)
    alone = ("tests.support.forked_service", "tests.support.stand_in_agent", "tests.support.stand_in_runner")
    return ",".join((*programs, *alone, *RunnerProgram().preload, "services.agent.allocations.runner_entry"))


def _rank_modules() -> str:
    from services.agent.allocations.launcher import RunnerProgram

    # The digits example imports scikit-learn in each rank, which takes as long as all that its short trainings do.
    return ",".join((*RunnerProgram().rank_preload, "sklearn.datasets"))


def call(services: str) -> NoReturn:
    """The process of a command of `WarmPair.install_command`: runs its words, and ends as they end."""
    place = str(Path.cwd())
    _, status = _run_command(services, sys.argv[1:], os.environ, seconds=COMMAND_SECONDS, place=place, outputs=(1, 2))
    os._exit(status if status >= 0 else 128 - status)


def _run_command(
    services: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    seconds: float,
    place: str,
    outputs: tuple[int, int],
) -> tuple[list[str], int]:
    """Returns the words that the process showed, and its exit code. outputs: descriptors of its output and errors."""
    words = [sys.executable, "-m", "gangline.cli", *arguments]
    request = {"module": COMMAND_LINE, "words": words, "pair": str(Path(services).parent)}
    with tempfile.TemporaryFile() as code:
        fds = [*outputs, code.fileno()]
        pid = forkserver.fork(services, f"{__name__}:enter", request, environment=environment, directory=place, fds=fds)
        _await_end(pid, words, seconds)
        code.seek(0)
        # A process without a code was killed.
        return words, int(code.read() or -signal.SIGKILL)


def _await_end(pid: int, words: Sequence[str], seconds: float) -> None:
    with suppress(ProcessLookupError):
        end = os.pidfd_open(pid)
        try:
            if not select.select([end], [], [], seconds)[0]:
                signal.pidfd_send_signal(end, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, seconds)
        finally:
            os.close(end)


def enter(arguments: Mapping[str, Any], fds: Sequence[int]) -> NoReturn:
    """Becomes `gangline` or a service. fds: standard output and error, and the file for the exit code."""
    output, errors, code = fds
    for source, number in ((output, 1), (errors, 2)):
        os.dup2(source, number)
        os.close(source)
    os.set_inheritable(code, False)
    if arguments.get("place") is not None:
        enter_namespaces(arguments["place"])
    subprocess.Popen = _WarmPopen  # type: ignore[misc, assignment]
    _fork_templates(Path(arguments["pair"]))
    _be_program(arguments["module"], arguments["words"], code)


def _be_program(module: str, words: Sequence[str], code: int | None = None) -> NoReturn:
    show(words)
    sys.argv = [f"-m {module}", *words[3:]]
    status = 0
    try:
        result = importlib.import_module(module).main()
        status = int(result or 0)
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:  # noqa: BLE001 - python3 would show it and end with 1
        traceback.print_exc()
        status = 1
    if code is not None:
        os.write(code, str(status).encode())
    child.leave_like_a_program(status)


class _WarmPopen(subprocess.Popen[Any]):
    """Forks this process for Gangline's own programs; starts all others."""

    def __init__(self, args: Any, **options: Any) -> None:
        words = list(args) if isinstance(args, (list, tuple)) else []
        if words[:2] != [sys.executable, "-m"] or words[2:3] == [] or words[2] not in PROGRAMS:
            super().__init__(args, **options)
            return
        assert forkserver.num_threads() == 1, "a thread does not survive a fork"
        sys.stdout.flush()
        sys.stderr.flush()
        self.args, self.returncode = args, None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _leave_parent(**options)
                _be_program(PROGRAMS[words[2]], words)
            finally:
                os._exit(1)


def _leave_parent(
    *,
    stdout: Any,
    stderr: Any,
    stdin: Any = None,
    cwd: Any = None,
    env: Mapping[str, str] | None = None,
    umask: int = -1,
    pass_fds: Sequence[int] = (),
    start_new_session: bool = False,
) -> None:
    """What `subprocess` does in a child before it executes a program. stdin: always /dev/null."""
    for source, number in ((stdout, 1), (stderr, 2)):
        os.dup2(source.fileno(), number)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number not in pass_fds:
            with suppress(OSError):
                os.close(number)
    if start_new_session:
        os.setsid()
    if umask >= 0:
        os.umask(umask)
    child.reset_signals()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    child.set_environment(dict(os.environ if env is None else env), str(cwd or Path.cwd()))


def show(words: Sequence[str]) -> None:
    """Makes /proc show these arguments and the environment of now, as it does after an exec: clusters are found by
    their environment."""
    # The C library may still point to the strings that are overwritten.
    for name, value in os.environ.items():
        os.putenv(name, value)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments_start, arguments_end, environment_start, environment_end = map(int, fields[45:49])
    environment = [f"{name}={value}" for name, value in os.environ.items()]
    _overwrite(environment_start, environment_end, environment)
    _overwrite(arguments_start, arguments_end, words)


def await_shown(pid: int, word: str) -> None:
    """Returns once a fork shows its environment and its arguments, among them this word, or has ended. Until then it is
    not counted among the processes of its cluster."""
    while (arguments := _arguments(pid)) and os.fsencode(word) not in arguments:
        time.sleep(0.002)


def _arguments(pid: int) -> list[bytes]:
    """Empty once the process has ended, also while it is not yet reaped."""
    try:
        content = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return content.split(b"\0") if content else []


def _overwrite(start: int, end: int, strings: Sequence[str]) -> None:
    content = b"".join(os.fsencode(string) + b"\0" for string in strings)
    assert len(content) < end - start, "no room to show arguments or environment"
    ctypes.memmove(start, content.ljust(end - start, b"\0"), end - start)


def _fork_templates(pair: Path) -> None:
    """Has the agents below this process fork their two fork servers from the pair."""
    from services.agent.allocations.warm import WarmTemplate

    async def start(self: WarmTemplate) -> Any:
        server = pair / ("ranks.sock" if self.name == "rank-template" else "services.sock")
        return await _start_template(self, str(server))

    assert callable(WarmTemplate._start)
    WarmTemplate._start = start  # type: ignore[method-assign]


async def _start_template(template: Any, server: str) -> _ForkedTemplate:
    template._socket.unlink(missing_ok=True)
    options = ["--socket", template.socket_path, "--preload", template._preload, *template._options]
    output = os.open(template._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        pid, parent = await asyncio.to_thread(fork_template, server, options, output, os.getpid())
    finally:
        os.close(output)
    await asyncio.to_thread(await_shown, pid, template.socket_path)
    return _ForkedTemplate(pid, parent)


def fork_template(server: str, options: Sequence[str], output: int, place: int) -> tuple[int, int]:
    """Returns the pid of a fork of the fork server that is a fork server itself, and a pipe: it ends when the last
    process closes that. output: descriptor of its log."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        pid = forkserver.fork(
            server,
            f"{__name__}:serve_template",
            {"options": options, "place": place},
            environment=os.environ,
            directory=str(Path.cwd()),
            fds=[read_end, output],
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return pid, write_end


class _ForkedTemplate:
    """The members of asyncio's Process that an agent uses. parent: it ends when the last process closes this."""

    def __init__(self, pid: int, parent: int) -> None:
        self.returncode: int | None = None
        self._parent = parent
        self._end = os.pidfd_open(pid)

    def kill(self) -> None:
        signal.pidfd_send_signal(self._end, signal.SIGKILL)

    async def wait(self) -> int:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        watched = os.dup(self._end)
        loop.add_reader(watched, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(watched)
            os.close(watched)
        self.returncode = -signal.SIGKILL
        return self.returncode


def serve_template(arguments: Mapping[str, Any], fds: Sequence[int]) -> int:
    """The fork that becomes an agent's fork server. fds: the pipe that its agent holds, and its log."""
    parent, output = fds
    for source, number in ((parent, 0), (output, 1), (output, 2)):
        os.dup2(source, number)
    os.close(parent)
    os.close(output)
    enter_namespaces(arguments["place"])
    show([sys.executable, "-P", "-m", "gangline.launch.forkserver", *arguments["options"]])
    options = forkserver.parse_options(arguments["options"])
    listener = forkserver._bind(options.socket)
    # A rank must not find modules of the tests loaded.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    forkserver.serve(options, listener, 0, {})
    return 0
