"""The message about an exception that ended a rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gangline
from gangline.cluster_info import ENVIRONMENT_KEY, ClusterInfo, TrialInfo
from gangline.domain.failure import STAGE_NOTE
from gangline.domain.state import ExitKind
from gangline.errors import InvalidHP, invalid, unavailable
from gangline.launch.failure import describe, import_failure


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (invalid("x.y", "use less"), ExitKind.CONFIGURATION_ERROR, "use less"),
        (InvalidHP("too wide"), ExitKind.INVALID_HP, "too wide"),
        (unavailable("x.y", "disk full"), ExitKind.UNAVAILABLE, "disk full"),
        (unavailable("checkpoint.not_saved", "no checkpoint"), ExitKind.PREEMPTED, "no checkpoint"),
        (invalid("training.nonfinite_loss", "loss is nan"), ExitKind.NONFINITE_METRIC, "loss is nan"),
        (invalid("checkpoint.latest_corrupt", "c differs"), ExitKind.CHECKPOINT_CORRUPT, "c differs"),
        (invalid("checkpoint.corrupt", "another differs"), ExitKind.CONFIGURATION_ERROR, "another differs"),
        (ConnectionRefusedError("no"), ExitKind.UNAVAILABLE, "ConnectionRefusedError: no"),
        (KeyError("label"), ExitKind.USER_ERROR, "KeyError: 'label'"),
        (ValueError(), ExitKind.USER_ERROR, "ValueError"),
        (ValueError("first\nsecond"), ExitKind.USER_ERROR, "ValueError: first"),
        (torch.OutOfMemoryError("CUDA out of memory"), ExitKind.OUT_OF_MEMORY, "OutOfMemoryError: CUDA out of memory"),
        (RuntimeError("CUDA error: out of memory"), ExitKind.OUT_OF_MEMORY, "RuntimeError: CUDA error: out of memory"),
        (
            RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
            ExitKind.OUT_OF_MEMORY,
            "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        ),
        (
            torch.AcceleratorError("CUDA error: out of memory"),
            ExitKind.OUT_OF_MEMORY,
            "AcceleratorError: CUDA error: out of memory",
        ),
        (ImportError("no"), ExitKind.IMPORT_ERROR, "ImportError: no"),
        (KeyboardInterrupt(), ExitKind.USER_ERROR, "KeyboardInterrupt"),
    ],
)
def test_kind_and_message(error: BaseException, kind: ExitKind, message: str) -> None:
    failure = describe(error)
    assert (failure.kind, failure.message) == (kind, message)


@pytest.mark.parametrize(
    ("is_initialized", "free", "kind"),
    [
        (True, 30, ExitKind.OUT_OF_MEMORY),
        (True, 900, ExitKind.USER_ERROR),
        (False, 0, ExitKind.USER_ERROR),
    ],
)
def test_an_error_that_may_be_a_lack_of_memory_is_one_on_a_full_gpu(
    monkeypatch: pytest.MonkeyPatch, is_initialized: bool, free: int, kind: ExitKind
) -> None:
    """Of 6400 bytes 60 are kept by torch and not in use."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_initialized)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 6400))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 1060)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 1000)
    assert describe(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")).kind is kind


def test_error_of_ours_without_a_frame_of_the_user_is_one_line() -> None:
    assert describe(invalid("x.y", "use less")).traceback == "error: use less\n"


def test_syntax_error_at_import_is_not_retried() -> None:
    failure = import_failure(SyntaxError("invalid syntax"), "model_def")
    assert failure.kind is ExitKind.IMPORT_ERROR
    assert failure.message.startswith("cannot import model_def: SyntaxError")


def test_out_of_memory_at_import_stays_what_it_is() -> None:
    assert import_failure(MemoryError(), "model_def").kind is ExitKind.OUT_OF_MEMORY


def test_the_code_of_an_own_error_is_passed_on() -> None:
    assert describe(invalid("x.y", "use less")).error_code == "x.y"
    assert describe(ValueError("x.y")).error_code == ""


def _of_gangline(function: Callable[[], None]) -> None:
    """Calls a function from a frame of Gangline's own code."""
    filename = str(Path(gangline.__file__).parent / "called.py")
    exec(compile("function()", filename, "exec"), {"function": function})


def _break_in_stage(microbatches: int) -> None:
    if microbatches:
        _of_gangline(lambda: _break_in_stage(microbatches - 1))
        return
    try:
        torch.zeros(2).reshape(3)
    except RuntimeError as error:
        error.add_note(f"{STAGE_NOTE}stage 1 of 2 (a to b), rank 1, microbatch 3 of 4")
        raise


def test_the_traceback_of_a_stage_has_each_line_of_the_user_once() -> None:
    with pytest.raises(RuntimeError) as caught:
        _of_gangline(lambda: _break_in_stage(3))
    lines = describe(caught.value).traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert not any("called.py" in line for line in lines)
    assert sum("_break_in_stage(microbatches - 1)" in line for line in lines) == 1
    assert lines[-2].startswith("RuntimeError: shape '[3]' is invalid")
    assert "microbatch 3 of 4" in lines[-1]


def test_the_traceback_of_another_error_has_all_frames_from_the_user_on() -> None:
    with pytest.raises(KeyError) as caught:
        _of_gangline(lambda: _of_gangline(lambda: dict[str, None]()["label"]))
    assert "called.py" in describe(caught.value).traceback


def test_an_outside_condition_is_not_hidden_by_an_error_of_closing() -> None:
    """As where the user's code closes a file on the same full storage in a `finally`."""

    def close() -> None:
        raise OSError(28, "No space left on device")

    def train() -> None:
        try:
            raise unavailable("checkpoint.storage", "the storage is full")
        finally:
            close()

    with pytest.raises(OSError, match="No space") as caught:
        train()
    failure = describe(caught.value)
    assert (failure.kind, failure.error_code) == (ExitKind.UNAVAILABLE, "checkpoint.storage")
    assert failure.message == "the storage is full; then OSError: [Errno 28] No space left on device"
    assert "No space left on device" in failure.traceback


def test_an_error_that_the_code_raises_from_another_is_its_own() -> None:
    error = ValueError("bad batch")
    error.__cause__ = unavailable("checkpoint.storage", "the storage is full")
    assert describe(error).kind is ExitKind.USER_ERROR


@pytest.mark.parametrize(
    ("path", "number", "kind"),
    [
        ("storage/tensorboard/x", 28, ExitKind.UNAVAILABLE),
        ("storage/tensorboard/x", 13, ExitKind.USER_ERROR),
        ("own/x", 28, ExitKind.USER_ERROR),
    ],
)
def test_the_cluster_s_storage_is_the_cluster_s_matter(
    path: str, number: int, kind: ExitKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = TrialInfo("7.1", 7, 1, {}, {})
    info = ClusterInfo("c1", "7.1.1", 1, "a1", 0, 1, [], f"file://{tmp_path}/storage", "", trial)
    monkeypatch.setenv(ENVIRONMENT_KEY, info.to_json())
    assert describe(OSError(number, "no", str(tmp_path / path))).kind is kind
