"""The Core API's context: what its end says about settings that a script does not use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline import core, pytorch
from gangline.cluster_info import ClusterInfo, TrialInfo
from gangline.core import DistributedContext, context

_LINE = "parallelism has no effect: this script does not train with gangline.pytorch"


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_uses_parallelism", False)


def _enter(section: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts this process into a trial with this section in its configuration."""
    trial = TrialInfo("7.1", 7, 1, {"global_batch_size": 4}, {"parallelism": section})
    info = ClusterInfo("c", "7.1.1", 1, "a1", 0, 1, ["a1/0"], str(folder), str(folder), trial)
    for key, value in info.to_environment().items():
        monkeypatch.setenv(key, value)


@pytest.mark.parametrize(
    ("section", "num_lines"),
    [
        ("zero3", 1),
        ({"strategy": "auto", "stages": None}, 1),
        ({"strategy": "ddp", "activation_checkpointing": "full"}, 1),
        (None, 0),
        ("ddp", 0),
        ({"strategy": "ddp", "stages": None}, 0),
        ({"strategy": "none"}, 0),
    ],
)
def test_a_section_that_a_core_script_does_not_use_is_named_once(
    section: Any, num_lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _enter(section, tmp_path, monkeypatch)
    with core.init():
        pass
    assert caplog.messages.count(_LINE) == num_lines


def test_a_context_that_is_closed_inside_of_its_block_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _enter("zero3", tmp_path, monkeypatch)
    with core.init() as own:
        own.close()
    assert caplog.messages.count(_LINE) == 1


def test_only_the_chief_of_a_trial_without_an_error_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with core.init():
        pass
    _enter("zero3", tmp_path, monkeypatch)
    with pytest.raises(KeyError), core.init():
        raise KeyError
    other = DistributedContext()
    other.rank = 1
    core.init(distributed=other).close()
    assert _LINE not in caplog.messages


def test_a_script_that_trains_with_the_library_is_not_warned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _enter("zero3", tmp_path, monkeypatch)
    caplog.set_level("INFO", "gangline")
    with core.init(), pytorch.init():
        pass
    assert "parallelism: zero3 has nothing to divide on one slot" in caplog.messages
    assert _LINE not in caplog.messages
