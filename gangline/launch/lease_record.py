"""The end of an attempt's lease, in memory that the trial runner writes and the nursery reads.

The runner's renewals move the end. The nursery ends the ranks once the end has passed, so they also end with the lease
where the runner is stopped, swapped out or stuck. The nursery wakes up about once in a lease, and no message is sent.
All times are seconds of the clock that also counts while the machine is suspended (CLOCK_BOOTTIME). Standard library
only, because warm processes load this module.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import time

# Wait of the nursery after the end of the lease, which is within the margin that the leader waits. The runner ends the
# ranks first if it can, because it knows why. A machine that was paused as a whole can renew the lease meanwhile.
GRACE_SECONDS = 1.0
_END = struct.Struct("=d")
# From linux/time.h and linux/timerfd.h.
_CLOCK_BOOTTIME = 7
_TFD_TIMER_ABSTIME = 1
_TIMER = struct.Struct("@4l")
_NANOSECONDS = 1_000_000_000
# From linux/fcntl.h. After F_SEAL_FUTURE_WRITE only mappings from before can write (Linux 5.1).
_F_SEAL_FUTURE_WRITE = 0x10
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_libc = ctypes.CDLL(None, use_errno=True)


def boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseRecord:
    """The runner's side. Any thread may call `write`.

    Only this object can write the record. The nursery's side may run the user's own Python, which could open it anew
    through the reader's descriptor, in a container even as root.
    """

    def __init__(self, ends_at: float) -> None:
        self._fd = os.memfd_create("gangline-lease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, _END.size)
        self._mapping = mmap.mmap(self._fd, _END.size)
        self.write(ends_at)
        # A memfd begins with the mode 0777.
        os.fchmod(self._fd, 0o400)
        _seal(self._fd)

    def write(self, ends_at: float) -> None:
        self._mapping[:] = _END.pack(ends_at)

    def open_reader(self) -> int:
        """Returns a descriptor that can only read."""
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        self._mapping.close()
        os.close(self._fd)


def _seal(fd: int) -> None:
    """Ends all writes but those through a mapping that exists. A kernel before 5.1 leaves the mode alone to forbid
    them."""
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS | _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)
    except OSError:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS | fcntl.F_SEAL_SEAL)


class LeaseGuard:
    """The nursery's side. timer_fd: readable when `check` must be called. Takes over the descriptor of the record."""

    def __init__(self, record_fd: int) -> None:
        self._record_fd = record_fd
        self._is_in_grace = False
        self.timer_fd = _checked(_libc.timerfd_create(_CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC))
        self._set_timer(self._read_end())

    def check(self) -> bool:
        """Returns whether the lease is over for good, and sets the timer for the next check.

        After the end it waits once more, from now on: this process may have been paused as well.
        """
        ends_at, now = self._read_end(), boot_seconds()
        if now >= ends_at and self._is_in_grace:
            self._set_timer(0.0)
            return True
        self._is_in_grace = now >= ends_at
        self._set_timer(now + GRACE_SECONDS if self._is_in_grace else ends_at)
        return False

    def close(self) -> None:
        for fd in (self.timer_fd, self._record_fd):
            os.close(fd)

    def _read_end(self) -> float:
        return float(_END.unpack(os.pread(self._record_fd, _END.size, 0))[0])

    def _set_timer(self, at: float) -> None:
        """Sets the timer, which is no longer readable then. 0 stops it. A time in the past fires at once."""
        seconds, fraction = divmod(at, 1.0)
        value = _TIMER.pack(0, 0, int(seconds), int(fraction * _NANOSECONDS))
        _checked(_libc.timerfd_settime(self.timer_fd, _TFD_TIMER_ABSTIME, value, None))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "timerfd")
    return result
