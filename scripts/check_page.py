"""Checks the page: types, lint and format, unit tests. Called by scripts/check.py as the check "page".

With `--write` it only writes the files as the formatter wants them.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts.page_tools import install_packages, run_tool, write_types

_TOOLS = {
    "types": ("typescript:tsc", "--noEmit"),
    "lint": ("@biomejs/biome", "check", "--colors=off", "."),
    "tests": ("vitest", "run", "--reporter=dot"),
}


def main(arguments: list[str]) -> int:
    problem = install_packages() or write_types()
    if problem:
        print(f"page: {problem}")
        return 1
    if "--write" in arguments:
        return run_tool("@biomejs/biome", "check", "--write", ".").returncode
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda tool: run_tool(*tool), _TOOLS.values()))
    for name, done in zip(_TOOLS, results, strict=True):
        if done.returncode:
            print(f"page: {name} failed:\n{done.stdout}{done.stderr}")
    return 1 if any(done.returncode for done in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
