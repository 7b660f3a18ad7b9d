"""The arguments of the launch commands, and their message where there is nothing to run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from torch import cuda
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from gangline.cluster_info import ENVIRONMENT_KEY, ClusterInfo, TrialInfo
from gangline.launch import torch_distributed, wrap_rank

_HINT = "name a Python file, -m and a module, or a program"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a script in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("gangline.alias.install", "gangline.launch.wrap_rank.install"):
        monkeypatch.setattr(name, lambda: None)
    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "train.py").write_text("")
    return tmp_path


@pytest.fixture
def torchrun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Returns the arguments of the call of torchrun, after our own options."""
    calls: list[list[str]] = []
    monkeypatch.setattr(run, "main", lambda words: calls.append(words[2:]))
    return calls


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "--lr", "0.1"], ["train.py", "--lr", "0.1"]),
        (["python3", "train.py", "--", "a"], ["train.py", "--", "a"]),
        (["-m", "pkg.train", "--lr", "0.1"], ["-m", "pkg.train", "--lr", "0.1"]),
        (["python3", "-m", "pkg.train"], ["-m", "pkg.train"]),
        (["--", "-m", "pkg.train"], ["-m", "pkg.train"]),
        (["true", "-m", "x"], ["--no-python", "true", "-m", "x"]),
    ],
)
def test_scripts_modules_and_programs_are_taken(
    torchrun: list[list[str]], words: list[str], expected: list[str]
) -> None:
    assert torch_distributed.main(["--nproc-per-node", "2", *words]) == 0
    assert torchrun == [expected]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.py"], "there is no file absent.py in {folder}"),
        (["python3", "absent.py"], "there is no file absent.py in {folder}"),
        (["no-such-program"], f"there is no program no-such-program; {_HINT}"),
        ([], f"there is nothing to run; {_HINT}"),
        (["-m"], f"-m is no program; {_HINT}"),
    ],
)
def test_what_is_missing_is_one_line(
    torchrun: list[list[str]], folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert torch_distributed.main(["--nproc-per-node", "2", *words]) == 2
    assert capsys.readouterr().err == f"error: {message.format(folder=folder)}\n"
    assert torchrun == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "a"], [sys.executable, "train.py", "a"]),
        (["-m", "pkg.train"], [sys.executable, "-m", "pkg.train"]),
        (["python3", "-u", "train.py"], ["python3", "-u", "train.py"]),
        (["true"], ["true"]),
    ],
)
def test_in_a_rank_the_command_takes_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: list[str]
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(os, "execvp", lambda _program, words: calls.append(words))
    torch_distributed.main(words)
    assert calls == [expected]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("code", "expected", "how"), [(3, 3, "ended with exit code 3"), (-9, 137, "died of signal 9")])
def test_a_rank_that_fails_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, expected: int, how: str
) -> None:
    def fail(_words: list[str]) -> None:
        raise ChildFailedError("train.py", {1: ProcessFailure(1, 4711, code, "")})

    monkeypatch.setattr(run, "main", fail)
    assert torch_distributed.main(["--nproc-per-node", "2", "train.py"]) == expected
    assert capsys.readouterr().err == f"error: rank 1 {how}; what it printed stands above\n"


@pytest.mark.parametrize("options", [[], ["--no-redirect-stdio"]])
def test_wrap_rank_says_that_there_is_no_such_program(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert wrap_rank.main([*options, "0", "no-such-program"]) == 2
    assert capsys.readouterr().err == "error: wrap_rank 0: there is no program no-such-program\n"


def _options(folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> list[str]:
    calls: list[list[str]] = []
    monkeypatch.setattr(run, "main", calls.append)
    assert torch_distributed.main(words) == 0
    return calls[0]


def test_off_the_cluster_torchrun_gets_its_options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--rdzv_conf", "timeout=60", "--nproc_per_node=3", "--", "python3", "train.py", "--lr", "1"]
    assert _options(folder, monkeypatch, words) == [
        "--standalone",
        "--rdzv_conf=timeout=60",
        "--nproc_per_node=3",
        "train.py",
        "--lr",
        "1",
    ]
    words = ["--nnodes=2", "--node_rank=1", "--master_addr=h", "train.py"]
    assert _options(folder, monkeypatch, words)[:2] == [f"--nproc-per-node={max(1, cuda.device_count())}", "--nnodes=2"]


def test_below_a_script_of_a_trial_its_machines_and_slots_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = TrialInfo("7.1", 7, 0, {}, {})
    info = ClusterInfo("c", "7.1.1", 1, "a2", 1, 2, ["a2/0", "a2/1"], "/s", "/c", trial, runs_once=True)
    monkeypatch.setenv(ENVIRONMENT_KEY, info.to_json())
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "12345")
    words = ["--nproc_per_node=8", "--standalone", "--max_restarts=1", "train.py"]
    assert _options(folder, monkeypatch, words) == [
        "--nnodes=2",
        "--node-rank=1",
        "--nproc-per-node=2",
        "--master-addr=10.0.0.1",
        "--master-port=12345",
        "--max_restarts=1",
        "train.py",
    ]
