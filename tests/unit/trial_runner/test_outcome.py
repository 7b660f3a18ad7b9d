"""The first real error is the cause; what only noticed that another had gone is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline.domain.state import ExitKind
from services.trial_runner.gang.limit import Limits
from services.trial_runner.gang.outcome import (
    FailureRecord,
    OutcomeContext,
    RankEnd,
    Stop,
    first_cause,
    judge,
)

GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3107"
NCCL = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
EXITED = "the code called sys.exit(1)"
TRACEBACK = ("Traceback (most recent call last):", '  File "x.py", line 3, in <module>', "    work()")
STORE = "torch.distributed.DistNetworkError: failed to recv, got 0 bytes"


def context(**changes: Any) -> OutcomeContext:
    return OutcomeContext(**{"agent_id": "a1", "num_nodes": 2, "now": 100.0, **changes})


def raised(rank: int, message: str, at: float, **changes: Any) -> RankEnd:
    kind = None if message == EXITED else ExitKind.USER_ERROR
    failure = FailureRecord(changes.pop("kind", kind), message, rank, failed_at=at)
    return RankEnd(rank, exit_code=1, ended_at=at + 0.1, failure=failure, **changes)


def test_all_finished_is_completed() -> None:
    report = judge([RankEnd(0, exit_code=0), RankEnd(1, exit_code=0)], context())
    assert (report.kind, report.message, report.ended_at) == (ExitKind.COMPLETED, "", 100.0)


@pytest.mark.parametrize("ended", [{"signal": 9, "was_killed": True}, {"signal": 11}, {"exit_code": 1}])
def test_what_happens_after_finishing_changes_nothing(ended: dict[str, Any]) -> None:
    ends = [RankEnd(0, is_finished=True, **ended), RankEnd(1, exit_code=0)]
    assert judge(ends, context()).kind is ExitKind.COMPLETED


@pytest.mark.parametrize("consequence", [GLOO, NCCL, STORE])
def test_the_real_error_wins_over_an_earlier_consequence(consequence: str) -> None:
    ends = [raised(0, consequence, 10.0), raised(1, "ValueError: bad batch", 10.2, last_lines=("x", "y"))]
    report = judge(ends, context())
    assert (report.kind, report.rank, report.failed_at) == (ExitKind.USER_ERROR, 1, 10.2)
    assert report.message == "ValueError: bad batch"
    assert report.last_lines == ("x", "y")
    assert report.exit_code == 1


def test_a_wait_for_others_that_ended_wins_over_an_earlier_loss_of_them() -> None:
    waited = "RuntimeError: [/pytorch/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv"
    assert judge([raised(0, GLOO, 10.0), raised(1, waited, 10.2)], context(num_nodes=1)).message == waited
    lost, ended = FailureRecord(None, GLOO, 0, "a1", 10.0), FailureRecord(None, waited, 1, "a2", 10.2)
    assert first_cause(lost, ended) is ended
    assert first_cause(ended, lost) is ended


def test_the_first_of_two_real_errors_wins() -> None:
    ends = [raised(0, "KeyError: 'b'", 11.0), raised(1, "KeyError: 'a'", 10.0)]
    assert judge(ends, context()).message == "KeyError: 'a'"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("MemoryError", ExitKind.OUT_OF_MEMORY),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", ExitKind.OUT_OF_MEMORY),
        ("RuntimeError: CUDA error: CUDA out of memory", ExitKind.OUT_OF_MEMORY),
        ("torch.AcceleratorError: CUDA error: out of memory", ExitKind.OUT_OF_MEMORY),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            ExitKind.OUT_OF_MEMORY,
        ),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", ExitKind.OUT_OF_MEMORY),
        ("ModuleNotFoundError: No module named 'x'", ExitKind.IMPORT_ERROR),
        ("ImportError: cannot import name 'x'", ExitKind.IMPORT_ERROR),
        ("ConnectionRefusedError: [Errno 111] Connection refused", ExitKind.UNAVAILABLE),
        ("ValueError: MemoryError in the text", ExitKind.USER_ERROR),
    ],
)
def test_a_traceback_at_the_end_of_the_output_is_classified_by_its_exception(message: str, kind: ExitKind) -> None:
    printed = RankEnd(0, exit_code=1, ended_at=1.0, last_lines=(*TRACEBACK, message))
    report = judge([printed], context())
    assert (report.kind, report.exit_code) == (kind, 1)
    assert report.message == f"{message}; exited with code 1"


@pytest.mark.parametrize(
    "lines",
    [
        (*TRACEBACK, "MemoryError: shard 3 is too large", "skipped it"),
        ("MemoryError: shard 3 is too large, skipped",),
        ("MemoryError: shard 3 is too large", "step 1 fine", "ConnectionError: retried, fine"),
    ],
)
def test_a_line_of_output_is_quoted_and_decides_nothing(lines: tuple[str, ...]) -> None:
    limits = Limits("a1", memory_mb=64)
    report = judge([RankEnd(0, exit_code=7, ended_at=1.0, last_lines=lines)], context(limits=limits))
    assert (report.kind, report.exit_code) == (ExitKind.USER_ERROR, 7)
    assert report.message == f'exited with code 7; its last line was "{lines[-1]}"'


def test_lines_of_both_streams_are_quoted_because_their_order_is_not_certain() -> None:
    end = RankEnd(0, exit_code=7, ended_at=1.0, last_lines=("ValueError: odd, skipped",), stdout_line="step 2 fine")
    said = (
        'its last line on standard error was "ValueError: odd, skipped" and its last line on standard output was "step'
    )
    assert judge([end], context()).message == f'exited with code 7; {said} 2 fine"'


def test_a_traceback_before_later_output_on_the_other_stream_was_handled() -> None:
    end = RankEnd(0, exit_code=7, ended_at=1.0, last_lines=(*TRACEBACK, "MemoryError: odd"), stdout_line="step 9 fine")
    assert judge([end], context()).kind is ExitKind.OUT_OF_MEMORY
    report = judge([replace(end, is_stdout_later=True)], context())
    assert report.kind is ExitKind.USER_ERROR
    assert report.message.startswith("exited with code 7; its last line on standard error was")


FULL_DISK = "its state directory /state takes no writes (No space left on device); free space there"


def test_a_quoted_line_makes_no_consequence_of_a_failure_and_no_fault_of_the_disk() -> None:
    lines = ("mirror: connection closed by peer, using the other one", "step 3")
    own = RankEnd(0, exit_code=7, ended_at=10.0, last_lines=lines)
    report = judge([own], context(peer=PEER, find_disk_fault=lambda message: "full" * ("/state" in message)))
    assert (report.kind, report.rank) == (ExitKind.USER_ERROR, 0)
    full = "OSError: [Errno 28] No space left on device: '/state/x', elsewhere"
    end = RankEnd(0, exit_code=7, ended_at=10.0, last_lines=(full,))
    assert (
        judge([end], context(find_disk_fault=lambda message: "full" * ("/state" in message))).kind
        is ExitKind.USER_ERROR
    )
    checked = judge([end], context(find_disk_fault=lambda message: FULL_DISK * ("No space left on device" in message)))
    assert checked.kind is ExitKind.AGENT_DISK, "the disk itself was checked"
    assert checked.message.endswith(f"; {FULL_DISK}")


def test_a_message_of_several_lines_about_a_lost_peer_is_a_consequence() -> None:
    lines = (*TRACEBACK, f"[rank0]: {NCCL}, NCCL version 2.21", "ncclRemoteError: A call failed. Last error:")
    report = judge([RankEnd(0, exit_code=1, ended_at=10.0, last_lines=lines)], context(peer=PEER))
    assert report.kind is ExitKind.PEER_FAILED


def test_the_kind_that_a_rank_names_is_kept() -> None:
    end = raised(0, "GanglineError: no such strategy", 1.0, kind=ExitKind.CONFIGURATION_ERROR)
    assert judge([end], context()).kind is ExitKind.CONFIGURATION_ERROR


def test_what_a_child_of_the_rank_printed_says_more_than_an_exit_code() -> None:
    own = ("Traceback (most recent call last):", '  File "launch.py", line 3, in <module>', "SystemExit: 1")
    lines = (*TRACEBACK, "MemoryError: too big", *own)
    report = judge([raised(0, EXITED, 1.0, last_lines=lines)], context())
    assert (report.kind, report.message) == (ExitKind.OUT_OF_MEMORY, f"MemoryError: too big; {EXITED}")


@pytest.mark.parametrize(
    ("lines", "remark"),
    [
        (("MemoryError: image too large", "skipped it"), '; its last line was "skipped it"'),
        (("DeprecationWarning: bar",), '; its last line was "DeprecationWarning: bar"'),
        (("good bye", *TRACEBACK, "SystemExit: 1"), '; its last line was "good bye"'),
        ((*TRACEBACK, "SystemExit: 1"), ""),
    ],
)
def test_a_line_before_an_exit_is_quoted(lines: tuple[str, ...], remark: str) -> None:
    report = judge([raised(0, EXITED, 1.0, last_lines=lines)], context())
    assert (report.kind, report.message) == (ExitKind.USER_ERROR, EXITED + remark)


def test_what_a_worker_told_is_the_reason_of_an_exit_code_and_of_nothing_else() -> None:
    told = FailureRecord(ExitKind.CONFIGURATION_ERROR, "use less", 0, "a1", 0.5)
    for end in (
        raised(0, EXITED, 1.0, worker_failure=told, last_lines=("ValueError: x",)),
        RankEnd(0, exit_code=1, ended_at=1.0, worker_failure=told),
    ):
        report = judge([end], context())
        assert (report.kind, report.message, report.failed_at) == (ExitKind.CONFIGURATION_ERROR, "use less", 1.0)
    own = raised(0, "ValueError: mine", 1.0, kind=ExitKind.USER_ERROR, worker_failure=told)
    assert judge([own], context()).message == "ValueError: mine"
    assert judge([RankEnd(0, exit_code=0, worker_failure=told)], context()).kind is ExitKind.COMPLETED


def test_the_worker_that_failed_is_named_by_its_own_rank() -> None:
    """Of a script that runs once on its machine, whose process counts as rank 0."""
    told = FailureRecord(ExitKind.USER_ERROR, "ValueError: odd", 1, "a1", 0.5)
    report = judge([RankEnd(0, exit_code=1, ended_at=1.0, worker_failure=told)], context())
    assert (report.rank, report.message, report.exit_code) == (1, "ValueError: odd", 1)
    report = judge([raised(0, EXITED, 1.0, worker_failure=told)], context())
    assert (report.rank, report.message) == (1, "ValueError: odd")


def test_the_launcher_of_workers_is_not_the_cause() -> None:
    failed = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    lines = (*TRACEBACK, "ValueError: odd", *TRACEBACK, failed, "=====", "train.py FAILED", "=====")
    report = judge([RankEnd(0, exit_code=1, ended_at=1.0, last_lines=lines)], context())
    assert report.message == "ValueError: odd; exited with code 1"


@pytest.mark.parametrize("code", [137, 247])
def test_an_exit_code_may_pass_on_that_a_child_was_killed(code: int) -> None:
    told = "a process that it had started was ended by signal 9 (SIGKILL)"
    failure = FailureRecord(ExitKind.SIGNAL, told, 0, failed_at=1.0)
    for end in (RankEnd(0, exit_code=code, ended_at=1.0), RankEnd(0, exit_code=code, ended_at=1.0, failure=failure)):
        report = judge([end], context())
        assert (report.kind, report.message) == (ExitKind.SIGNAL, f"{told}; exited with code {code}")
        report = judge([replace(end, was_out_of_memory=True)], context())
        assert report.kind is ExitKind.OUT_OF_MEMORY
    slow = RankEnd(0, signal=9, was_killed=True, ended_at=2.0, failure=failure)
    assert judge([slow], context()).message == told, "its own words count though it was ended before it had ended"


HANG = FailureRecord(
    ExitKind.HANG, "hung: it has stood still", 1, "a1", failed_at=50.0, details="in wait\nin train_batch"
)


@pytest.mark.parametrize("stop", [None, Stop(ExitKind.KILLED, "its member ended first")])
def test_a_hang_is_the_cause_whatever_its_ranks_said_when_they_were_ended(stop: Stop | None) -> None:
    ends = [raised(0, "RuntimeError: interrupted", 51.0), RankEnd(1, signal=9, was_killed=True)]
    report = judge(ends, context(hang=HANG, stop=stop))
    assert (report.kind, report.rank, report.message) == (ExitKind.HANG, 1, HANG.message)
    assert (report.failed_at, report.last_lines) == (50.0, ("in wait", "in train_batch"))


def test_a_gang_that_finished_after_all_did_not_hang() -> None:
    ends = [RankEnd(0, is_finished=True), RankEnd(1, is_finished=True, signal=9, was_killed=True)]
    assert judge(ends, context(hang=HANG)).kind is ExitKind.COMPLETED


def test_a_signal_that_nobody_here_sent() -> None:
    report = judge([RankEnd(0, signal=11, ended_at=5.0), RankEnd(1, signal=9, was_killed=True)], context())
    assert (report.kind, report.rank, report.signal) == (ExitKind.SIGNAL, 0, 11)
    assert report.message == "ended by signal 11 (SIGSEGV)"


def test_a_kill_by_the_kernel_for_memory() -> None:
    report = judge([RankEnd(0, signal=9, ended_at=5.0, was_out_of_memory=True)], context())
    assert report.kind is ExitKind.OUT_OF_MEMORY


def test_an_exit_without_a_word_says_so() -> None:
    report = judge([RankEnd(0, exit_code=3, ended_at=5.0)], context())
    assert (report.kind, report.exit_code) == (ExitKind.USER_ERROR, 3)
    assert report.message == "exited with code 3 and said nothing"


PEER = FailureRecord(ExitKind.USER_ERROR, "ValueError: bad batch", 3, "a2", 9.0)


@pytest.mark.parametrize("own", [raised(0, GLOO, 10.0), RankEnd(0, signal=9, was_killed=True)])
def test_a_peer_that_failed_first_is_named(own: RankEnd) -> None:
    report = judge([own], context(peer=PEER))
    assert report.kind is ExitKind.PEER_FAILED
    assert report.message == "ended because rank 3 on a2 failed first: ValueError: bad batch"


def test_an_own_real_error_stays_beside_a_peers() -> None:
    assert judge([raised(0, "KeyError: 'a'", 10.0)], context(peer=PEER)).kind is ExitKind.USER_ERROR


def test_a_consequence_without_a_cause_is_the_networks_fault_between_machines() -> None:
    report = judge([raised(0, GLOO, 10.0)], context())
    assert report.kind is ExitKind.NETWORK
    assert report.message.endswith("no rank of any member reported an error of its own")


def test_a_consequence_without_a_cause_on_one_machine_is_what_it_says() -> None:
    report = judge([raised(0, GLOO, 10.0)], context(num_nodes=1))
    assert (report.kind, report.rank) == (ExitKind.USER_ERROR, 0)


def test_killed_on_request() -> None:
    report = judge([RankEnd(0, signal=9, was_killed=True)], context(stop=Stop(ExitKind.KILLED, "killed by ada")))
    assert (report.kind, report.message) == (ExitKind.KILLED, "killed by ada")


def test_an_error_of_its_own_is_told_although_the_gang_was_killed_meanwhile() -> None:
    """The innocent member reports first, and the scheduler then kills the one with the cause."""
    stop = Stop(ExitKind.KILLED, "its member ended first: agent a2: ended because rank 1 on a1 failed first")
    report = judge([RankEnd(0, signal=9, was_killed=True), raised(1, "RuntimeError: boom", 10.0)], context(stop=stop))
    assert (report.kind, report.rank, report.message) == (ExitKind.USER_ERROR, 1, "RuntimeError: boom")
    noticed = [RankEnd(0, signal=9, was_killed=True), raised(1, GLOO, 10.0)]
    assert judge(noticed, context(stop=stop)).kind is ExitKind.KILLED


def test_stopped_in_order() -> None:
    stop = Stop(ExitKind.PREEMPTED, "by 9.1")
    end = RankEnd(0, exit_code=0, is_finished=True, is_preempted=True)
    assert judge([end], context(stop=stop)).kind is ExitKind.PREEMPTED
    assert judge([RankEnd(0, exit_code=0, is_finished=True)], context(stop=stop)).kind is ExitKind.COMPLETED


def test_a_stop_that_was_not_obeyed_in_time() -> None:
    stop = Stop(ExitKind.PREEMPTED, "by 9.1", is_overdue=True)
    report = judge([RankEnd(0, signal=9, was_killed=True)], context(stop=stop))
    assert report.kind is ExitKind.PREEMPTED
    assert report.message.startswith("had not stopped in time and was killed")


def test_an_error_while_stopping_is_still_an_error() -> None:
    report = judge([raised(0, "OSError: disk full", 10.0)], context(stop=Stop(ExitKind.PREEMPTED, "by 9.1")))
    assert report.kind is ExitKind.USER_ERROR


def test_ranks_that_vanished() -> None:
    report = judge([RankEnd(0), RankEnd(1)], context(lost="the nursery died"))
    assert (report.kind, report.message) == (ExitKind.RUNNER_LOST, "the nursery died")


def test_a_message_is_bounded() -> None:
    assert len(judge([raised(0, "ValueError: " + "x" * 10_000, 1.0)], context()).message) == 2000


FIRST, LATER = FailureRecord(None, "ValueError: first", 0), FailureRecord(None, "ValueError: later", 1)
NOTICED, NOTICED_LATER = FailureRecord(None, GLOO, 2), FailureRecord(None, NCCL, 3)


@pytest.mark.parametrize(
    ("earlier", "told", "expected"),
    [
        (None, FIRST, FIRST),
        (FIRST, LATER, FIRST),
        (NOTICED, NOTICED_LATER, NOTICED),
        (NOTICED, FIRST, FIRST),
        (FIRST, NOTICED, FIRST),
    ],
)
def test_a_later_failure_replaces_the_first_only_where_that_was_a_consequence(
    earlier: FailureRecord | None, told: FailureRecord, expected: FailureRecord
) -> None:
    assert first_cause(earlier, told) is expected


ABORTED = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at /x/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received",
)


@pytest.mark.parametrize(
    ("lines", "number", "kind", "message"),
    [
        (ABORTED, 6, ExitKind.USER_ERROR, f"gloo::EnforceNotMet: {ABORTED[1].removeprefix('  what():  ')}"),
        (
            ("terminate called after throwing an instance of 'std::runtime_error'", "  what():  no such file"),
            6,
            ExitKind.SIGNAL,
            "ended by signal 6 (SIGABRT): std::runtime_error: no such file",
        ),
        (
            ("terminate called after throwing an instance of 'c10::Error'", "  what():  CUDA error: out of memory"),
            6,
            ExitKind.OUT_OF_MEMORY,
            "ended by signal 6 (SIGABRT): c10::Error: CUDA error: out of memory",
        ),
        (("  what():  nothing that ended it",), 6, ExitKind.SIGNAL, "ended by signal 6 (SIGABRT)"),
        (ABORTED, 11, ExitKind.SIGNAL, "ended by signal 11 (SIGSEGV)"),
    ],
)
def test_an_abort_says_what_the_runtime_of_cpp_printed(
    lines: tuple[str, ...], number: int, kind: ExitKind, message: str
) -> None:
    report = judge([RankEnd(1, signal=number, ended_at=10.0, uncaught_lines=lines), raised(0, GLOO, 9.0)], context())
    assert (report.kind, report.rank, report.message) == (kind, 1, message)


def test_the_code_of_an_error_is_that_of_the_cause() -> None:
    """Two ranks fail with different errors; the first one counts, and a worker's counts for the process above it."""
    refused = FailureRecord(ExitKind.CONFIGURATION_ERROR, "no pipeline", 1, failed_at=10.0, error_code="parallelism.x")
    first = RankEnd(1, exit_code=1, ended_at=10.1, failure=refused)
    later = raised(0, "ValueError: no", 10.2)
    assert judge([later, first], context()).error_code == "parallelism.x"
    earlier = raised(0, "ValueError: no", 9.0)
    assert judge([earlier, first], context()).error_code == ""
    passed_on = raised(0, EXITED, 10.2, worker_failure=refused)
    assert judge([passed_on], context()).error_code == "parallelism.x"
    on_disk = context(find_disk_fault=lambda message: FULL_DISK)
    assert judge([first], on_disk).error_code == ""


def unsaved(rank: int = 0) -> RankEnd:
    return raised(rank, "stopped without a checkpoint, because the storage is full", 10.0, kind=ExitKind.PREEMPTED)


@pytest.mark.parametrize("kind", [ExitKind.PREEMPTED, ExitKind.KILLED])
def test_a_stop_that_storage_takes_no_checkpoint_of_is_no_failure(kind: ExitKind) -> None:
    stop = Stop(kind, "ann pauses it")
    report = judge([unsaved()], context(stop=stop))
    assert report.kind is kind
    assert report.message.endswith("is full; it goes on from its latest checkpoint; asked to stop: ann pauses it")
    # Another member, whose ranks were ended because of this one.
    peer = FailureRecord(ExitKind.PREEMPTED, "stopped without a checkpoint", 0, "a2", 10.0)
    ended = judge([RankEnd(1, signal=9, was_killed=True)], context(stop=Stop(ExitKind.PREEMPTED, "pause"), peer=peer))
    assert ended.kind is ExitKind.PREEMPTED


def test_a_rank_that_stops_unasked_has_failed() -> None:
    assert judge([unsaved()], context()).kind is ExitKind.UNAVAILABLE
