"""Runs the demo on every other Python of this machine that the README names, each version once.

The Pythons are python3.11, python3.12 and python3.13 on PATH, pyenv's, and /usr/bin/python3, which is the first that a
newcomer has. A Python of the series of .venv borrows the packages of .venv, which takes a second; for another series
they are installed for the demo, which takes minutes, and removed after it. A machine with one Python has nothing to do
here. Called by .ci/run after `make demo`, with the Python of .venv.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".pythons"
SERIES = ((3, 11), (3, 12), (3, 13))
# What the demo needs; .venv has the tools of a developer as well.
EXTRAS = "train,cluster,examples"
_SAY_VERSION = "import platform; print(platform.python_version())"


def candidates() -> list[Path]:
    """Returns every place where a Python of the README may be."""
    names = [f"python{major}.{minor}" for major, minor in SERIES]
    on_path = [Path(folder) / name for folder in os.get_exec_path() for name in names]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return [*on_path, *sorted(pyenv.glob("versions/*/bin/python3")), Path("/usr/bin/python3")]


def distinct(paths: Iterable[Path], known_version: str) -> dict[str, Path]:
    """Returns one path for each version of the README's series but the known one."""
    found: dict[str, Path] = {}
    for path in paths:
        version = _version_of(path)
        if version not in (None, known_version) and tuple(map(int, version.split(".")[:2])) in SERIES:
            found.setdefault(version, path)
    return found


def _version_of(path: Path) -> str | None:
    """Returns None where there is no Python, or only pyenv's stand-in for one that is not chosen."""
    try:
        done = subprocess.run([path, "-c", _SAY_VERSION], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def make_environment(python: Path, version: str) -> Path:
    """Returns the interpreter of a new environment that has what the demo needs."""
    folder = FOLDER / version
    shutil.rmtree(folder, ignore_errors=True)
    # Debian's Python has venv, but lacks the pip that venv would put in.
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    made = folder / "bin" / "python"
    if version.split(".")[:2] == list(platform.python_version_tuple()[:2]):
        _borrow_packages(made)
    else:
        pip = [sys.executable, str(ROOT / "scripts" / "pip_install.py"), "--python", str(made)]
        subprocess.run([*pip, "install", "-c", "constraints.txt", "-e", f".[{EXTRAS}]"], check=True, cwd=ROOT)
    return made


def _borrow_packages(python: Path) -> None:
    """Gives an environment the packages of this one, which were built for the same series, and the command."""
    own = sysconfig.get_path("purelib")
    done = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    # As a path alone the .pth files in it, such as that of the checkout, would not be read.
    Path(done.stdout.strip(), "borrowed.pth").write_text(f"import site; site.addsitedir({own!r})\n")
    command = python.with_name("gangline")
    installed = Path(sys.executable).with_name("gangline").read_text()
    command.write_text(f"#!{python}\n{installed.partition(chr(10))[2]}")
    command.chmod(0o755)


def main() -> int:
    failed = []
    for version, python in distinct(candidates(), platform.python_version()).items():
        print(f"\n== the demo on Python {version} ({python})", flush=True)
        try:
            done = subprocess.run([make_environment(python, version), "scripts/demo.py"], cwd=ROOT, check=False)
            failed += [version] if done.returncode else []
        finally:
            shutil.rmtree(FOLDER / version, ignore_errors=True)
    if failed:
        print(f"the demo failed on Python {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
