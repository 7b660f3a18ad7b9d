"""`python -m gangline.launch.torch_distributed [torchrun options] [--trial module:Class | file.py ... | -m module ... |
command ...]`.

As the entrypoint of an experiment it starts one rank in each slot. The trial runner does this, so it drops the command
with its options. The command itself runs in two other places. Off the cluster it starts one rank for each GPU of this
machine (or --nproc-per-node) under torchrun, with the given options. In a trial, below a script or shell line that runs
once on each machine, it starts one rank for each slot of the machine, connected with those of the other machines. It
ends with the exit code of the first rank that fails. In a rank it runs just the command.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gangline import alias
from gangline.cluster_info import get_cluster_info
from gangline.domain.entrypoint import Command, Module, Script, TrialClass, parse_launched, split_options
from gangline.errors import GanglineError, invalid


def main(arguments: list[str] | None = None) -> int:
    launch = split_options(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(launch.options):
        sys.stdout.write(f"{__doc__}\nThe options of torchrun are those of `torchrun --help`.\n")
        return 0
    alias.install()
    words = list(launch.program)
    try:
        return _run_here(words) if "RANK" in os.environ else _run_torchrun(words, launch.options)
    except GanglineError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 2


def _run_here(words: list[str]) -> int:
    match parse_launched(words):
        case TrialClass():
            raise invalid("launch.trial", f"{words[0]} is a trial class; name it as the experiment's entrypoint")
        case Script() | Module() if not _is_program(words[0]):
            words = [sys.executable, *words]
        case Command():
            _check_program(words)
    os.execvp(words[0], words)  # noqa: S606  a list, and the user's own command


def _run_torchrun(words: list[str], options: Sequence[str]) -> int:
    script_words = _torchrun_words(words)
    # Loaded after the checks above, as torch takes seconds.
    from torch.distributed import run  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    try:
        run.main([*_place_options(options), *script_words])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _tell_end(rank, failure.exitcode)
    return 0


def _place_options(options: Sequence[str]) -> list[str]:
    """Returns torchrun's options. The trial has fixed machines and slots; elsewhere the user's options come first."""
    cluster = get_cluster_info()
    if cluster is not None:
        kept = [each for each in options if _name_of(each) not in (*_OF_PLACE, *_OF_RENDEZVOUS)]
        place = [f"--nnodes={cluster.num_nodes}", f"--node-rank={cluster.node_rank}"]
        store = [f"--master-addr={os.environ['MASTER_ADDR']}", f"--master-port={os.environ['MASTER_PORT']}"]
        return [*place, f"--nproc-per-node={len(cluster.slot_ids) or 1}", *store, *kept]
    names = {_name_of(each) for each in options}
    own = [] if "nproc-per-node" in names else [f"--nproc-per-node={_count_gpus()}"]
    return [*([] if names & _OF_RENDEZVOUS else ["--standalone"]), *own, *options]


# Options of torchrun by which the machines of a trial find one another, and those that count its ranks.
_OF_RENDEZVOUS = {"standalone", "nnodes", "node-rank", "master-addr", "master-port", "rdzv-endpoint", "rdzv-backend"}
_OF_PLACE = {"nproc-per-node", "rdzv-id"}


def _name_of(option: str) -> str:
    return option.lstrip("-").partition("=")[0].replace("_", "-")


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
