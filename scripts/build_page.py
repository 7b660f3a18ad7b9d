"""Builds the page into the gateway's package, at once where nothing changed. Called by `make setup`.

Node comes from its wheel, the packages from npm's registry. Where that cannot be reached, one line says so and the rest
of the setup goes on: the gateway then serves a document that names the command. `--require` makes it an error.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from scripts.page_tools import MODULES, PAGE, STATIC, hash_files, install_packages, run_tool

_STAMP = MODULES / ".build-stamp"
# Scripts and style sheets that a browser loads before it shows anything, and their bytes, gzipped.
MAX_FIRST_FILES = 2
MAX_FIRST_BYTES = 60_000
# Vite's list of the chunks and of what each imports. It is removed after the build, because no browser reads it.
_MANIFEST = STATIC / "manifest.json"
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
    first = find_first_files((STATIC / "index.html").read_text(), json.loads(_MANIFEST.read_text()))
    _MANIFEST.unlink()
    num_bytes = sum(sizes[name] for name in first)
    print(
        f"page: {num_bytes} bytes gzipped in {len(first)} files before the first paint, {sum(sizes.values())} in all "
        f"{len(sizes)} files"
    )
    if num_bytes > MAX_FIRST_BYTES or len(first) > MAX_FIRST_FILES:
        print(
            f"page: that is more than {MAX_FIRST_BYTES} bytes in {MAX_FIRST_FILES} files; load later what the first "
            f"view does not need: {', '.join(sorted(first))}"
        )
        shutil.rmtree(STATIC)
        return 1
    _STAMP.write_text(wanted)
    return 0


def find_first_files(document: str, manifest: dict[str, dict[str, Any]]) -> set[str]:
    """Returns the names of the scripts and style sheets without which the page draws nothing: those that the document
    names, and what these import before they run. manifest: Vite's list of chunks."""
    by_file = {Path(chunk["file"]).name: chunk for chunk in manifest.values()}
    waiting = [name for name in by_file if name in document and name.endswith((".js", ".css"))]
    first: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in first:
            first.add(name)
            waiting += [Path(manifest[key]["file"]).name for key in by_file[name].get("imports", ())]
    return first


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
