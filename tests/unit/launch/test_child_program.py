"""A process that another program replaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_error_of_a_program_is_its_own(tmp_path: Path) -> None:
    """A folder earlier in PATH has a file of the same name that cannot be run."""
    (tmp_path / "true").touch(mode=0o644)
    code = "from gangline.launch import child; child.become(['true', 'x' * (128 << 10)])"
    environment = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (127, "error: entrypoint 'true' cannot be run: Argument list too long\n")
