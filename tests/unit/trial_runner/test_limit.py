"""The limit that a rank has hit is named in its failure, and no other failure is."""

from __future__ import annotations

import pytest

from gangline.domain.state import ExitKind
from services.trial_runner.gang.limit import Limits, name_limit
from services.trial_runner.gang.outcome import OutcomeContext, RankEnd, judge

LIMITS = Limits("a1", memory_mb=512, processes=64)
MEMORY = "the rank exceeded 512 MiB of memory, its limit on a1 (rank_memory_mb): "
PROCESSES = "; the limit of a rank on a1 is 64 processes and threads (rank_processes)"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ExitKind.OUT_OF_MEMORY, "MemoryError"),
        (ExitKind.OUT_OF_MEMORY, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        (ExitKind.OUT_OF_MEMORY, "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array"),
        (ExitKind.SIGNAL, "ended by SIGABRT: std::bad_alloc: std::bad_alloc"),
        (ExitKind.USER_ERROR, "OSError: [Errno 12] Cannot allocate memory"),
    ],
)
def test_a_shortage_of_memory_names_the_limit_and_is_final(kind: ExitKind, message: str) -> None:
    named = name_limit(kind, message, (), LIMITS, exceeded_memory=False)
    assert named == (ExitKind.OUT_OF_MEMORY, MEMORY + message)
    assert name_limit(kind, message, (), Limits("a1", processes=64), exceeded_memory=False) == (kind, message)


def test_a_kill_in_the_ranks_own_control_group_names_the_limit() -> None:
    end = RankEnd(0, signal=9, was_out_of_memory=True, exceeded_memory=True, ended_at=1.0)
    report = judge([end], OutcomeContext("a1", 1, 2.0, limits=LIMITS))
    assert report.kind is ExitKind.OUT_OF_MEMORY
    assert report.message == f"{MEMORY}killed by the kernel because memory ran out (SIGKILL)"


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ("RuntimeError: can't start new thread", ()),
        ("OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 8", ()),
        ("bash: fork: retry: Resource temporarily unavailable", ()),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", ("    self.pid = os.fork()",)),
    ],
)
def test_a_shortage_of_processes_names_the_limit(message: str, lines: tuple[str, ...]) -> None:
    named = name_limit(ExitKind.USER_ERROR, message, lines, LIMITS, exceeded_memory=False)
    assert named == (ExitKind.USER_ERROR, message + PROCESSES)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ExitKind.OUT_OF_MEMORY, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        (ExitKind.USER_ERROR, "RuntimeError: CUDA error: cannot allocate memory on the device"),
        (ExitKind.OUT_OF_MEMORY, "killed by the kernel because memory ran out (SIGKILL)"),
        (ExitKind.USER_ERROR, "BlockingIOError: [Errno 11] Resource temporarily unavailable"),
        (ExitKind.USER_ERROR, "ValueError: bad"),
        (ExitKind.HANG, "rank 0 waits; MemoryError"),
    ],
)
def test_other_failures_stay_as_they_are(kind: ExitKind, message: str) -> None:
    assert name_limit(kind, message, (), LIMITS, exceeded_memory=False) == (kind, message)
