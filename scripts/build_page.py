"""Builds the page into the gateway's package, at once where nothing changed. Called by `make setup`.

Node comes from its wheel, the packages from npm's registry. Where that cannot be reached, one line says so and the rest
of the setup goes on: the gateway then serves a document that names the command. `--require` makes it an error.
"""

from __future__ import annotations

import gzip
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts.page_tools import MODULES, PAGE, STATIC, hash_files, install_packages, run_tool

_STAMP = MODULES / ".build-stamp"
# Bytes, gzipped, of the script and the style sheet that a browser loads before it shows anything.
MAX_FIRST_BYTES = 60_000
_INPUTS = ("index.html", "vite.config.ts", "package.json", "package-lock.json")


def main(arguments: list[str]) -> int:
    wanted = hash_files([*(PAGE / name for name in _INPUTS), *_sources()])
    if (STATIC / "index.html").exists() and _STAMP.exists() and _STAMP.read_text() == wanted:
        return 0
    problem = install_packages()
    if problem:
        return _miss(problem, is_required="--require" in arguments)
    done = run_tool("vite", "build", "--logLevel", "warn")
    if done.returncode:
        print(f"page: the build failed:\n{done.stdout}{done.stderr}")
        return 1
    sizes = {path.name: _pack(path) for path in sorted((STATIC / "assets").iterdir())}
    document = (STATIC / "index.html").read_text()
    first = sum(size for name, size in sizes.items() if name in document)
    print(f"page: {first} bytes gzipped before the first paint, {sum(sizes.values())} in all {len(sizes)} files")
    if first > MAX_FIRST_BYTES:
        print(f"page: that is more than {MAX_FIRST_BYTES}; load what the first view does not need later")
        shutil.rmtree(STATIC)
        return 1
    _STAMP.write_text(wanted)
    return 0


def _miss(problem: str, *, is_required: bool) -> int:
    """Says in one line that the packages cannot be installed, and what follows. Returns the exit status."""
    if is_required:
        end = "and the wheel must contain it; no wheel is built"
    elif (STATIC / "index.html").exists():
        end = "so it stays as it was built before"
    else:
        end = "so setup went on without it; the gateway serves the API, and says at its address how to build the page"
    print(f"page: cannot install the packages that build it ({problem}), {end}")
    return 1 if is_required else 0


def _sources() -> list[Path]:
    return [path for path in (PAGE / "src").rglob("*") if path.is_file() and not path.name.endswith(".d.ts")]


def _pack(path: Path) -> int:
    """Writes the file's gzipped form beside it where that is shorter. Returns the bytes that a browser gets."""
    body = path.read_bytes()
    packed = gzip.compress(body, 9, mtime=0)
    if len(packed) < len(body):
        path.with_name(path.name + ".gz").write_bytes(packed)
    return min(len(packed), len(body))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
