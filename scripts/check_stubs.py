"""Checks that the generated stubs match the protos, and that they load beside protobuf 5, 6 and 7.

Each protobuf is installed once under .tools/ and put before the environment's own on the path of a new Python, which
imports every stub and serialises and parses a message. Called by scripts/check.py.
"""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROTOBUF_VERSIONS = ["5.27.2", "6.33.0", "7.36.2"]  # the generator's own, and the majors that users have

# Runs in a new Python, whose path begins with the protobuf to test.
LOAD = """
import importlib, pathlib, sys
import google.protobuf
assert google.protobuf.__version__ == sys.argv[1], (google.protobuf.__version__, google.protobuf.__file__)
for path in pathlib.Path("gangline/v1").glob("*_pb2*.py"):
    importlib.import_module(f"gangline.v1.{path.stem}")
from gangline.v1 import types_pb2
sent = types_pb2.Slot(id="agent/0", kind=types_pb2.SLOT_KIND_CPU)
assert types_pb2.Slot.FromString(sent.SerializeToString()) == sent
"""


def main() -> int:
    problems = [*_compare_with_protos(), *(p for version in PROTOBUF_VERSIONS for p in _load_beside(version))]
    print("\n".join(problems))
    return 1 if problems else 0


def _compare_with_protos() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ROOT / "scripts/generate_protos", folder], check=True)
        generated, kept = Path(folder, "gangline/v1"), ROOT / "gangline/v1"
        names = {path.name for parent in (generated, kept) for path in parent.glob("*.py*")}
        _, different, missing = filecmp.cmpfiles(generated, kept, names, shallow=False)
    return [f"gangline/v1/{name} is not what protos/ says; run: make protos" for name in sorted(different + missing)]


def _load_beside(version: str) -> list[str]:
    folder = ROOT / ".tools" / f"protobuf-{version}"
    if not folder.exists():
        arriving = folder.with_name(f"{folder.name}.{os.getpid()}")
        requirement = f"protobuf=={version}"
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", arriving, requirement], check=True)
        arriving.rename(folder)
    command = [sys.executable, "-W", "error::UserWarning", "-c", LOAD, version]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return [f"the stubs do not load beside protobuf {version}:\n{done.stderr}"] if done.returncode else []


if __name__ == "__main__":
    sys.exit(main())
