"""Opens etcd's data of a local cluster with the chosen program, and moves them over where it is of another series.

Owns the move: the former etcd runs alone until it has applied its whole log, its database is restored as a snapshot for
the chosen etcd, which then runs alone and must show the same revision and number of keys. Only then are the folders
exchanged, so a crash at any moment leaves either the former data or the moved ones. Revisions, and with them fencing
tokens, stay the same. The caller holds the lock of the data directory, and no service of the cluster runs.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gangline.domain.etcd_version import render_version
from gangline.local.etcd import tie
from gangline.local.etcd_choice import UNKNOWN_SERIES, EtcdProgram, choose_etcd
from gangline.local.etcd_data import read_data_series
from gangline.local.etcd_program import find_etcd_programs, find_restore_tools
from gangline.local.layout import Layout
from gangline.local.program import MARKER, etcd_member_flags, make_etcd_program
from gangline.local.service import UnixConnection, read_tail, readable

# Time limits for a member to apply its log and serve, to stop, and for a restore.
_SERVE_SECONDS = 90.0
_STOP_SECONDS = 30.0
_RESTORE_SECONDS = 600.0
_LOOK_SECONDS = 0.02
_REVISION = "etcd_debugging_mvcc_current_revision"
_KEYS = "etcd_debugging_mvcc_keys_total"
_NAMES = (f"{_REVISION} ", f"{_KEYS} ")


class MoveFailed(Exception):
    """The data could not be moved; they are as they were."""


@dataclass(frozen=True, slots=True)
class DataExtent:
    """How far a member's data go."""

    revision: int
    num_keys: int

    def __str__(self) -> str:
        return f"revision {self.revision}, {self.num_keys} keys"


def prepare_etcd(layout: Layout, report: Callable[[str], None]) -> EtcdProgram:
    """Returns the program that can open the data as they are now. report: gets one line where something is to say.

    Where a move fails, the data stay with the etcd that made them. Raises GanglineError `etcd.no_binary`,
    `etcd.other_version`.
    """
    _settle(layout)
    series = read_data_series(layout.etcd_data)
    choice = choose_etcd(find_etcd_programs(), series)
    program, former = choice.program, choice.former
    if former is not None:
        try:
            kept, extent = move_etcd_data(layout, former, program)
            report(f"the state was moved from {former} to {program} ({extent}); a copy of the former data is in {kept}")
        except (MoveFailed, OSError) as failure:
            report(f"the state stays with {former} ({former.origin}), because moving it to {program} failed: {failure}")
            program = former
    elif series is not None and series not in (UNKNOWN_SERIES, program.series):
        report(f"{program} upgrades the state of etcd {render_version(series)}")
    if program.warning:
        report(program.warning)
    return program


def move_etcd_data(layout: Layout, former: EtcdProgram, program: EtcdProgram) -> tuple[Path, DataExtent]:
    """Returns the folder that keeps the former data, and the extent of the moved ones. Raises MoveFailed and OSError,
    which leave the data as they were."""
    moved = _moved(layout)
    try:
        before = _run_alone(layout, former, layout.etcd_data)
        _restore(layout, program, moved)
        after = _run_alone(layout, program, moved)
        if after != before:
            raise MoveFailed(f"{program} has {after}, {former} has {before}")
    except BaseException:
        shutil.rmtree(moved, ignore_errors=True)
        raise
    kept = layout.root / f"etcd-{render_version(former.version)}"
    shutil.rmtree(kept, ignore_errors=True)
    layout.etcd_data.rename(kept)
    # `_settle` does this if the machine fails before it is done.
    moved.rename(layout.etcd_data)
    return kept, after


def _moved(layout: Layout) -> Path:
    return layout.root / "etcd.moved"


def _settle(layout: Layout) -> None:
    """Completes the exchange of folders that was cut off, or removes what a move has left that did not get there."""
    moved = _moved(layout)
    if not moved.exists():
        return
    if layout.etcd_data.exists():
        shutil.rmtree(moved)
    else:
        moved.rename(layout.etcd_data)


def _restore(layout: Layout, program: EtcdProgram, target: Path) -> None:
    """Makes new data out of the database of the member, which has stopped in order and so has committed all of it."""
    tools = find_restore_tools(program)
    if not tools:
        raise MoveFailed("found neither etcdctl nor etcdutl (on Debian: apt-get install etcd-client)")
    flags = [word for flag in etcd_member_flags(layout, target).items() for word in flag]
    database = str(layout.etcd_data / "member" / "snap" / "db")
    # A snapshot that was taken through the API has a hash at its end, which a member's own database lacks.
    arguments = ["snapshot", "restore", database, "--skip-hash-check", *flags]
    words = ""
    for tool in tools:
        shutil.rmtree(target, ignore_errors=True)
        try:
            done = subprocess.run(
                [tool, *arguments], env=_environment(layout) | {"ETCDCTL_API": "3"}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False, timeout=_RESTORE_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MoveFailed(f"{tool} did not restore the data within {_RESTORE_SECONDS:g} s") from None
        if done.returncode == 0 and (target / "member" / "snap" / "db").exists():
            return
        words = words or f"{tool} exited with {done.returncode}: {_last_line(done.stderr or done.stdout)}"
    raise MoveFailed(words)


def _run_alone(layout: Layout, program: EtcdProgram, data: Path) -> DataExtent:
    """Runs a member until it has applied its log and raised the data to its series, and stops it in order."""
    description = make_etcd_program(layout, program.path, data)
    for left in description.sockets:
        left.unlink(missing_ok=True)
    log_path = layout.log("etcd")
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            tie(description.arguments), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=layout.root,
            env=_environment(layout) | dict(description.environment), start_new_session=True, umask=description.umask,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _SERVE_SECONDS
        while (extent := _read_extent(layout.etcd_socket, program)) is None:
            if process.poll() is not None:
                words = readable(_last_line(read_tail(log_path)))
                raise MoveFailed(f"{program} exited with {process.returncode}: {words} (log: {log_path})")
            if time.monotonic() > deadline:
                raise MoveFailed(f"{program} does not serve after {_SERVE_SECONDS:g} s (log: {log_path})")
            time.sleep(_LOOK_SECONDS)
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise MoveFailed(f"{program} does not stop within {_STOP_SECONDS:g} s") from None
        return extent
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for left in description.sockets:
            left.unlink(missing_ok=True)


def _read_extent(socket: Path, program: EtcdProgram) -> DataExtent | None:
    """Returns None while the member does not serve, or has not yet set the series of its data."""
    try:
        if json.loads(_get(socket, "/health")).get("health") != "true":
            return None
        cluster_version = json.loads(_get(socket, "/version"))["etcdcluster"]
        if not cluster_version.startswith(f"{render_version(program.series)}."):
            return None
        numbers = dict(line.split() for line in _get(socket, "/metrics").splitlines() if line.startswith(_NAMES))
        return DataExtent(int(float(numbers[_REVISION])), int(float(numbers[_KEYS])))
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return None


def _get(socket: Path, path: str) -> str:
    connection = UnixConnection(socket)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _environment(layout: Layout) -> dict[str, str]:
    """etcd and its tools take every ETCD_* and ETCDCTL_* variable for a flag."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ETCD_", "ETCDCTL_"))}
    return kept | {MARKER: str(layout.root)}


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"
