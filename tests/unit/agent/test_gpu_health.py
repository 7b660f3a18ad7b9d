"""When a GPU is taken out of use and when it comes back, finding by finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.agent.devices.gpu_health import (
    REMAP_FAILED,
    REMAP_PENDING,
    GpuHealth,
    GpuReading,
    Policy,
    after_reading,
    after_xid,
)
from services.agent.devices.xid import REBOOT, REPLACE, RESET

POLICY = Policy(num_confirmations=2, num_good_checks=3, window_seconds=3600.0)
GOOD = GpuReading(num_uncorrected=0)
LOST = GpuReading(problem=f"NVML says of GPU 3: GPU is lost; {RESET}")


class Gpu:
    """A device under observation; every step is 15 s after the one before unless it says otherwise."""

    def __init__(self, health: GpuHealth | None = None) -> None:
        self.health = health or GpuHealth()
        self.now = 1000.0

    def xid(self, code: int, after: float = 15.0) -> Gpu:
        self.now += after
        self.health = after_xid(self.health, code, self.now, POLICY)
        return self

    def check(self, reading: GpuReading = GOOD, times: int = 1, after: float = 15.0) -> Gpu:
        for _ in range(times):
            self.now += after
            self.health = after_reading(self.health, reading, self.now, POLICY)
        return self

    @property
    def problem(self) -> str:
        return self.health.problem


def test_event_and_check_that_agrees() -> None:
    gpu = Gpu().check().xid(79)
    assert gpu.problem == ""
    gpu.check(LOST)
    assert gpu.problem == f"XID 79 (it has fallen off the bus), then NVML says of GPU 3: GPU is lost; {RESET}"


def test_check_that_agrees_before_the_event() -> None:
    assert Gpu().check(LOST).xid(79).problem == f"XID 79 (it has fallen off the bus); {REBOOT}"


def test_event_and_checks_that_disagree() -> None:
    assert Gpu().check().xid(79).check(GOOD, times=100).problem == ""


def test_one_bad_check_is_not_enough_and_two_in_a_row_are() -> None:
    gpu = Gpu().check(LOST).check().check(LOST).check()
    assert gpu.problem == ""
    assert gpu.check(LOST, times=2).problem == LOST.problem


def test_same_xid_again_within_the_window() -> None:
    gpu = Gpu().check().xid(119).check(times=3).xid(119)
    assert gpu.problem == f"XID 119 (its system processor does not answer), 2 times; {RESET}"


def test_same_xid_again_after_the_window() -> None:
    assert Gpu().xid(119).xid(119, after=3601).problem == ""


def test_burst_is_one_finding() -> None:
    gpu = Gpu().xid(62)
    for code in (62, 119, 74, 62):
        gpu.xid(code, after=2.0)
    assert gpu.problem == ""
    assert gpu.xid(158, after=2.0).problem != "", "that is no longer the burst"


@pytest.mark.parametrize("code", [13, 31, 43, 45, 94, 63, 154])
def test_faults_that_never_count(code: int) -> None:
    gpu = Gpu().check()
    for _ in range(10):
        gpu.xid(code).check()
    assert gpu.problem == ""
    assert gpu.check(LOST).problem == "", "nor do they confirm anything"


def test_unknown_xid_counts_with_a_check_only() -> None:
    gpu = Gpu().check().xid(500).check().xid(500).xid(501)
    assert gpu.problem == ""
    assert "then NVML says" in gpu.check(LOST).problem


def test_double_bit_error_confirmed_by_the_counter() -> None:
    gpu = Gpu().check().xid(48).check(GpuReading(num_uncorrected=2))
    assert gpu.problem == f"XID 48 (double-bit memory error), then 2 uncorrected memory errors; {RESET}"


def test_counter_that_rises_twice() -> None:
    """A GPU without events."""
    gpu = Gpu().check().check(GpuReading(num_uncorrected=1))
    assert gpu.problem == ""
    assert gpu.check(GpuReading(num_uncorrected=1), times=5).problem == "", "the same error is not a second one"
    assert (
        gpu.check(GpuReading(num_uncorrected=3)).problem
        == f"1 uncorrected memory error, then 2 uncorrected memory errors; {RESET}"
    )


def test_errors_from_before_the_agent_started_do_not_count() -> None:
    assert Gpu().check(GpuReading(num_uncorrected=9), times=5).problem == ""


def test_errors_beside_another_fault_are_one_finding() -> None:
    assert Gpu().check().check(replace(LOST, num_uncorrected=5)).problem == ""


def test_memory_fault_waits_for_the_reset() -> None:
    gpu = Gpu().check().xid(95).check(GpuReading(num_uncorrected=2))
    gpu.check(GpuReading(num_uncorrected=2), times=10)
    assert gpu.problem != ""
    gpu.check(GOOD, times=2)
    assert gpu.problem != ""
    assert gpu.check(GOOD).health == GpuHealth(num_uncorrected=0, checked_at=gpu.now)


def test_pending_remap_alone_is_no_fault() -> None:
    assert Gpu().check(GpuReading(num_uncorrected=0, is_remap_pending=True), times=10).problem == ""


def test_pending_remap_confirms_a_memory_fault() -> None:
    gpu = Gpu().check().xid(64).check(GpuReading(num_uncorrected=0, is_remap_pending=True))
    assert gpu.problem == f"XID 64 (rows of its memory could not be remapped), then {REMAP_PENDING}"
    assert gpu.check(GpuReading(num_uncorrected=0, is_remap_pending=True), times=10).problem != ""
    assert gpu.check(times=3).problem == ""


def test_pending_remap_does_not_confirm_another_fault() -> None:
    assert Gpu().check().xid(74).check(GpuReading(is_remap_pending=True)).problem == ""


def test_failed_remap() -> None:
    gpu = Gpu().check().check(GpuReading(has_remap_failed=True), times=2)
    assert gpu.problem == REMAP_FAILED
    assert REPLACE in gpu.problem


@pytest.mark.parametrize("codes", [(48, 63, 94, 45), (94, 48, 171), (63, 48, 172, 94)])
def test_contained_error_in_any_order(codes: tuple[int, ...]) -> None:
    """gpu-operator#1065: applications continue until an operator resets the GPU."""
    gpu = Gpu().check()
    for code in codes:
        gpu.xid(code, after=0.01)
    assert gpu.check(GpuReading(num_uncorrected=1, is_remap_pending=True), times=5).problem == ""
    gpu.xid(95).check(GpuReading(num_uncorrected=2, is_remap_pending=True))
    assert gpu.problem != "", "and what is not contained counts as ever"


def test_contained_error_after_a_check_that_was_too_early() -> None:
    gpu = Gpu().check().xid(48).check(GpuReading(num_uncorrected=1), after=0.01)
    assert gpu.problem != ""
    gpu.xid(94, after=0.01).check(GpuReading(num_uncorrected=1, is_remap_pending=True), times=3)
    assert gpu.problem == "", "it needs no reset to come back"


def test_good_checks_bring_it_back_in_a_row_only() -> None:
    gpu = Gpu().check(LOST, times=2).check(times=2).check(LOST).check(times=2)
    assert gpu.problem == LOST.problem
    assert gpu.check().problem == ""


def test_fault_while_it_recovers_starts_the_count_anew() -> None:
    gpu = Gpu().check(LOST, times=2).check(times=2).xid(79).check(times=2)
    assert gpu.problem != ""
    assert gpu.check().problem == ""


def test_application_does_not_delay_the_recovery() -> None:
    assert Gpu().check(LOST, times=2).check(times=2).xid(31).xid(94).xid(500).check().problem == ""


def test_problem_names_the_present_fault_and_keeps_its_cause() -> None:
    gpu = Gpu().check().xid(79).check(LOST).check(GpuReading(problem="NVML is not usable"))
    assert gpu.problem == "XID 79 (it has fallen off the bus), then NVML is not usable"


def test_problem_at_the_start() -> None:
    gpu = Gpu(GpuHealth(problem="GPU 5 has MIG enabled and no MIG device"))
    assert gpu.check(times=2).problem != ""
    assert gpu.check().problem == ""


def test_more_confirmations() -> None:
    health, policy = GpuHealth(), replace(POLICY, num_confirmations=3)
    for now in (0.0, 20.0):
        health = after_xid(health, 119, now, policy)
    assert health.problem == ""
    assert after_reading(health, LOST, 40.0, policy).problem != ""
