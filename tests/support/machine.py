"""A small machine for tests of the systemd units: systemd as process 1 over a copy of this machine's files.

All of it lies in namespaces of its own (processes, mounts, network, host name, IPC, control groups). Its files are an
overlay over "/", so that nothing it writes reaches the host. It has a /dev of its own, /sys and /proc/sys are
read-only, and systemd knows only the units in `_BASE_UNITS` besides those that a test installs: nothing loads kernel
modules, sets sysctls or mounts. Needs root; `why_no_machine` says why there can be none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.source import ROOT
from tests.support.wait import until_sync

# Where the machine sees this repository and the Python environment of the tests; both may be changed there freely.
SOURCE, PACKAGES = "/srv/source", "/srv/packages"
_SYSTEMD = Path("/lib/systemd/systemd")
_PROGRAMS = ("unshare", "nsenter", "setpriv", "chroot", "useradd", "systemctl", "journalctl", "ip", "mount")
# What the units of Gangline name or what systemd needs to reach multi-user.target.
_BASE_UNITS = (
    *("basic.target", "sysinit.target", "multi-user.target", "shutdown.target", "network-online.target"),
    *("systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket"),
)
_NAMESPACES = ("--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "--propagation", "private")

# $1: an empty folder; $2: name of the control group; $3: a terminal for /dev/console; $4, $5: lower folders; $6: units.
_BOOT = r"""
set -eu
root=$1/root
mount -t tmpfs -o mode=0755 tmpfs "$1"
mkdir "$root" "$1/control"
lay() { # lower folder, name, place
    mkdir -p "$1/up/$2" "$1/work/$2" "$4"
    chmod 0755 "$1/up/$2"
    mount -t overlay -o "lowerdir=$3,upperdir=$1/up/$2,workdir=$1/work/$2" overlay "$4"
}
lay "$1" root / "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
for place in run tmp dev; do mount -t tmpfs -o mode=0755 tmpfs "$root/$place"; done
chmod 1777 "$root/tmp"
lay "$1" source "$4" "$root/srv/source"
lay "$1" packages "$5" "$root/srv/packages"
mknod -m 0666 "$root/dev/null" c 1 3
mknod -m 0666 "$root/dev/zero" c 1 5
mknod -m 0666 "$root/dev/full" c 1 7
mknod -m 0666 "$root/dev/random" c 1 8
mknod -m 0666 "$root/dev/urandom" c 1 9
mknod -m 0666 "$root/dev/tty" c 5 0
mkdir -m 1777 "$root/dev/shm"
mkdir "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
touch "$root/dev/console"
mount --bind "$3" "$root/dev/console"
mkdir -p "$root/usr/local/lib/base-units"
for unit in $6; do cp "$root/lib/systemd/system/$unit" "$root/usr/local/lib/base-units/"; done
mkdir "$root/usr/local/lib/base-units/sysinit.target.wants"
ln -s ../systemd-journald.service "$root/usr/local/lib/base-units/sysinit.target.wants/"
rm -rf "$root/etc/systemd/system"
mkdir "$root/etc/systemd/system"
rm -f "$root/etc/machine-id"
touch "$root/etc/machine-id"
ip link set lo up
# As systemd makes it where it believes itself on real hardware.
mount --make-rshared "$root"
mount -t cgroup2 cgroup2 "$1/control"
mkdir "$1/control/$2"
echo 0 >"$1/control/$2/cgroup.procs"
umount "$1/control"
exec unshare --cgroup sh -euc '
mount -t cgroup2 cgroup2 "$0/sys/fs/cgroup"
exec chroot "$0" env -i container=oci PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
    SYSTEMD_UNIT_PATH=/etc/systemd/system:/usr/local/lib/base-units \
    /lib/systemd/systemd --system --unit=multi-user.target --log-target=console --show-status=no' "$root"
"""

_REMOVE_CONTROL_GROUP = r"""
set -eu
mount -t tmpfs tmpfs /mnt
mkdir /mnt/control
mount -t cgroup2 cgroup2 /mnt/control
! test -d "/mnt/control/$1" || find "/mnt/control/$1" -depth -type d -exec rmdir {} +
"""


class Machine:
    """A machine that runs. `run` executes commands in it as root."""

    def __init__(self, pid: int, console: _Console) -> None:
        """pid: of its process 1, as the host numbers it."""
        self.pid = pid
        self._console = console

    def run(self, *command: str, is_checked: bool = True, stdin: str = "") -> str:
        """Returns the standard output and the errors of a command in the machine, which must succeed if is_checked."""
        done = self.attempt(*command, stdin=stdin)
        assert done.returncode == 0 or not is_checked, f"{' '.join(command)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def attempt(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._enter(), *command],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )

    def write(self, path: str, content: str) -> None:
        self.run("sh", "-euc", 'mkdir -p "$(dirname "$0")"; cat >"$0"', path, stdin=content)

    def copy_in(self, program: Path, path: str) -> None:
        """Copies a program of the host, wherever it lies, into the machine."""
        with program.open("rb") as content:
            command = [*self._enter(), "sh", "-euc", 'cat >"$0"; chmod 0755 "$0"', path]
            subprocess.run(command, stdin=content, timeout=60, check=True)

    def main_pid(self, unit: str) -> int:
        """Returns the main process of a unit, as the machine numbers it; 0 if there is none."""
        return int(self.run("systemctl", "show", "--property=MainPID", "--value", unit))

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--lines=60", f"--unit={unit}", is_checked=False)

    def console(self) -> str:
        """Returns what systemd has written so far."""
        return self._console.text()

    def _enter(self) -> list[str]:
        """Returns a command that runs the words behind it in the machine, with the environment of a login as root."""
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        enter = ["nsenter", f"--target={self.pid}", "--all", "--root", "--wd"]
        return [*enter, "env", "-i", f"PATH={path}", "HOME=/root", "LANG=C.UTF-8"]


class _Console:
    """A terminal on which systemd writes its messages."""

    def __init__(self) -> None:
        self._master, self._slave = os.openpty()
        self.path = os.ttyname(self._slave)
        self._output = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def text(self) -> str:
        return self._output.decode(errors="replace")

    def close(self) -> None:
        os.close(self._slave)
        self._reader.join()
        os.close(self._master)

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:
                return  # the last process that had it open has ended
            if not piece:
                return
            self._output += piece


@cache
def why_no_machine() -> str:
    """Returns why no such machine can run here; empty if it can."""
    if os.geteuid() != 0:
        return "only root boots a machine with systemd"
    if not _SYSTEMD.exists():
        return "there is no systemd; it comes with Debian's package systemd"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"there is no program {missing[0]}"
    tried = subprocess.run(
        ["unshare", *_NAMESPACES, "sh", "-euc", _TRY],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if tried.returncode == 0 else f"namespaces and mounts are refused here: {tried.stderr.strip()}"


_TRY = """
mount -t tmpfs tmpfs /mnt
mkdir /mnt/up /mnt/work /mnt/root /mnt/control
mount -t overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work overlay /mnt/root
mount -t proc proc /mnt/root/proc
mount -t cgroup2 cgroup2 /mnt/control
mkdir "/mnt/control/gangline-try-$$" && rmdir "/mnt/control/gangline-try-$$"
mknod /mnt/null c 1 3 && : >/mnt/null
"""


@contextlib.contextmanager
def running_machine(folder: Path) -> Iterator[Machine]:
    """Boots a machine and ends it with all of its processes. folder: an empty one, on which it mounts its files."""
    console = _Console()
    group = f"gangline-test-{os.getpid()}-{time.monotonic_ns()}"
    arguments = [str(folder), group, console.path, str(ROOT), sys.prefix, " ".join(_BASE_UNITS)]
    # The parent's end kills `unshare`, and the end of `unshare` kills process 1 with all others.
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, "sh", "-c", _BOOT, "sh", *arguments]
    errors = folder.with_name(f"{folder.name}.log")
    with errors.open("w") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield _wait_for_boot(process, console, errors)
    finally:
        for pid in _children(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        console.close()
        _remove_control_group(group)


def _wait_for_boot(process: subprocess.Popen[bytes], console: _Console, errors: Path) -> Machine:
    def is_up() -> bool:
        assert process.poll() is None, f"the machine did not boot: {errors.read_text()}{console.text()}"
        children = _children(process.pid)
        if not children or Path(f"/proc/{children[0]}/comm").read_text().strip() != "systemd":
            return False
        machine = Machine(children[0], console)
        return machine.attempt("systemctl", "is-active", "--quiet", "multi-user.target").returncode == 0

    until_sync(is_up, "the start of systemd", 60)
    return Machine(_children(process.pid)[0], console)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []  # it has ended


def _remove_control_group(group: str) -> None:
    """Waits until the killed processes have left the group."""

    def is_removed() -> bool:
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _REMOVE_CONTROL_GROUP, "sh", group]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    until_sync(is_removed, "the removal of the control group", 30)
