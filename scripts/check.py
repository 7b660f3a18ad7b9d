"""Runs all checks that need no running services: format, lint, types, layers, protos, size, the generated pages, and
the page for browsers.

Each check is a list of commands. Checks run two at a time, and only a failing one shows its output. Called by `make
check`; names of checks as arguments run only those.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
SHELL_SCRIPTS = [
    ".ci/run",
    "scripts/setup",
    "scripts/test",
    "scripts/install_debian_packages",
    "scripts/generate_protos",
]

# The slowest first, so that the others run beside it.
CHECKS: dict[str, list[list[str]]] = {
    "types": [["mypy"]],
    "page": [["python", "scripts/check_page.py"]],
    "stubs": [["python", "scripts/check_stubs.py"]],
    "format": [["ruff", "format", "--check", "--diff", "--quiet", "."]],
    "lint": [["ruff", "check", "."], ["bash", "-n", *SHELL_SCRIPTS]],
    "layers": [["lint-imports", "--no-logo"], ["pytest", "-q", "tests/unit/test_layers.py"]],
    "size": [["pytest", "-q", "tests/unit/test_size.py", "tests/unit/test_fields.py"]],
    "pages": [
        ["python", "scripts/folder_table.py", "--check"],
        ["python", "-m", "scripts.method_table", "--check"],
    ],
    "protos": [["buf", "lint"], ["buf", "breaking", "--against", "protos/released.binpb"]],
}


@dataclass(frozen=True, slots=True)
class Result:
    """Holds the result of a check."""

    name: str
    seconds: float
    output: str  # output of failing commands alone


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"check: there is no {', '.join(unknown)}; there are {', '.join(CHECKS)}")
        return 2
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(_report, names or CHECKS))
    failed = [result.name for result in results if result.output]
    print(f"check: {', '.join(failed)} failed" if failed else f"check: all {len(results)} passed")
    return 1 if failed else 0


def _report(name: str) -> Result:
    result = _run(name)
    print(f"{'FAILED' if result.output else 'ok':7}{result.name:8}{result.seconds:6.1f} s", flush=True)
    if result.output:
        print(result.output, flush=True)
    return result


def _run(name: str) -> Result:
    began_at = time.monotonic()
    output = "".join(_output_of_failure(command) for command in CHECKS[name])
    return Result(name, time.monotonic() - began_at, output)


def _output_of_failure(command: list[str]) -> str:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return f"$ {' '.join(command)}  (exit code {done.returncode})\n{done.stdout}{done.stderr}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
