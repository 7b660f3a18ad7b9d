"""Commands that workspaces and projects share: what they refuse before they ask the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gangline.cli.project import project, workspace
from gangline.errors import GanglineError


@pytest.mark.parametrize(
    ("app", "arguments", "message"),
    [
        (workspace.app, ["lab"], "workspace lab with its projects was not deleted"),
        (project.app, ["lab", "vision"], "project vision of workspace lab was not deleted"),
    ],
)
def test_a_deletion_names_what_it_deletes(app: typer.Typer, arguments: list[str], message: str) -> None:
    error = CliRunner().invoke(app, ["delete", *arguments]).exception
    assert isinstance(error, GanglineError)
    assert (error.code, error.message) == (
        "project.unconfirmed", f"{message}: there is no terminal to ask; add --yes",
    )  # fmt: skip


@pytest.mark.parametrize("command", ["create", "edit"])
def test_a_storage_comes_from_one_place(tmp_path: Path, command: str) -> None:
    file = tmp_path / "storage.yaml"
    file.write_text("save_trial_best: 2\n")
    storages = ["--checkpoint-storage-config", "{}", "--checkpoint-storage-config-file", str(file)]
    error = CliRunner().invoke(workspace.app, [command, "lab", *storages]).exception
    assert isinstance(error, GanglineError)
    assert error.code == "config.two_storages"
