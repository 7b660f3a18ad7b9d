"""PURE: what an NVIDIA XID code says about the GPU that reported it.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), by the immediate action
that it names for each code. RESTART_APP and IGNORE mean that the GPU stays usable. RESET_GPU, RESTART_BM and the
workflows for 48 and 74 mean that it does not. A code that is in none of these tables is unknown, and takes no GPU out
of use by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

RESET = "reset the GPU with nvidia-smi --gpu-reset, or reboot the host"
REBOOT = "reboot the host"
REPLACE = "reset the GPU, and have it replaced when this comes again"


class XidKind(StrEnum):
    """The party that an XID blames. CONTAINED: the hardware failed and handled the error, so the GPU stays usable."""

    APPLICATION = "application"
    CONTAINED = "contained"
    HARDWARE = "hardware"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Xid:
    """One XID code with its meaning."""

    code: int
    kind: XidKind
    meaning: str
    remedy: str = ""  # what an operator should do; empty unless the hardware is at fault

    @property
    def is_memory(self) -> bool:
        """Whether the XID concerns the GPU's memory, where counters of errors and rows to remap can confirm it."""
        return self.code in _MEMORY

    @property
    def is_raised_by_contained(self) -> bool:
        """Whether the driver also raises the XID with a contained error. Then it adds nothing to that one."""
        return self.code in _RAISED_BY_CONTAINED

    def __str__(self) -> str:
        return f"XID {self.code} ({self.meaning})"


DOUBLE_BIT_ERROR = 48
CONTAINED_ERROR = 94

# 94: the application must restart. The GPU stays usable, and needs a reset when convenient.
_CONTAINED: Mapping[int, str] = {
    63: "rows of its memory will be remapped at the next reset",
    92: "many single-bit memory errors, all corrected",
    93: "the wear limit of its InfoROM is reached",
    CONTAINED_ERROR: "contained memory error",
    121: "corrected errors on the link to the CPU",
    154: "the driver recommends something else than before",
    157: "no spare resource is left to retire a bad one",
    160: "a channel was retired",
    161: "a channel could not be retired",
}

_HARDWARE: Mapping[int, tuple[str, str]] = {
    46: ("the GPU stopped processing", RESET),
    DOUBLE_BIT_ERROR: ("double-bit memory error", RESET),
    54: ("auxiliary power is not connected", "connect the GPU's power, and reboot the host"),
    62: ("its micro-controller halted", RESET),
    64: ("rows of its memory could not be remapped", REPLACE),
    74: ("NVLink error", f"look at its links with nvidia-smi nvlink -e, then {RESET}"),
    79: ("it has fallen off the bus", REBOOT),
    95: ("uncontained memory error", RESET),
    110: ("security fault", "power the host off and on"),
    119: ("its system processor does not answer", RESET),
    120: ("error of its system processor", RESET),
    136: ("NVLink training failed", RESET),
    140: ("unrecovered memory error", RESET),
    143: ("its initialization failed", RESET),
    149: ("an NVLink is down", f"look at its links with nvidia-smi nvlink -e, then {RESET}"),
    156: ("a faulty part of it is to be retired", RESET),
    158: ("it timed out for good", RESET),
    171: ("uncorrectable error in its DRAM", RESET),
    172: ("uncorrectable error in its SRAM", RESET),
}

# 109 (a context switch timed out) is here although the catalog would reset the GPU. Load alone raises it repeatedly. A
# GPU that really hangs raises 119, 120 or 158 as well, or fails its next check.
_APPLICATION = frozenset(
    {8, 11, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 60, 66, 67, 68, 69, 70, 71, 72, 75, 76, 77, 80}
    | {82, 83, 84, 85, 86, 88, 89, *range(96, 106), 106, 107, 109, *range(126, 136), 137, 139, 141}
)

_MEMORY = frozenset({DOUBLE_BIT_ERROR, 64, 95, 140, 171, 172})
_RAISED_BY_CONTAINED = frozenset({DOUBLE_BIT_ERROR, 171, 172})


def classify(code: int) -> Xid:
    """Returns the entry of the tables for a code of the driver, which may be any number."""
    if code in _HARDWARE:
        meaning, remedy = _HARDWARE[code]
        return Xid(code, XidKind.HARDWARE, meaning, remedy)
    if code in _CONTAINED:
        return Xid(code, XidKind.CONTAINED, _CONTAINED[code])
    if code in _APPLICATION:
        return Xid(code, XidKind.APPLICATION, "caused by the program that ran")
    return Xid(code, XidKind.UNKNOWN, "not in NVIDIA's catalog of faults", RESET)
