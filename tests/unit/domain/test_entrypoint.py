"""What an entrypoint runs in each rank: with launchers of Gangline, Determined and torch in front of it, or without."""

from __future__ import annotations

import pytest

from gangline.domain.entrypoint import Command, Entrypoint, Module, Script, TrialClass, parse_entrypoint, program_of

LAUNCHER = "python3 -m determined.launch.torch_distributed"
SCRIPT = Script("train.py", ("--a", "b c"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model_def:Trial", TrialClass("model_def", "Trial")),
        (f"{LAUNCHER} --trial model_def:Trial", TrialClass("model_def", "Trial")),
        (f"{LAUNCHER} -- python3 train.py --a 'b c'", SCRIPT),
        (f"{LAUNCHER} python3 -u train.py --a 'b c'", SCRIPT),
        (f"{LAUNCHER} train.py --a 'b c'", SCRIPT),
        (f"{LAUNCHER} -m train --x", Module("train", ("--x",))),
        (f"{LAUNCHER} --rdzv_conf timeout=60 --max-restarts=2 -- python3 train.py --a 'b c'", SCRIPT),
        (f"{LAUNCHER} --standalone python3 train.py --a 'b c'", SCRIPT),
        ("torchrun --nproc_per_node=2 --nnodes 1 train.py --a 'b c'", SCRIPT),
        ("torchrun --standalone --module train --x", Module("train", ("--x",))),
        ("python3 -m torch.distributed.run --nproc-per-node 2 train.py --a 'b c'", SCRIPT),
        ("python -m torch.distributed.launch --use_env train.py --a 'b c'", SCRIPT),
        ("python3 train.py -- --standalone", Script("train.py", ("--", "--standalone"))),
        ("bash run.sh", Command(("bash", "run.sh"))),
    ],
)
def test_what_runs_in_each_rank(text: str, expected: Entrypoint) -> None:
    assert parse_entrypoint(text) == expected


def test_only_other_commands_take_the_place_of_a_rank() -> None:
    assert program_of("X=1 python3 train.py") == ["/bin/sh", "-c", "X=1 python3 train.py"]
    assert program_of(["bash", "run.sh"]) == ["bash", "run.sh"]
    assert program_of("torchrun --nproc_per_node=2 train.py") == []
