"""Trials that are trained here leave checkpoints and TensorBoard files in the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """For parts of a model in this process, which has no process group."""
    monkeypatch.setattr("gangline.pytorch.parallel.staged.unit_division.dist.get_rank", lambda: 0)
