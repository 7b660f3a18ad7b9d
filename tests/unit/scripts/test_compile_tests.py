"""Tests are compiled once, and pytest takes what was compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scripts.compile_tests import compile_test


def test_pytest_takes_what_was_compiled(tmp_path: Path) -> None:
    file = tmp_path / "test_sum.py"
    file.write_text("def test_sum():\n    assert 1 + 1 == 2\n")
    assert compile_test(file)
    assert not compile_test(file)
    # Nothing else could make pytest see another text than that of the file.
    [compiled] = (tmp_path / "__pycache__").iterdir()
    header = compiled.read_bytes()[:16]
    file.with_name("test_other.py").write_text("def test_sum():\n    assert 1 + 1 == 3\n")
    assert compile_test(file.with_name("test_other.py"))
    [other] = set((tmp_path / "__pycache__").iterdir()) - {compiled}
    compiled.write_bytes(header + other.read_bytes()[16:])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
        cwd=tmp_path, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 failed" in done.stdout, done.stdout
    assert "assert (1 + 1) == 3" in done.stdout


def test_a_file_that_is_no_python_is_left_to_pytest(tmp_path: Path) -> None:
    file = tmp_path / "test_broken.py"
    file.write_text("def test(:\n")
    assert not compile_test(file)
