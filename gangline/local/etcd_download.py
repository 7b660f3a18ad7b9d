"""Fetches an etcd from the package source of this machine, without root, for `make setup` and `gangline up`.

Owns the pinned version and its checksums, and the place of the unpacked programs. The package comes through apt, with
apt's own sources and keys, but with lists and a cache of our own, so any account can do it and nothing is installed.
Where the source has the pinned version no more, its present one is taken, if that is a safe one; apt has then checked
its signature. As a program, `python -m gangline.local.etcd_download`, it does so where the machine has no safe etcd.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gangline.domain.etcd_version import is_safe, render_version
from gangline.errors import GanglineError
from gangline.local.etcd_program import (
    BINARY_VARIABLE,
    download_folders,
    find_etcd_programs,
    has_safe_etcd,
    list_etcd_programs,
    read_etcd_version,
)

# Debian 12's. 3.4.23 is safe by gangline.domain.etcd_version.
PINNED_VERSION = "3.4.23-4+b4"
_SERVER, _CLIENT = "etcd-server", "etcd-client"
PINNED_SHA256 = {
    (_SERVER, "amd64"): "3a9445d4560ad6de1c375756b2a17d97713df44cbd20a658c871fe108af7ef5d",
    (_CLIENT, "amd64"): "db3a484d5d924b50bf71f459ee544ecd7b11c25dc2f6becc0c50352d67299cc8",
    (_SERVER, "arm64"): "821e59be145fa42bd72b3e003d275640947c3d824b4c06b1ed2a01a631d555a1",
    (_CLIENT, "arm64"): "3f1bcd6d47e2c9eaa274c5bb2f7b2ebc090226dc10dde00e13e32d0b03d137d7",
}
# Programs that the packages contain. etcd's own are needed; a move of data to another version takes one of the others.
_PROGRAMS = ("etcd", "etcdctl", "etcdutl")
# Time limit for all of it. A machine without a network fails at once; one behind a silent firewall takes this long.
TOTAL_SECONDS = 60.0
_HOST_SECONDS = 10


class DownloadFailed(Exception):
    """No etcd could be fetched, for this reason."""


def provide_etcd(report: Callable[[str], None]) -> None:
    """Fetches an etcd where the machine has no safe one and the user has named none.

    report: gets a line before and after. Raises GanglineError `etcd.no_binary` where there is none at all afterwards.
    """
    if not has_safe_etcd(list_etcd_programs()):
        report("this machine has no safe etcd; fetching one from its packages, without installing it")
        try:
            report(download_etcd())
        except (DownloadFailed, OSError) as failure:
            report(f"fetched no etcd from this machine's packages: {failure}")
    find_etcd_programs()


def download_etcd() -> str:
    """Fetches and unpacks the programs into the first of the folders that may be written. Returns one line about it.

    Raises DownloadFailed and OSError, which leave nothing behind.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise DownloadFailed(f"this machine has no {program}")
    target = _writable(download_folders())
    with (
        (target.parent / ".etcd.lock").open("w") as lock,
        tempfile.TemporaryDirectory(prefix=".etcd-", dir=target.parent) as made,
    ):
        # Another `up` or `make setup` may do the same.
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = read_etcd_version(target / "etcd")
        if is_safe(found):
            return f"etcd {render_version(found)} is in {target}"
        source = _Apt(Path(made))
        version = source.fetch(_SERVER)
        # Only a move of data to another version of etcd needs it, and the wheel has one too.
        with suppress(DownloadFailed):
            source.fetch(_CLIENT, version)
        unpacked = source.unpack(Path(made) / "programs")
        found = read_etcd_version(unpacked / "etcd")
        if not is_safe(found):
            raise DownloadFailed(f"its {_SERVER} is {version}, which is not a safe version")
        shutil.rmtree(target, ignore_errors=True)
        unpacked.rename(target)
    return f"fetched etcd {render_version(found)} ({_SERVER} {version}) from this machine's packages into {target}"


def _writable(folders: tuple[Path, ...]) -> Path:
    refused = OSError("no folder")
    for folder in folders:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder.parent):
                return folder
        except OSError as failure:
            refused = failure
    raise DownloadFailed(f"cannot write into {' or '.join(str(folder.parent) for folder in folders)}: {refused}")


class _Apt:
    """apt with lists and a cache of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._deadline = time.monotonic() + TOTAL_SECONDS
        self._packages = folder / "packages"
        # Only what `fetch` has checked is unpacked.
        self._fetched: list[Path] = []
        for part in ("state/lists/partial", "cache/archives/partial", "packages"):
            (folder / part).mkdir(parents=True)
        (folder / "state" / "status").touch()
        self._architecture = self._run(["dpkg", "--print-architecture"]).strip()
        self._update_failure: DownloadFailed | None = None
        try:
            self._get("update")
        except DownloadFailed as failure:
            # Another source than the one with etcd may be the broken one.
            self._update_failure = failure

    def fetch(self, package: str, version: str = "") -> str:
        """Downloads a package: the given version, else the pinned one, else the source's present one. Returns its
        version."""
        if version:
            self._get("download", f"{package}={version}")
        else:
            try:
                self._get("download", f"{package}={PINNED_VERSION}")
            except DownloadFailed:
                self._fetch_present(package)
        file = next(self._packages.glob(f"{package}_*.deb"))
        found = self._run(["dpkg-deb", "--field", str(file), "Version"]).strip()
        pinned = PINNED_SHA256.get((package, self._architecture)) if found == PINNED_VERSION else None
        if pinned and hashlib.sha256(file.read_bytes()).hexdigest() != pinned:
            raise DownloadFailed(f"{package} {found} does not have the checksum that it should have")
        self._fetched.append(file)
        return found

    def _fetch_present(self, package: str) -> None:
        try:
            self._get("download", package)
        except DownloadFailed as failure:
            raise self._update_failure or failure from failure

    def unpack(self, target: Path) -> Path:
        """Returns a folder with the programs of the downloaded packages, and nothing else of them."""
        target.mkdir()
        for file in self._fetched:
            tree = self._folder / file.stem
            self._run(["dpkg-deb", "--extract", str(file), str(tree)])
            for name in _PROGRAMS:
                program = tree / "usr" / "bin" / name
                if program.is_file():
                    program.rename(target / name)
        return target

    def _get(self, *words: str) -> str:
        options = {
            "Dir::State": self._folder / "state",
            # What is installed does not matter, and apt would prefer it to an older one of the source.
            "Dir::State::status": self._folder / "state" / "status",
            "Dir::Cache": self._folder / "cache",
            # As root, apt would download as an account that may not write into our folder.
            "APT::Sandbox::User": "root",
            "Acquire::Retries": 1,
            "Acquire::http::Timeout": _HOST_SECONDS,
            "Acquire::https::Timeout": _HOST_SECONDS,
            "Acquire::Languages": "none",
        }
        flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return self._run(["apt-get", "-q", *flags, *words])

    def _run(self, command: list[str]) -> str:
        left = self._deadline - time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=self._packages, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=max(left, 0.0), env={**os.environ, "LC_ALL": "C"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DownloadFailed(f"{command[0]} took more than {TOTAL_SECONDS:g} s") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()
            raise DownloadFailed(lines[-1].removeprefix("E:").strip() if lines else f"{command[0]} failed")
        return done.stdout


def main() -> int:
    # A program that the user names for one command is none for the environment.
    os.environ.pop(BINARY_VARIABLE, None)
    try:
        provide_etcd(lambda line: print(f"setup: {line}", flush=True))
    except GanglineError as error:
        print(f"setup: {error.message}", flush=True)
        return 1
    for program in list_etcd_programs()[:1]:
        if program.warning:
            print(f"setup: {program.warning}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
