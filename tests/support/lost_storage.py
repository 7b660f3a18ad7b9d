"""A cluster whose storage is a small disk of its own, which a test fills, unmounts and hangs.

Owns the mount namespace in which all services run, and its disk. Needs root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline.domain.storage.storage_fault import MARKER_FILE
from tests.support.fleet import Fleet
from tests.support.gated_trial import wait_for


@dataclass
class StorageDisk:
    """A disk that can be taken away."""

    storage: Path  # mount point
    disk: Path  # path at which the same disk stays mounted
    holder: subprocess.Popen[bytes]  # process that keeps the namespace

    @property
    def enter(self) -> list[str]:
        """The command prefix that runs in the namespace, in the folder of the services, whose sockets have relative
        paths."""
        return ["nsenter", "-t", str(self.holder.pid), "-m", f"--wd={self.storage.parent}"]

    def seen(self, place: Path) -> Path:
        """Returns a path of the namespace as it is seen from outside."""
        return Path(f"/proc/{self.holder.pid}/root{place}")

    @contextmanager
    def full(self) -> Iterator[None]:
        fill = self.seen(self.disk) / "fill"
        with fill.open("ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                with suppress(OSError):
                    while file.write(b"x" * size):
                        pass
        try:
            yield
        finally:
            fill.unlink()

    @contextmanager
    def away(self) -> Iterator[Path]:
        """Unmounts the storage. Yields the mount point, a folder that is empty."""
        subprocess.run([*self.enter, "umount", "-l", str(self.storage)], check=True)
        try:
            yield self.seen(self.storage)
        finally:
            subprocess.run([*self.enter, "mount", "--bind", str(self.disk), str(self.storage)], check=True)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Puts a pipe in the place of the marker file: whoever reads it hangs."""
        marker = self.seen(self.disk) / MARKER_FILE
        aside = marker.with_name("aside")
        marker.rename(aside)
        os.mkfifo(marker)
        try:
            yield
        finally:
            # A writer that opens and closes the pipe wakes its readers, who then find no text.
            pipe = marker.with_name("pipe")
            marker.rename(pipe)
            aside.rename(marker)
            with suppress(OSError):
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            pipe.unlink()


@contextmanager
def storage_disk(folder: Path) -> Iterator[StorageDisk]:
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces need root")
    storage, disk = folder / "data" / "storage", folder / "disk"
    for each in (storage, disk):
        each.mkdir(parents=True)
    mounts = f'mount -t tmpfs -o size=8m disk "{disk}" && mount --bind "{disk}" "{storage}"'
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", f"{mounts} && exec sleep infinity"])
    try:
        wait_for(
            lambda: f" {storage} " in Path(f"/proc/{holder.pid}/mounts").read_text(), "the disk of the storage", 30
        )
        yield StorageDisk(storage, disk, holder)
    finally:
        holder.kill()
        holder.wait(10)


@contextmanager
def storage_fleet(disk: StorageDisk, slots: int = 2, wait_seconds: float = 600.0) -> Iterator[Fleet]:
    """Starts one agent. wait_seconds: how long a trial waits for its storage."""
    fleet = Fleet(disk.storage.parent, num_agents=1, slots=slots)
    fleet.set_flag("scheduler", "--storage-wait-seconds", str(wait_seconds))
    try:
        fleet.start("etcd")
        fleet.start("scheduler", "gateway", "agent-1", inside=disk.enter)
        with fleet.connect() as client:
            wait_for(lambda: client.get_cluster().num_agents == 1, "the agent")
        yield fleet
    finally:
        fleet.close()
