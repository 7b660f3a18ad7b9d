"""Runs the demo on every other Python of this machine that the README names, each version once.

The Pythons are python3.11, python3.12 and python3.13 on PATH, pyenv's, and /usr/bin/python3, which is the first that a
newcomer has. A Python of the series of .venv borrows the packages of .venv, which takes a second; for another series
they are installed for the demo, which takes minutes, and removed after it: PyPI's torch for Linux brings CUDA's
libraries and cannot be loaded without them. The demos run at once, each with a cluster in its own
folder. A machine with one Python has nothing to do here.

Called by .ci/run with the Python of .venv: beside the checks with `--prepare`, which makes the environments and leaves
them; beside `make demo` without, which makes those that are missing and runs the demos.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".pythons"
SERIES = ((3, 11), (3, 12), (3, 13))
# What the demo needs; .venv has the tools of a developer as well.
EXTRAS = "train,cluster,examples"
# The limit of all installations together. They load some gigabytes.
INSTALL_SECONDS = 1200.0
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


def prepare(pythons: Mapping[str, Path]) -> dict[str, str]:
    """Makes the environments of these versions that are missing, all at once. Returns what went wrong, by version."""
    missing = {version: python for version, python in pythons.items() if not _stamp(version).exists()}
    installations: dict[str, subprocess.Popen[str]] = {}
    failed = {}
    deadline = time.monotonic() + INSTALL_SECONDS
    try:
        for version, python in missing.items():
            made = _make_empty(python, version)
            if version.split(".")[:2] == list(platform.python_version_tuple()[:2]):
                _borrow_packages(made)
                _stamp(version).touch()
            else:
                installations[version] = _begin_installation(made)
        for version, installation in installations.items():
            output, _ = installation.communicate(timeout=max(0.0, deadline - time.monotonic()))
            if installation.returncode:
                failed[version] = output
            else:
                _stamp(version).touch()
    except subprocess.TimeoutExpired:
        late = [version for version in installations if version not in failed and not _stamp(version).exists()]
        failed |= dict.fromkeys(late, f"the installation took more than {INSTALL_SECONDS:.0f} s")
    finally:
        for installation in installations.values():
            _end(installation)
    return failed


def interpreter(version: str) -> Path:
    return FOLDER / version / "bin" / "python"


def _stamp(version: str) -> Path:
    """Returns the file that says that an environment has all that the demo needs."""
    return FOLDER / version / "ready"


def _make_empty(python: Path, version: str) -> Path:
    folder = FOLDER / version
    shutil.rmtree(folder, ignore_errors=True)
    # Debian's Python has venv, but lacks the pip that venv would put in.
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    return interpreter(version)


def _begin_installation(python: Path) -> subprocess.Popen[str]:
    """The modules are not compiled beforehand: the demo loads few of the thousands."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-compile"]
    return subprocess.Popen(
        [*pip, "-c", "constraints.txt", "-e", f".[{EXTRAS}]"],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,  # so that pip and what it has started can be ended together
    )  # fmt: skip


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


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


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prepare", action="store_true", help="only make the environments, and leave them")
    is_first_half = parser.parse_args(arguments).prepare
    pythons = distinct(candidates(), platform.python_version())
    is_kept = False
    try:
        failed = prepare(pythons)
        for version, output in failed.items():
            print(f"\n== nothing could be installed for Python {version} ({pythons[version]})\n{output}", flush=True)
        is_kept = is_first_half and not failed
        if not is_first_half:
            failed |= _run_demos({version: path for version, path in pythons.items() if version not in failed})
    finally:
        for version in () if is_kept else pythons:
            shutil.rmtree(FOLDER / version, ignore_errors=True)
    if failed:
        print(f"the demo failed on Python {', '.join(failed)}")
    return 1 if failed else 0


def _run_demos(pythons: Mapping[str, Path]) -> dict[str, str]:
    """Runs the demos at once, as each waits for much of its time. Returns what went wrong, by version.

    Python keeps what it compiles, also where an image forbids it: a cluster has a dozen processes, and each of them
    would compile the same again.
    """
    failed = {}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    demos: dict[str, subprocess.Popen[str]] = {}
    try:
        for version in pythons:
            with _output(version).open("w") as output:
                demos[version] = subprocess.Popen(
                    [interpreter(version), "scripts/demo.py", FOLDER / version / "demo"],
                    cwd=ROOT, env=environment, text=True, stdout=output, stderr=subprocess.STDOUT,
                )  # fmt: skip
        for version, demo in demos.items():
            if demo.wait():
                failed[version] = f"exit status {demo.returncode}"
            print(f"\n== the demo on Python {version} ({pythons[version]})\n{_output(version).read_text()}", end="")
            sys.stdout.flush()
    finally:
        for demo in demos.values():
            demo.terminate()  # it takes its cluster down
        for demo in demos.values():
            demo.wait()
    return failed


def _output(version: str) -> Path:
    return FOLDER / version / "output"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
