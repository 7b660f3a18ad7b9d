"""A `python3` and a `torchrun` that run programs in forks of a process that has torch loaded, for tests that start
many: a cold start with torch takes seconds of a processor.

A program has its own arguments, environment, folder and standard files. Its sys.executable is this python3, so what
it starts in its turn is warm as well. It is no child of the command that was called, but it ends when the command is
killed, gets the command's signals, and its exit code becomes that of the command. Programs whose first import matters
start cold: of each kind that tests start warm, one test starts a cold one.
"""

from __future__ import annotations

import builtins
import importlib
import os
import runpy
import select
import signal
import socket
import sys
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gangline.launch import channel, child, forkserver
from tests.support.source import ROOT

_COMMANDS = {"python3": (), "torchrun": ("-m", "torch.distributed.run")}
_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_COMMAND = """#!{python} -IS
import sys
sys.path.insert(0, {root!r})
from tests.support import warm_python
warm_python.call({server!r}, sys.argv[0], {words!r})
"""
# Of python3. The first two change nothing here: output is flushed at each line's end anyway.
_OPTIONS = ("-u", "-B", "-P")
_BURIAL_SECONDS = 5.0


def install_commands(folder: Path, server: str) -> Path:
    """Writes the commands into a folder, and returns it. server: the socket of a fork server that has torch loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in _COMMANDS.items():
        path = folder / name
        path.write_text(_COMMAND.format(python=sys.executable, root=str(ROOT), server=server, words=words))
        path.chmod(0o755)
    return folder


def call(server: str, command: str, words: Sequence[str]) -> NoReturn:
    """The process of the command: has the program run, and ends as it ends."""
    ours, theirs = socket.socketpair()
    request = {"python": str(Path(command).with_name("python3").absolute()), "words": [*words, *sys.argv[1:]]}
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    fds = [0, 1, 2, theirs.fileno()]
    forkserver.fork(server, f"{__name__}:keep", request, environment=os.environ, directory=str(Path.cwd()), fds=fds)
    theirs.close()
    program = int(_answer(ours)["pid"])

    def forward(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(program, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    code = int(_answer(ours)["code"])
    if code < 0:
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _answer(control: socket.socket) -> dict[str, Any]:
    received = channel.receive(control)
    assert received is not None, "the process that forks the program was killed"
    return received[0]


def keep(arguments: Mapping[str, Any], fds: Sequence[int]) -> int:
    """Forks the program, and waits for its end or that of the command. fds: standard input, output and error, and the
    connection to the command."""
    child.adopt_orphans()
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become_program(keeper, arguments, fds)
        finally:
            os._exit(1)
    for fd in fds[:3]:
        os.close(fd)
    with socket.socket(fileno=fds[3]) as control:
        channel.send(control, {"pid": pid})
        end = os.pidfd_open(pid)
        either: list[Any] = [end, control]
        select.select(either, [], [])
        # Only if the command is gone does the program still run.
        signal.pidfd_send_signal(end, signal.SIGKILL)
        child.kill_descendants(pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        child.bury_descendants(_BURIAL_SECONDS)
        with suppress(OSError):
            channel.send(control, {"code": code})
    return 0


def _become_program(keeper: int, arguments: Mapping[str, Any], fds: Sequence[int]) -> None:
    child.die_with_parent(keeper)
    os.setsid()
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]  # as the interpreter itself does
    sys.executable = arguments["python"]
    # A program must not find modules of the tests loaded, nor the main module of the fork server.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.modules["__main__"].__dict__["__builtins__"] = builtins
    _settle_libraries()
    child.leave_like_a_program(_run(arguments["words"]))


def _settle_libraries() -> None:
    """As the nursery does for a rank."""
    import numpy as np
    import torch

    np.random.seed()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))


def _run(words: Sequence[str]) -> int:
    """Returns the exit code of python3 with these words."""
    try:
        _run_words(words)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return int(error.code or 0)
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - python3 would show it and end with 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
            trace = trace.tb_next
        sys.last_value = error = error.with_traceback(trace)
        sys.excepthook(type(error), error, trace)
        return 1
    return 0


def _run_words(words: Sequence[str]) -> None:
    options, rest = [], list(words)
    while rest[0] in _OPTIONS:
        options.append(rest.pop(0))
    own = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    match rest:
        case ["-m", name, *arguments]:
            first, sys.argv = str(Path.cwd()), [name, *arguments]
        case ["-c", code, *arguments]:
            first, sys.argv = "", ["-c", *arguments]
        case [path, *arguments]:
            assert not path.startswith("-"), f"{path}: this option is for a cold python3"
            first, sys.argv = str(Path(path).resolve().parent), [path, *arguments]
    own = own if "-P" in options else [first, *own]
    sys.path[:] = own + [entry for entry in sys.path if entry not in own]
    importlib.invalidate_caches()
    main = sys.modules["__main__"].__dict__
    match rest:
        case ["-m", name, *_]:
            runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what the interpreter calls
        case ["-c", code, *_]:
            exec(compile(code, "<string>", "exec"), main)
        case [path, *_]:
            main["__file__"] = file = str(Path(path).absolute())
            exec(compile(Path(path).read_bytes(), file, "exec"), main)
