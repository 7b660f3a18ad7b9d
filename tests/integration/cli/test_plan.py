"""`gangline plan` on an example, in real processes: the table, the choice, JSON, and mistakes in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Cli
from tests.support import warm_python
from tests.support.source import ROOT
from tests.support.warm_program import WarmPair, folder

_CONFIG = str(ROOT / "examples" / "digits" / "distributed.yaml")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_python.install_commands(tmp_path_factory.mktemp("warm"), WarmPair(folder()).ranks())


@pytest.fixture
def warm(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a plan starts warm. Without this it starts as a user's does."""
    monkeypatch.setattr(sys, "executable", str(commands / "python3"))


@pytest.mark.usefixtures("warm")
def test_plan_of_an_example(cli: Cli) -> None:
    """The plan is the same each time, and names stages, candidates and the choice."""
    arguments = ("plan", _CONFIG, "--slots", "2", "--slot-memory", "1")
    text, document = cli(*arguments), cli(*arguments, "--json")
    assert (text.status, text.err) == (0, "")
    lines = text.out.splitlines()
    assert lines[0] == "model_def:DigitsTrial: Sequential with 38,378 parameters, 12.0 bytes for each with SGD"
    assert "pipeline: 2 stages, 1 replica, 1F1B, 8 microbatches; bubble 11.1%; largest / mean 1.74" in lines
    assert lines[-1] == "choice: ddp, the fastest that fits in 0.40 GiB (10 % + 0.5 GiB stay free)"
    found = json.loads(document.out)
    assert found["choice"] == "ddp"
    assert [part["parameters"] for part in found["pipeline"]["parts"]] == [4896, 33482]
    names = [row["name"] for row in found["candidates"]]
    pipeline = "pipeline (stages 2 microbatches 8)"
    assert names[:7] == ["none", "ddp", "zero1", "zero2", "zero3", "hsdp", pipeline]
    again = ["ddp (recompute {})", "zero1 (recompute {})", "zero2 (recompute {})", "zero3 (recompute {})"]
    again.append("pipeline (stages 2 microbatches 8 recompute {})")
    assert names[7:] == [name.format(kind) for kind in ("blocks", "full") for name in again]


def test_plan_of_the_text_example(cli: Cli) -> None:
    found = json.loads(cli("plan", str(ROOT / "examples" / "text" / "pipeline.yaml"), "--json").out)
    assert [part["modules"] for part in found["pipeline"]["parts"]] == [
        ["tokens", "positions", "blocks.0", "blocks.1"],
        ["blocks.2", "blocks.3", "norm", "head"],
    ]
    assert found["pipeline"]["largest_to_mean"] < 1.1


@pytest.mark.usefixtures("warm")
def test_nothing_fits_in_one_line(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "auto.yaml"
    config.write_text(Path(_CONFIG).read_text() + "parallelism: auto\n")
    ran = cli("plan", str(config), str(ROOT / "examples" / "digits"), "--slot-memory", "0.5")
    assert ran.status == 2
    assert ran.err.startswith("error: parallelism: no strategy fits on 4 slots of 512.00 MiB, of which 0.00 MiB are")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.usefixtures("warm")
def test_a_configured_pipeline_that_cannot_be_cut(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "pipeline.yaml"
    config.write_text(Path(_CONFIG).read_text() + "parallelism: {strategy: pipeline, split: ['1', '2', layers]}\n")
    ran = cli("plan", str(config), str(ROOT / "examples" / "digits"))
    assert ran.status == 2
    assert "pipeline: parallelism.split: there is no unit 'layers'; the units are 0, " in ran.out
    assert ran.err.startswith(
        "error: parallelism: the configured strategy pipeline cannot run: parallelism.split: there"
    )
    assert len(ran.err.splitlines()) == 1


@pytest.mark.usefixtures("warm")
def test_a_module_that_cannot_be_imported(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text("import no_such_module_at_all\n\nclass DigitsTrial(object): ...\n")
    config = tmp_path / "const.yaml"
    config.write_text(Path(_CONFIG).read_text())
    ran = cli("plan", str(config))
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "error: cannot import model_def: ModuleNotFoundError: No module named 'no_such_module_at_all'; run the command "
        "in the trial's environment\n"
    )


@pytest.mark.usefixtures("warm")
def test_code_that_ends_the_process(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text("import os\n\nclass DigitsTrial(object): ...\n\nos._exit(5)\n")
    config = tmp_path / "const.yaml"
    config.write_text(Path(_CONFIG).read_text())
    ran = cli("plan", str(config))
    assert ran.status == 1
    assert ran.err == "error: the trial's code ended the process with code 5: it printed nothing\n"
