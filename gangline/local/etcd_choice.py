"""PURE: chooses the etcd program of a local cluster by what the machine has and by what made the data.

Owns the order of preference, and the rule that data stay with the series of etcd that made them or are moved to the
chosen one. It neither looks for programs nor moves data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.domain.etcd_version import UNKNOWN, Series, Version, describe_weakness, is_safe, render_version
from gangline.errors import conflict

ADVICE = "install a newer one (on Debian: apt-get install etcd-server) or set GANGLINE_ETCD"
# The series of data that do not tell which etcd made them.
UNKNOWN_SERIES: Series = (0, 0)


@dataclass(frozen=True, slots=True)
class EtcdProgram:
    """A program that was found."""

    path: Path
    version: Version
    origin: str  # where it was found, for messages
    is_named: bool = False  # whether the user has chosen it with $GANGLINE_ETCD

    @property
    def series(self) -> Series:
        return self.version[:2]

    def __str__(self) -> str:
        return f"etcd {render_version(self.version)}"

    @property
    def warning(self) -> str:
        """One line for a version that is not safe; empty for a safe one."""
        weakness = describe_weakness(self.version)
        return f"{self} ({self.origin}) {weakness}; {ADVICE}" if weakness else ""


@dataclass(frozen=True, slots=True)
class EtcdChoice:
    """The etcd of a local cluster."""

    program: EtcdProgram  # program that runs the cluster
    former: EtcdProgram | None = None  # set if the data must be moved; it runs the data until then


def choose_etcd(programs: Sequence[EtcdProgram], data_series: Series | None) -> EtcdChoice:
    """Chooses among programs, the preferred one first; at least one.

    data_series: of the data; None without data. Raises GanglineError `etcd.other_version` where no program can open
    the data.
    """
    target = _prefer(programs, data_series)
    if data_series is None or UNKNOWN in (target.version, (*data_series, 0)) or _opens(target, data_series):
        return EtcdChoice(target)
    former = next((program for program in programs if program.series == data_series), None)
    if former is None:
        series, found = render_version(data_series), ", ".join(str(program) for program in programs)
        raise conflict(
            "etcd.other_version",
            f"the state was made by etcd {series}, which this machine lacks (it has {found}); set GANGLINE_ETCD to an "
            f"etcd {series}, or give another --data-dir",
        )
    return EtcdChoice(target, former)


def _prefer(programs: Sequence[EtcdProgram], data_series: Series | None) -> EtcdProgram:
    if programs[0].is_named:
        return programs[0]
    if data_series == UNKNOWN_SERIES:
        # A newer etcd opens the data of an older one, but not the other way round.
        return max(programs, key=lambda program: program.version)
    safe = [program for program in programs if is_safe(program.version)]
    if not safe:
        # All of them have their weakness, so nothing is gained by moving data.
        safe = sorted(programs, key=lambda program: program.version, reverse=True)
    return next((program for program in safe if program.series == data_series), safe[0])


def _opens(program: EtcdProgram, series: Series) -> bool:
    """Returns whether it opens data of a series as they are: those of its own, and of the one before as an upgrade."""
    major, minor = program.series
    return series in ((major, minor), (major, minor - 1))
