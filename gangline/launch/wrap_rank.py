"""`python -m gangline.launch.wrap_rank [--no-redirect-stdio] RANK [--] command ...`: a worker of a script's launcher.

Every line that the command prints is prefixed with the worker's number. In a trial the prefix becomes the rank of the
line in the log. RANK is a number or the name of an environment variable that holds it.

If the experiment's own launcher has started a rank in every slot, a launcher in the script starts each worker several
times over. A worker goes on in the slot whose rank it has. In the other slots it ends at once with exit code 0, as if
its work were done.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import IO

from gangline.alias import install
from gangline.cluster_info import get_cluster_info
from gangline.errors import GanglineError, invalid


def main(arguments: list[str] | None = None) -> int:
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    install()
    try:
        rank = _rank_of(options.rank)
        command = options.command[1:] if options.command[:1] == ["--"] else options.command
        if not command:
            raise invalid("launch.no_command", f"wrap_rank {options.rank}: name the command to run after the rank")
        if shutil.which(command[0]) is None:
            raise invalid("launch.no_program", f"wrap_rank {options.rank}: there is no program {command[0]}")
        return _run_in_its_slot(rank, command, is_plain=options.no_redirect_stdio)
    except GanglineError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 2


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gangline.launch.wrap_rank")
    parser.add_argument("--no-redirect-stdio", action="store_true", help="leave the command's output as it is")
    parser.add_argument("rank", help="a number, or an environment variable that holds it")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def _rank_of(word: str) -> int:
    value = word if word.isdigit() else os.environ.get(word, "")
    if not value.isdigit():
        problem = f"the variable holds {value!r}" if word in os.environ else "there is no such variable"
        raise invalid("launch.rank", f"wrap_rank {word}: expected a number or a variable that holds one; {problem}")
    return int(value)


def _run_in_its_slot(rank: int, command: list[str], *, is_plain: bool) -> int:
    cluster = get_cluster_info()
    if cluster is None or cluster.runs_once or cluster.world_size == 1:
        return _run(command) if is_plain else _run_marked(rank, command)
    if rank >= cluster.world_size:
        raise invalid(
            "launch.rank",
            f"wrap_rank {rank}: the trial has the ranks 0 to {cluster.world_size - 1}, one for each slot; start no "
            "more workers, or ask for more slots_per_trial",
        )
    # The cluster's log already marks each line with its rank.
    return _run(command) if rank == cluster.rank else 0


def _run(command: list[str]) -> int:
    os.execvp(command[0], command)  # noqa: S606  a list, and the user's own command


def _run_marked(rank: int, command: list[str]) -> int:
    """Runs the command with marked output. Returns its exit code as a shell would give it. The signals that end this
    process are passed on."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    assert child.stdout is not None
    assert child.stderr is not None
    mark = f"[rank={rank}] ".encode()
    pumps = [
        threading.Thread(target=_pump, args=(source, target, mark))
        for source, target in ((child.stdout, sys.stdout.buffer), (child.stderr, sys.stderr.buffer))
    ]
    for pump in pumps:
        pump.start()
    code = child.wait()
    for pump in pumps:
        pump.join()
    # A negative code is a signal, which a shell reports as 128 + signal.
    return code if code >= 0 else 128 - code


def _pump(source: IO[bytes], target: IO[bytes], mark: bytes) -> None:
    for line in source:
        target.write(mark + line)
        target.flush()


if __name__ == "__main__":
    sys.exit(main())
