"""Writes constraints.txt: the exact version of every package in the environment that runs it.

Called by `make constraints`, after a dependency was added or raised by hand in .venv.
"""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

HEADER = """\
# What the tests and the demo run on: pip takes these versions whatever a dependency would allow, so that the release
# of a tool breaks nothing here. Written by `make constraints`.
# torch is pinned for one more reason: a bare "torch" may resolve to a build that brings several gigabytes of CUDA.
"""
# The project itself, and the tools that install it.
NOT_PINNED = {"gangline", "pip", "setuptools"}


def main() -> None:
    versions = {
        re.sub(r"[-_.]+", "-", distribution.name).lower(): distribution.version.partition("+")[0]
        for distribution in distributions()
    }
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items()) if name not in NOT_PINNED]
    (Path(__file__).parent.parent / "constraints.txt").write_text(HEADER + "".join(lines))


if __name__ == "__main__":
    main()
