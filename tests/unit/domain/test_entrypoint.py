"""What an entrypoint runs in each rank: with launchers of Gangline, Determined and torch in front of it, or without."""

from __future__ import annotations

import pytest

from gangline.domain.entrypoint import (
    Command,
    Entrypoint,
    Module,
    Script,
    TrialClass,
    launcher_options,
    parse_entrypoint,
    program_of,
    refused_launcher,
    runs_in_every_slot,
)

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
        ("python3 -u -m gangline.launch.torch_distributed train.py", Script("train.py")),
        ("torchrun --standalone train.py", Command(("torchrun", "--standalone", "train.py"))),
        (
            "python3 -m torch.distributed.run --nproc-per-node 2 train.py",
            Command(("python3", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")),
        ),
        ("python3 train.py && echo x", Command(("python3", "train.py", "&&", "echo", "x"))),
        ("python3 train.py --lr $LR", Command(("python3", "train.py", "--lr", "$LR"))),
        ("python3 train.py --lr '$LR' 'a && b'", Script("train.py", ("--lr", "$LR", "a && b"))),
        ("python3 train.py -- --standalone", Script("train.py", ("--", "--standalone"))),
        ("bash run.sh", Command(("bash", "run.sh"))),
    ],
)
def test_what_runs_in_each_rank(text: str, expected: Entrypoint) -> None:
    assert parse_entrypoint(text) == expected


def test_only_other_commands_take_the_place_of_a_rank() -> None:
    assert program_of("X=1 python3 train.py") == ["/bin/sh", "-c", "X=1 python3 train.py"]
    assert program_of(["bash", "run.sh"]) == ["bash", "run.sh"]
    assert program_of("torchrun train.py") == ["/bin/sh", "-c", "torchrun train.py"]
    assert program_of("python3 train.py --a b") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model_def:Trial", True),
        (["model_def:Trial"], True),
        (f"{LAUNCHER} --trial model_def:Trial", True),
        (f"{LAUNCHER} --rdzv_conf timeout=60 -- python3 train.py", True),
        (f"{LAUNCHER} bash train.sh", True),
        (f"{LAUNCHER} train.py --lr $LR", True),
        ("python3 -m gangline.launch.torch_distributed train.py", True),
        (f"{LAUNCHER} train.py && echo done", False),
        (f"X=1 {LAUNCHER} train.py", False),
        ("python3 train.py", False),
        ("python3 -m train", False),
        ("torchrun --nproc_per_node=2 train.py", False),
        ("bash train.sh", False),
    ],
)
def test_a_trial_and_launchers_of_ours_run_in_every_slot_all_others_once(text: str, expected: bool) -> None:
    assert runs_in_every_slot(text) is expected


def test_the_options_of_torchrun_are_known() -> None:
    line = f"{LAUNCHER} --rdzv_conf timeout=60 --max-restarts=2 --standalone -- python3 train.py --lr 1"
    assert launcher_options(line) == ("--rdzv_conf=timeout=60", "--max-restarts=2", "--standalone")
    assert launcher_options("python3 train.py --lr 1") == ()
    # The shell runs the launcher, which takes them.
    assert launcher_options(f"{LAUNCHER} --max-restarts=2 train.py && echo done") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python3 -m determined.launch.horovod --trial m:T", "Horovod is not part of Gangline"),
        ("python3 -m determined.launch.deepspeed --trial m:T", "parallelism: zero1, zero2 or zero3"),
        (["python3", "-m", "determined.launch.tensorflow", "--", "python3", "t.py"], "TensorFlow is not part"),
        ("bash prepare.sh && python3 -m determined.exec.harness m:T", "runs determined.exec.harness, which Gangline"),
    ],
)
def test_a_launcher_that_is_not_there_is_named_with_the_way_out(text: str | list[str], expected: str) -> None:
    told = refused_launcher(text)
    assert told is not None
    assert expected in told
    assert "determined.launch.torch_distributed" in told


@pytest.mark.parametrize(
    "text", [f"{LAUNCHER} m:T", "python3 -m determined.launch.wrap_rank 0 -- python3 t.py", "python3 -m mine.launch"]
)
def test_other_launchers_are_not_refused(text: str) -> None:
    assert refused_launcher(text) is None
