"""A Python with the packages of peers, on top of this one: peers use the same torch, and leave no trace here."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
# Time limit for pip.
INSTALL_SECONDS = 300.0


class PeersMissing(Exception):
    """Says why there are no peers to compare with here."""


@contextmanager
def peer_python(packages: Sequence[str]) -> Iterator[Path]:
    """Yields the interpreter of a virtual environment in a temporary folder. packages: as pip takes them, with
    versions.

    The environment sees the packages of this interpreter, so pip adds only what is missing, and torch stays the one of
    constraints.txt. Raises PeersMissing where pip cannot install the packages.
    """
    with tempfile.TemporaryDirectory(prefix="gl-peer-") as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = Path(folder, "bin", "python")
        ours, own = sysconfig.get_path("purelib"), sysconfig.get_path("purelib", vars={"base": folder})
        Path(own, "beside.pth").write_text(f"{ours}\n")
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "-c", str(CONSTRAINTS)]
        try:
            subprocess.run([*pip, *packages], check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise PeersMissing(f"pip was not done with {', '.join(packages)} in {INSTALL_SECONDS:g} s") from error
        except subprocess.CalledProcessError as error:
            error_lines = [line for line in error.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            raise PeersMissing(f"{', '.join(packages)}: {error_lines[-1]}") from error
        yield python
