"""`python -m gangline.launch.torch_distributed [--trial module:Class | file.py ... | -m module ... | command ...]`.

In the cluster every slot has its rank already, and the trial runner drops this prefix from an entrypoint. The command
exists so that the same line works elsewhere. There it starts one rank for each GPU of this machine (or
--nproc-per-node) under torchrun. It ends with the exit code of the first rank that fails. In a rank that a shell script
started it runs just the command.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from gangline import alias
from gangline.domain.entrypoint import Command, Module, Script, TrialClass, parse_launched
from gangline.errors import GanglineError, invalid


def main(arguments: list[str] | None = None) -> int:
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    alias.install()
    words = _words_of(options)
    try:
        return _run_here(words) if "RANK" in os.environ else _run_torchrun(words, options.nproc_per_node)
    except GanglineError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 2


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gangline.launch.torch_distributed")
    parser.add_argument("--trial", help="module:Class, instead of a command")
    parser.add_argument("--nproc-per-node", type=int, help="ranks to start off the cluster; default one for each GPU")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="a module with its arguments")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a Python file or any program, with its arguments")
    return parser.parse_args(arguments)


def _words_of(options: argparse.Namespace) -> list[str]:
    if options.trial:
        return [options.trial]
    if options.module is not None:
        return ["-m", *options.module]
    return list(options.command[1:] if options.command[:1] == ["--"] else options.command)


def _run_here(words: list[str]) -> int:
    match parse_launched(words):
        case TrialClass():
            raise invalid("launch.trial", f"{words[0]} is a trial class; name it as the experiment's entrypoint")
        case Script() | Module() if not _is_program(words[0]):
            words = [sys.executable, *words]
        case Command():
            _check_program(words)
    os.execvp(words[0], words)  # noqa: S606  a list, and the user's own command


def _run_torchrun(words: list[str], num_ranks: int | None) -> int:
    from torch.distributed import run  # noqa: PLC0415  only off the cluster
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415  as above

    script_words = _torchrun_words(words)
    try:
        run.main(["--standalone", f"--nproc-per-node={num_ranks or _count_gpus()}", *script_words])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _tell_end(rank, failure.exitcode)
    return 0


def _torchrun_words(words: list[str]) -> list[str]:
    match parse_launched(words):
        case Script(path=path, arguments=arguments):
            if not Path(path).is_file():
                raise invalid("launch.no_file", f"there is no file {path} in {Path.cwd()}")
            return [path, *arguments]
        case Module(name=name, arguments=arguments):
            return ["-m", name, *arguments]
        case TrialClass():
            raise invalid(
                "launch.trial",
                f"{words[0]} needs an experiment's configuration; off the cluster give a script that calls "
                "gangline.pytorch.init and Trainer.fit",
            )
        case Command():
            _check_program(words)
    return ["--no-python", *words]


def _check_program(words: list[str]) -> None:
    if not words or words[0].startswith("-"):
        what = f"{words[0]} is no program" if words else "there is nothing to run"
        raise invalid("launch.no_command", f"{what}; name a Python file, -m and a module, or a program")
    if not _is_program(words[0]):
        raise invalid(
            "launch.no_program", f"there is no program {words[0]}; name a Python file, -m and a module, or a program"
        )


def _is_program(word: str) -> bool:
    return not word.endswith(".py") and shutil.which(word) is not None


def _tell_end(rank: int, code: int) -> int:
    """Reports the rank that failed first, and returns its exit code as a shell would give it."""
    how = f"ended with exit code {code}" if code >= 0 else f"died of signal {-code}"
    sys.stderr.write(f"error: rank {rank} {how}; what it printed stands above\n")
    # A negative code is a signal, which a shell reports as 128 + signal.
    return code if code >= 0 else 128 - code


def _count_gpus() -> int:
    import torch  # noqa: PLC0415  only off the cluster

    return max(1, torch.cuda.device_count())


if __name__ == "__main__":
    sys.exit(main())
