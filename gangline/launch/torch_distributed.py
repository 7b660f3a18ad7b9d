"""`python -m gangline.launch.torch_distributed [--trial module:Class | [--] command ...]`.

In the cluster every slot has its rank already, and the trial runner drops this prefix from an entrypoint; it is here
for the same line to work elsewhere: it then starts one rank for each GPU of this machine (or --nproc-per-node) under
torchrun. In a rank that a shell script started it just runs the command.
"""

from __future__ import annotations

import argparse
import os
import sys

from gangline import alias
from gangline.domain.entrypoint import Command, Module, Script, TrialClass, parse_entrypoint
from gangline.errors import GanglineError, invalid


def main(arguments: list[str] | None = None) -> int:
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    alias.install()
    words = [options.trial] if options.trial else [word for word in options.command if word != "--"]
    try:
        return _run_here(words) if "RANK" in os.environ else _run_torchrun(words, options.nproc_per_node)
    except GanglineError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 2


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gangline.launch.torch_distributed")
    parser.add_argument("--trial", help="module:Class, instead of a command")
    parser.add_argument("--nproc-per-node", type=int, help="ranks to start off the cluster; default one for each GPU")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def _run_here(words: list[str]) -> int:
    if isinstance(parse_entrypoint(words), TrialClass):
        raise invalid("launch.trial", f"{words[0]} is a trial class; name it as the experiment's entrypoint")
    os.execvp(words[0], words)  # noqa: S606  a list, and the user's own command


def _run_torchrun(words: list[str], num_ranks: int | None) -> int:
    from torch.distributed import run  # noqa: PLC0415  only off the cluster

    head = ["--standalone", f"--nproc-per-node={num_ranks or _count_gpus()}"]
    match parse_entrypoint(words):
        case Script(path=path, arguments=rest):
            run.main([*head, path, *rest])
        case Module(name=name, arguments=rest):
            run.main([*head, "-m", name, *rest])
        case TrialClass():
            raise invalid(
                "launch.trial",
                f"{words[0]} needs an experiment's configuration; off the cluster give a script that calls "
                "gangline.pytorch.init and Trainer.fit",
            )
        case Command(arguments=rest):
            run.main([*head, "--no-python", *rest])
    return 0


def _count_gpus() -> int:
    import torch  # noqa: PLC0415  only off the cluster

    return max(1, torch.cuda.device_count())


if __name__ == "__main__":
    sys.exit(main())
