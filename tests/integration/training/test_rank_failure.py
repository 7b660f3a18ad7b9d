"""How a rank ends when its code is wrong: exit code, the kind that decides about retries, one line, the traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline.domain.state import ExitKind
from gangline.protocol.wire import enum_member
from tests.support.rank import RunningTrial, Trial, run_trial
from tests.support.trial_source import LINEAR, linear_config


def _run(directory: Path, source: str, size: int = 1, **more: Any) -> tuple[RunningTrial, list[int | None]]:
    hparams = more.pop("hparams", {"global_batch_size": 8})
    config = linear_config({"batches": 3}, **more)
    return run_trial(directory, Trial({"model_def.py": source}, config, hparams, size))


def _failure(running: RunningTrial, rank: int = 0) -> tuple[ExitKind | None, str]:
    (failure,) = running.runner.of(rank, "failure")
    assert not running.runner.of(rank, "finished")
    return enum_member(ExitKind, failure.kind), failure.message


def _in_train_batch(statement: str) -> str:
    return LINEAR.replace(
        "        inputs, targets, indices = batch\n", f"        {statement}\n        inputs, targets, indices = batch\n"
    )


@pytest.mark.parametrize(
    ("statement", "kind", "message"),
    [
        ("raise ValueError('bad label 11')", ExitKind.USER_ERROR, "ValueError: bad label 11"),
        (
            "raise torch.OutOfMemoryError('CUDA out of memory')",
            ExitKind.OUT_OF_MEMORY,
            "OutOfMemoryError: CUDA out of memory",
        ),
        ("raise MemoryError", ExitKind.OUT_OF_MEMORY, "MemoryError"),
        (
            "raise RuntimeError('DefaultCPUAllocator: can\\'t allocate memory: you tried')",
            ExitKind.OUT_OF_MEMORY,
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried",
        ),
        ("import no_such_package", ExitKind.IMPORT_ERROR, "ModuleNotFoundError: No module named 'no_such_package'"),
        (
            "return [1, 2]",
            ExitKind.CONFIGURATION_ERROR,
            "train_batch returned a list; return a dictionary of metrics, or the loss as a tensor",
        ),
        (
            "return {'loss': torch.zeros(2)}",
            ExitKind.CONFIGURATION_ERROR,
            "train_batch: the metric 'loss' is a tensor of shape (2,), not one number",
        ),
        ("import sys; sys.exit(3)", None, "the code called sys.exit(3)"),
        (
            "import sys; sys.exit(-9)",
            ExitKind.SIGNAL,
            "a process that it had started was ended by signal 9 (SIGKILL)",
        ),
    ],
)
def test_exception_in_training_has_a_kind(tmp_path: Path, statement: str, kind: ExitKind | None, message: str) -> None:
    """But for an exit code: the runner looks at what was printed before it."""
    running, codes = _run(tmp_path, _in_train_batch(statement))
    assert codes == [247 if "exit(-9)" in statement else 3 if "exit" in statement else 1]
    assert _failure(running) == (kind, message)


def test_traceback_begins_in_the_code_of_the_user(tmp_path: Path) -> None:
    running, _ = _run(tmp_path, _in_train_batch("raise ValueError('bad label 11')"))
    text = running.output(0)
    first_frame = next(line for line in text.splitlines() if line.strip().startswith("File"))
    assert "model_def.py" in first_frame
    assert "in train_batch" in first_frame
    assert text.splitlines()[-1] == "ValueError: bad label 11"
    assert running.runner.of(0, "failure")[0].traceback in text


def test_failure_of_rank_1_is_told_by_rank_1(tmp_path: Path) -> None:
    running, codes = _run(
        tmp_path, _in_train_batch("if self.context.distributed.rank == 1: raise ValueError('mine')"), 2
    )
    assert codes == [1, 1]
    assert _failure(running, 1) == (ExitKind.USER_ERROR, "ValueError: mine")
    earliest = min((0, 1), key=lambda rank: running.runner.of(rank, "failure")[0].failed_at)
    assert earliest == 1


_HELD = """
import os, signal, threading
from gangline.core.storage_access.storage import CheckpointStore

GO_ON = threading.Event()
open_file = CheckpointStore.open_file


def open_later(store, storage_id, path):
    assert GO_ON.wait(60)
    return open_file(store, storage_id, path)


CheckpointStore.open_file = open_later
"""


def _fail_during_save(directory: Path, statements: str) -> RunningTrial:
    """Two ranks with a checkpoint every second batch, which storage takes from the third batch on. statements: what
    happens in that one, after `rank` is set."""
    source = _HELD + _in_train_batch(f"rank = self.context.distributed.rank\n        if batch_idx == 2: {statements}")
    config = {"min_checkpoint_period": {"batches": 2}, "searcher": {"name": "single", "max_length": {"batches": 9}}}
    running, codes = _run(directory, source, 2, **config)
    assert None not in codes
    return running


def test_save_under_way_becomes_a_checkpoint_though_training_fails(tmp_path: Path) -> None:
    running = _fail_during_save(tmp_path, "GO_ON.set(); assert rank == 0, 'label 11'")
    assert _failure(running, 1) == (ExitKind.USER_ERROR, "AssertionError: label 11")
    assert [saved.batches_completed for saved in running.checkpoints()] == [2]
    folders = [path.name for path in (tmp_path / "storage" / "checkpoints").iterdir()]
    assert folders == [running.latest_checkpoint().id]


def test_loss_that_is_no_number_names_the_checkpoint_that_there_is(tmp_path: Path) -> None:
    running = _fail_during_save(tmp_path, "GO_ON.set(); batch[1].fill_(float('nan') if rank else 0.0)")
    for rank in (0, 1):
        kind, message = _failure(running, rank)
        assert kind is ExitKind.NONFINITE_METRIC
        assert message.startswith("loss is nan at batch 3; the newest checkpoint is of batch 2. Lower")
    assert [saved.batches_completed for saved in running.checkpoints()] == [2]


def test_rank_does_not_wait_for_the_part_of_one_that_died(tmp_path: Path) -> None:
    running = _fail_during_save(tmp_path, "GO_ON.set() if rank == 0 else os.kill(os.getpid(), signal.SIGKILL)")
    assert running.runner.of(0, "failure")
    assert running.checkpoints() == []
    assert "still being written" not in running.output(0)
    assert "could not be written" in running.output(0)


def test_damaged_latest_checkpoint_is_told_as_that(tmp_path: Path) -> None:
    config = linear_config({"batches": 3})
    running, codes = run_trial(tmp_path / "first", Trial({"model_def.py": LINEAR}, config, {"global_batch_size": 8}))
    assert codes == [0]
    latest = running.latest_checkpoint()
    file = Path(latest.url) / "trainer.pth"
    file.write_bytes(file.read_bytes()[:-1])
    again = Trial({"model_def.py": LINEAR}, config, {"global_batch_size": 8}, 2, latest_checkpoint=latest)
    running, codes = run_trial(tmp_path / "second", again)
    assert codes == [1, 1]
    for rank in (0, 1):
        kind, message = _failure(running, rank)
        assert kind is ExitKind.CHECKPOINT_CORRUPT
        assert message.startswith(f"{file} differs from what was saved")


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        ("no_such:Trial", "entrypoint no_such:Trial: no module no_such in {code}, which holds model_def.py"),
        ("model_def:Absent", "entrypoint model_def:Absent: {code}/model_def.py defines no Absent"),
        (
            "model_def:Points",
            "entrypoint model_def:Points is the class Points, which is no trial; inherit from PyTorchTrial",
        ),
        ("python3 absent.py", "entrypoint: there is no file absent.py in {code}"),
    ],
)
def test_entrypoint_that_is_not_there(tmp_path: Path, entrypoint: str, message: str) -> None:
    running, codes = _run(tmp_path, LINEAR, entrypoint=entrypoint)
    assert codes == [1]
    expected = message.format(code=tmp_path / "code")
    assert _failure(running) == (ExitKind.CONFIGURATION_ERROR, expected)
    assert running.output(0).splitlines()[-1] == f"error: {expected}"


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (
            "import no_such_package",
            ExitKind.IMPORT_ERROR,
            "cannot import model_def: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        (
            "def (:",
            ExitKind.IMPORT_ERROR,
            "cannot import model_def: SyntaxError: invalid syntax (model_def.py, line 1)",
        ),
        ("1 / 0", ExitKind.USER_ERROR, "cannot import model_def: ZeroDivisionError: division by zero"),
    ],
)
def test_module_that_cannot_be_imported(tmp_path: Path, line: str, kind: ExitKind, message: str) -> None:
    running, codes = _run(tmp_path, line)
    assert codes == [1]
    assert _failure(running) == (kind, message)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"hparams": {"global_batch_size": 1}},
            "hyperparameters.global_batch_size: 1 is smaller than the 2 slots of resources.slots_per_trial; "
            "use at least 2, or fewer slots",
        ),
        ({"hparams": {}}, "there is no hyperparameter 'global_batch_size'; known are none"),
        (
            {"parallelism": "zero9"},
            "parallelism: there is no strategy 'zero9'; did you mean zero3 or zero2? this version has none, ddp, "
            "zero1, zero2, zero3, hsdp, pipeline, auto",
        ),
        (
            {"parallelism": {"strategy": "none"}},
            "parallelism: none trains on one slot, but the slots of this trial are 2; use ddp",
        ),
        (
            {"searcher": {"max_length": {"epochs": "two"}}},
            "searcher.max_length.epochs: expected a whole number of 0 or more, found 'two'",
        ),
    ],
)
def test_configuration_that_cannot_be_trained(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    running, codes = _run(tmp_path, LINEAR, 2, **more)
    assert codes == [1, 1]
    for rank in (0, 1):
        assert _failure(running, rank) == (ExitKind.CONFIGURATION_ERROR, message)


def test_dropped_remainder_is_warned_of_once(tmp_path: Path) -> None:
    running, codes = _run(tmp_path, LINEAR, 2, hparams={"global_batch_size": 9})
    assert codes == [0, 0]
    warning = "hyperparameters.global_batch_size: 9 is no multiple of 2 slots; training uses 8 (4 on each slot)"
    assert running.output(0).count(warning) == 1
    assert warning not in running.output(1)
