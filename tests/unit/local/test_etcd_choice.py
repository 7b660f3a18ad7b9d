"""Which etcd a local cluster gets, by the programs that there are and the data that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.domain.etcd_version import Series, parse_version
from gangline.errors import GanglineError
from gangline.local.etcd_choice import UNKNOWN_SERIES, EtcdProgram, choose_etcd


def program(text: str, *, is_named: bool = False) -> EtcdProgram:
    return EtcdProgram(Path(f"/etcd-{text}"), parse_version(text), "PATH", is_named)


def chosen(programs: list[str], series: Series | None, named: str = "") -> tuple[str, str]:
    """The program that runs the cluster, and the one that runs the data before; as text."""
    first = [program(named, is_named=True)] if named else []
    choice = choose_etcd([*first, *map(program, programs)], series)
    return str(choice.program).removeprefix("etcd "), str(choice.former or "").removeprefix("etcd ")


@pytest.mark.parametrize(
    ("programs", "series", "expected"),
    [
        # Without data: the first safe one, else the newest.
        (["3.4.23", "3.5.1"], None, ("3.4.23", "")),
        (["3.5.1", "3.4.23"], None, ("3.4.23", "")),
        (["3.5.1"], None, ("3.5.1", "")),
        (["3.3.25", "3.5.1"], None, ("3.5.1", "")),
        # Data stay with a safe etcd of their series, wherever it is in the order.
        (["3.4.23", "3.5.16", "3.5.1"], (3, 5), ("3.5.16", "")),
        (["3.5.16", "3.4.23"], (3, 4), ("3.4.23", "")),
        # Data of an unsafe one are moved to a safe one.
        (["3.4.23", "3.5.1"], (3, 5), ("3.4.23", "3.5.1")),
        # etcd upgrades the data of the series before its own by itself.
        (["3.5.16"], (3, 4), ("3.5.16", "")),
        (["3.6.0", "3.4.23"], (3, 4), ("3.4.23", "")),
        # Nothing is gained by moving to another unsafe one.
        (["3.3.25", "3.5.1"], (3, 5), ("3.5.1", "")),
        # Data that do not tell what made them: the newest can open them.
        (["3.4.23", "3.5.1"], UNKNOWN_SERIES, ("3.5.1", "")),
    ],
)
def test_choice(programs: list[str], series: Series | None, expected: tuple[str, str]) -> None:
    assert chosen(programs, series) == expected


@pytest.mark.parametrize(
    ("named", "series", "expected"),
    [
        ("3.5.1", None, ("3.5.1", "")),
        ("3.5.1", (3, 4), ("3.5.1", "")),
        ("3.4.23", (3, 5), ("3.4.23", "3.5.1")),
        # A program that does not tell its version runs as it is.
        ("unknown", (3, 5), ("0.0.0", "")),
    ],
)
def test_named_program_is_taken(named: str, series: Series | None, expected: tuple[str, str]) -> None:
    assert chosen(["3.4.30", "3.5.1"], series, named) == expected


def test_data_that_no_program_can_open_are_refused_in_one_line() -> None:
    with pytest.raises(GanglineError) as caught:
        chosen(["3.4.23"], (3, 5))
    assert caught.value.code == "etcd.other_version"
    assert caught.value.message == (
        "the state was made by etcd 3.5, which this machine lacks (it has etcd 3.4.23); set GANGLINE_ETCD to an "
        "etcd 3.5, or give another --data-dir"
    )


def test_only_an_unsafe_version_has_a_warning() -> None:
    assert [program(text).warning for text in ("3.4.23", "3.5.6", "unknown")] == ["", "", ""]
    assert program("3.5.1").warning == (
        "etcd 3.5.1 (PATH) can lose acknowledged changes when it is killed or the power fails; install a newer one (on "
        "Debian: apt-get install etcd-server) or set GANGLINE_ETCD"
    )
    assert "can hold inconsistent state after a crash" in program("3.5.5").warning
