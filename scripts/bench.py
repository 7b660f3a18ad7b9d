"""Runs the benchmarks one after another; each prints the machine, its figures and its peer's from the same run.

Names of benchmarks as arguments run only those. Called by `make bench`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main(names: list[str]) -> int:
    available = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text())
    unknown = [name for name in names if name not in available]
    if unknown:
        print(f"bench: there is no {', '.join(unknown)}; there are {', '.join(available)}")
        return 2
    failed = []
    for name in names or available:
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=ROOT, check=False)
        failed += [name] if done.returncode else []
    if failed:
        print(f"bench: failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
