"""A real PostgreSQL for tests: a cluster of its own in a temporary folder, reached by a unix socket only.

PostgreSQL refuses to run as root, so root starts it as the user `postgres`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOCKET_PORT = 5432


def find_postgres() -> Path | None:
    """The folder of Debian's newest server binaries."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    return programs[-1].parent if programs else None


class Postgres:
    """url: of the database `postgres`, as its superuser."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self._folder = folder
        # Unix socket paths are short, pytest's folders are long and closed to other users.
        self._data = folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={folder}&port={SOCKET_PORT}"

    def start(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self._folder, "postgres")
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "--no-sync")
        self.launch()

    def launch(self) -> None:
        """Also after `stop`, on the same data."""
        options = f"-c listen_addresses= -c unix_socket_directories={self._folder} -p {SOCKET_PORT}"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-o", options, "-l", log, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        # The server keeps what it inherits: a pipe would never end.
        log = self._folder / f"{program}.log"
        with log.open("wb") as output:
            finished = subprocess.run(
                [*as_user, str(self._binaries / program), *arguments],
                stdout=output, stderr=output, cwd=self._folder, check=False,
            )  # fmt: skip
        assert finished.returncode == 0, log.read_text()
