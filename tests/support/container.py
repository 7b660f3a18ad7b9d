"""Containers for tests: an image that is almost empty, in which the machine's own programs and Python are mounted.

Containers need root and podman with runc; `find_container_command` returns why they cannot run here.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

IMAGE = "localhost/gangline-test:empty"
# runc works with control groups of both versions.
COMMAND = ("podman", "--runtime", "runc")
# Without the right to raise limits, podman's defaults cannot be set.
OPTIONS = ("--ulimit", "nofile=1024:20000", "--ulimit", "nproc=1000:1000")
_FOLDERS = ("bin", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sys", "tmp", "usr", "var/tmp")
_USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"


@cache
def why_no_containers() -> str:
    """Returns why this machine runs no containers; empty if it does."""
    if os.geteuid() != 0:
        return "only root runs these containers"
    missing = [name for name in (COMMAND[0], COMMAND[2]) if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]}"
    try:
        _import_image()
    except (OSError, subprocess.SubprocessError) as error:
        return f"podman runs no container here: {error}"
    tried = subprocess.run(
        [*COMMAND, "run", "--rm", "--network", "host", *OPTIONS, *mounts(), IMAGE, "/bin/true"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return "" if tried.returncode == 0 else f"podman runs no container here: {tried.stderr.strip()}"


def mounts() -> list[str]:
    """Returns podman's arguments that put the machine's programs, and the Python of the tests, into the image."""
    folders = [Path(name) for name in ("/usr", "/bin", "/lib", "/lib64")]
    python = {Path(sys.prefix), Path(sys.base_prefix)} - {Path("/usr")}
    return [f"--volume={path}:{path}:ro" for path in (*folders, *sorted(python)) if path.exists()]


def python_in_image() -> str:
    """The Python of the tests, which has torch."""
    return str(Path(sys.executable))


def containers(name: str) -> list[str]:
    """Returns the name if there is such a container, running or ended."""
    command = [*COMMAND, "ps", "--all", "--format", "{{.Names}}", "--filter", f"name=^{name}$"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()


def _import_image() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(folder)
        users = tarfile.TarInfo("etc/passwd")
        users.size = len(_USERS)
        tar.addfile(users, io.BytesIO(_USERS.encode()))
    subprocess.run([*COMMAND, "import", "--quiet", "-", IMAGE], input=packed.getvalue(), timeout=60, check=True)
