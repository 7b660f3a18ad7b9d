"""`gangline migrate check`: each file of a folder runs, runs with a warning, or needs a change that is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.cli.main import run
from gangline.errors import GanglineError
from gangline.migrate import check as check_module
from gangline.migrate.check import Verdict, check_experiment, check_folder, check_program
from gangline.migrate.used_names import find_names, find_programs

SINGLE = "searcher: {name: single, metric: loss, max_length: {batches: 5}}\n"
CONFIG = f"name: a\nentrypoint: model_def:T\nhyperparameters: {{global_batch_size: 8}}\n{SINGLE}"


def names(source: str) -> list[tuple[int, str]]:
    return [(used.line, used.name) for used in find_names(source)]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import determined as det\ndet.core.init()", [(1, "determined"), (2, "determined.core.init")]),
        ("import determined.pytorch\ndetermined.keras.X", [(1, "determined.pytorch"), (2, "determined.keras.X")]),
        ("from determined import core as c\nc.a.b\nc.a.b", [(1, "determined.core"), (2, "determined.core.a.b")]),
        ("from determined.pytorch import *", [(1, "determined.pytorch")]),
        ("from determined.pytorch import A as B\nB.x", [(1, "determined.pytorch.A"), (2, "determined.pytorch.A.x")]),
        ("import determinedly\nfrom . import determined\ndet.core", []),
        ("x.train.get_metadata()", []),
        (
            "import determined\ncontext.train.get_metadata()",
            [(1, "determined"), (2, "determined.core.Context.train.get_metadata")],
        ),
        ("import determined as det\nf().core.init\ndet", [(1, "determined")]),
    ],
)
def test_names_of_determined(source: str, found: list[tuple[int, str]]) -> None:
    assert names(source) == found


def test_programs_of_a_shell_line() -> None:
    line = "X=1 python3 -m determined.launch.torch_distributed -- python3 -m determined.exec.harness a && python -m det"
    assert find_programs(line) == ["determined.launch.torch_distributed", "determined.exec.harness"]


@pytest.mark.parametrize(
    ("text", "verdict", "part"),
    [
        (CONFIG, Verdict.RUNS, ""),
        (CONFIG + "environment: {image: x/y:1}\n", Verdict.WARNING, "environment.image"),
        (CONFIG + "resources: {slots_per_trail: 2}\n", Verdict.CHANGE, "slots_per_trial"),
        (
            CONFIG.replace("model_def:T", "python3 -m determined.launch.horovod"),
            Verdict.CHANGE,
            "determined.launch.horovod",
        ),
        (CONFIG.replace("model_def:T", "[python3, -m, determined.launch.deepspeed]"), Verdict.CHANGE, "deepspeed"),
        (CONFIG.replace("model_def:T", "python3 -m determined.launch.torch_distributed model_def:T"), Verdict.RUNS, ""),
        (CONFIG + "searcher: [", Verdict.CHANGE, "line"),
        ("searcher: 5\n", Verdict.CHANGE, "entrypoint"),
    ],
)
def test_experiment_files(text: str, verdict: Verdict, part: str) -> None:
    finding = check_experiment("a.yaml", text)
    assert finding is not None
    assert finding.verdict is verdict, finding
    assert bool(finding.notes) is (verdict is not Verdict.RUNS)
    assert part in " ".join(finding.notes)
    assert all("\n" not in note for note in finding.notes)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "services: {}\n", "a: [\n", "5", "a: &x [*x]\n"])
def test_another_yaml_is_left_alone(text: str) -> None:
    assert check_experiment("compose.yaml", text) is None


@pytest.mark.parametrize(
    ("source", "notes"),
    [
        ("from determined.pytorch import PyTorchTrial, DataLoader", ()),
        ("import determined as det\ndet.get_cluster_info().trial.hparams\ndet.__version__", ()),
        ("from determined.experimental import client\nclient.create_experiment()", ()),
        ("from determined.launch import torch_distributed", ()),
        ("from determined import keras\nkeras.TFKerasTrial", ("determined.keras", "determined.keras.TFKerasTrial")),
        ("from determined.pytorch import deepspeed", ("determined.pytorch.deepspeed",)),
        ("import determined.horovod", ("determined.horovod",)),
        ("from determined.transformers import DetCallback", ()),
        ("from determined.transformers import get_metric_type", ("determined.transformers.get_metric_type",)),
        ("import determined\nc.train.set_metadata({})", ("determined.core.Context.train.set_metadata",)),
    ],
)
def test_programs(source: str, notes: tuple[str, ...]) -> None:
    finding = check_program("a.py", source)
    assert finding is not None
    assert [note.split()[2] for note in finding.notes] == list(notes)
    assert finding.verdict is (Verdict.CHANGE if notes else Verdict.RUNS)


def test_a_program_that_is_no_python_3() -> None:
    assert check_program("a.py", "print 'x'") is None
    finding = check_program("a.py", "import determined\nprint 'x'")
    assert finding is not None
    assert finding.verdict is Verdict.CHANGE


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("good", ".git", "venv", "bad\x1b[31m"):
        (tmp_path / folder).mkdir()
    for folder in ("good", ".git", "venv"):
        (tmp_path / folder / "const.yaml").write_text(CONFIG)
    (tmp_path / "bad\x1b[31m" / "train.py").write_text("import determined.keras\n")
    (tmp_path / "latin.yaml").write_bytes(b"entrypoint: \xff\n")
    (tmp_path / "large.py").write_text("import determined.keras\n" + "#" * check_module.MAX_BYTES)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [finding.path for finding in check_folder(tmp_path)] == [
        "latin.yaml",
        "bad\x1b[31m/train.py",
        "good/const.yaml",
    ]
    assert run(["migrate", "check", str(tmp_path)]) == 2
    said = capsys.readouterr().out
    assert "3 files, of which run: 1 as they are, 0 with a warning, 2 after a change" in said
    assert "\x1b[31m" not in said
    assert run(["migrate", "check", str(tmp_path / "good")]) == 0
    assert run(["migrate", "check", str(tmp_path / "good"), "--json"]) == 0
    assert '"verdict": "runs"' in capsys.readouterr().out


def test_a_program_that_is_no_python_has_its_line() -> None:
    finding = check_program("old.py", "import determined\nprint 1\n")
    assert finding is not None
    text = (
        "this is no Python that can be read: line 2: Missing parentheses in call to 'print'. Did you mean print(...)?"
    )
    assert (finding.verdict, finding.notes) == (Verdict.CHANGE, (text,))
    assert check_program("other.py", "print 1\n") is None


def test_a_folder_that_cannot_be_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GanglineError, match="does not exist"):
        check_folder(tmp_path / "away")
    (tmp_path / "file").write_text("")
    with pytest.raises(GanglineError, match="is a file"):
        check_folder(tmp_path / "file")
    monkeypatch.setattr(check_module, "MAX_FILES", 0)
    with pytest.raises(GanglineError, match="more than 0 files"):
        check_folder(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG)
    (tmp_path / "a.yaml").chmod(0)
    [finding] = check_folder(tmp_path)
    assert (finding.verdict, finding.notes) == (Verdict.CHANGE, ("the file cannot be read: Permission denied",))
