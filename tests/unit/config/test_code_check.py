"""The names in an entrypoint are checked before any upload; every message in full."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.config import Command, Module, Script, TrialClass, check_code, parse_entrypoint
from gangline.config.environment import Environment
from gangline.errors import GanglineError

TRIAL = "from gangline.pytorch import PyTorchTrial\n\nclass Digits(PyTorchTrial):\n    pass\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model_def:Digits", TrialClass("model_def", "Digits")),
        ("pkg.sub:Digits", TrialClass("pkg.sub", "Digits")),
        ("python3 train.py --lr 0.1", Script("train.py", ("--lr", "0.1"))),
        ("/usr/bin/python3.11 -u train.py", Script("train.py")),
        ("python3 -m pkg.train a", Module("pkg.train", ("a",))),
        (["python3", "my train.py"], Script("my train.py")),
        ("python3 -m gangline.launch.torch_distributed python3 train.py", Script("train.py")),
        ("python3 -m determined.launch.torch_distributed -- python3 -m pkg", Module("pkg")),
        ("python3 -m determined.launch.torch_distributed model_def:Digits", TrialClass("model_def", "Digits")),
        ("python3 -m determined.launch.torch_distributed --trial model_def:Digits", TrialClass("model_def", "Digits")),
        ("python3 -m gangline.launch.torch_distributed train.py --lr 0.1", Script("train.py", ("--lr", "0.1"))),
        ("python3 -m determined.launch.torch_distributed -m pkg.train a", Module("pkg.train", ("a",))),
        ("train.py", Command(("train.py",))),
        ("bash run.sh", Command(("bash", "run.sh"))),
    ],
)
def test_entrypoint_is_read(text: str, expected: object) -> None:
    assert parse_entrypoint(text) == expected


@pytest.mark.parametrize(
    "source",
    [
        TRIAL,
        "from other import Digits\n",
        "from other import *\n",
        "import x as Digits\n",
        "Digits = make()\n",
        "try:\n    from a import Digits\nexcept ImportError:\n    Digits = None\n",
    ],
)
def test_class_is_found_however_it_is_bound(tmp_path: Path, source: str) -> None:
    (tmp_path / "model_def.py").write_text(source)
    check_code(tmp_path, parse_entrypoint("model_def:Digits"))


def test_package_is_found(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text(TRIAL)
    check_code(tmp_path, parse_entrypoint("pkg:Digits"))


@pytest.mark.parametrize(
    ("entrypoint", "source", "code", "message"),
    [
        (
            "other:Digits",
            TRIAL,
            "code.no_module",
            "entrypoint other:Digits needs the file other.py, but the Python files in {folder} are: model_def.py",
        ),
        (
            "model_def:Digit",
            TRIAL,
            "code.no_class",
            "model_def.py defines no Digit; the classes in it are: Digits",
        ),
        (
            "model_def:Digits",
            "class Digits:\n    pass\n",
            "code.no_trial",
            "Digits in model_def.py line 1 inherits from nothing; a trial inherits from gangline.pytorch.PyTorchTrial",
        ),
        (
            "model_def:Digits",
            "def Digits():\n    pass\n",
            "code.no_trial",
            "Digits in model_def.py line 1 is a function; a trial is a class",
        ),
        (
            "model_def:Digits",
            "class Digits(\n",
            "code.syntax",
            "model_def.py line 1 is no valid Python: '(' was never closed",
        ),
        (
            "python3 train.py",
            TRIAL,
            "code.no_script",
            "entrypoint runs train.py, but the Python files in {folder} are: model_def.py",
        ),
    ],
)
def test_error_names_what_is_missing_and_what_is_there(
    tmp_path: Path, entrypoint: str, source: str, code: str, message: str
) -> None:
    (tmp_path / "model_def.py").write_text(source)
    with pytest.raises(GanglineError) as caught:
        check_code(tmp_path, parse_entrypoint(entrypoint))
    assert (caught.value.code, caught.value.message) == (code, message.format(folder=tmp_path))


BROKEN = "import os\n\ndef f(:\n    pass\n"
LAUNCH = "python3 -m gangline.launch.torch_distributed"


@pytest.mark.parametrize(
    ("entrypoint", "file"),
    [
        ("python3 train.py --lr 0.1", "train.py"),
        (["python3", "-u", "train.py"], "train.py"),
        ("python3 ./jobs/train.py", "jobs/train.py"),
        (f"{LAUNCH} train.py", "train.py"),
        (f"{LAUNCH} --nproc_per_node=2 python3 train.py", "train.py"),
        (f"{LAUNCH} -m pkg.train", "pkg/train.py"),
        ("python3 -m train", "train.py"),
        ("python3 -m pkg.train", "pkg/train.py"),
        ("python3 -m pkg", "pkg/__init__.py"),
        ("python3 -m pkg", "pkg/__main__.py"),
        ("model_def:Digits", "model_def.py"),
    ],
)
def test_a_file_that_python_cannot_read_is_refused(tmp_path: Path, entrypoint: str | list[str], file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(BROKEN)
    with pytest.raises(GanglineError) as caught:
        check_code(tmp_path, parse_entrypoint(entrypoint))
    assert (caught.value.code, caught.value.message) == (
        "code.syntax",
        f"{file} line 3 is no valid Python: invalid syntax",
    )
    for environment in (Environment(python="/opt/py"), Environment(image="other/python")):
        check_code(tmp_path, parse_entrypoint(entrypoint), environment)


def test_a_script_is_found_from_its_working_directory(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/train.py").write_text("return 1\n")
    (tmp_path / "train.py").write_text("print(1)\n")
    check_code(tmp_path, parse_entrypoint("python3 train.py"))
    check_code(tmp_path, parse_entrypoint("python3 train.py"), Environment(working_directory="/on/agents"))
    with pytest.raises(GanglineError, match=r"^jobs/train.py line 1 is no valid Python: 'return' outside function$"):
        check_code(tmp_path, parse_entrypoint("python3 train.py"), Environment(working_directory="jobs"))


def test_a_package_may_consist_of_its_program_alone(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__main__.py").write_text("print(1)\n")
    check_code(tmp_path, parse_entrypoint("python3 -m pkg"))


def test_a_module_without_its_class_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(TRIAL)
    (tmp_path / "tool.py").write_text("class Tool(object):\n    pass\n")
    with pytest.raises(GanglineError) as caught:
        check_code(tmp_path, parse_entrypoint("model_def"))
    assert caught.value.message == (
        "entrypoint model_def names no class, so it would run as a program; did you mean model_def:Digits?"
    )
    for program in ("tool", "elsewhere", "model_def x"):
        check_code(tmp_path, parse_entrypoint(program))


def test_module_of_a_package_in_the_folder_must_exist(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    with pytest.raises(GanglineError) as caught:
        check_code(tmp_path, parse_entrypoint("python3 -m pkg.train"))
    assert caught.value.message == f"entrypoint runs the module pkg.train, but {tmp_path} holds no Python file"


def test_module_and_command_from_elsewhere_are_left_to_the_machine(tmp_path: Path) -> None:
    check_code(tmp_path, parse_entrypoint("python3 -m installed.train"))
    check_code(tmp_path, parse_entrypoint("bash run.sh"))
