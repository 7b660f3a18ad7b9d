"""PURE: the part that failures of the same cause have in common. By it the scheduler sees that a failure only repeats.

Owns which failures the user's code is responsible for, and which parts of a message differ between attempts.
"""

from __future__ import annotations

import re
import signal

from gangline.domain.allocation import ExitReport
from gangline.domain.state import ExitKind
from services.trial_runner.outcome import is_consequence

# Longest signature, in characters. Two messages that differ only behind it count as the same failure.
MAX_SIGNATURE_LENGTH = 300
# Addresses, ids, sizes and times, which differ between attempts.
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]*\d[0-9a-f]*\b|\d+")
# Signals that a process raises by its own fault. Any other one may come from another process.
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


def signature_of(report: ExitReport) -> str:
    """Returns the signature of a failure; empty if the user's code may not be the cause. Other causes are a machine, a
    network, another rank, or the sender of a signal."""
    is_own_signal = report.kind is ExitKind.SIGNAL and report.signal in _OWN_SIGNALS
    if report.kind is ExitKind.HANG:
        # The message of a hang has durations and the places of ranks, which differ each time.
        return report.kind.value
    is_own = report.kind is ExitKind.USER_ERROR and not is_consequence(report.message)
    if not is_own and not is_own_signal:
        return ""
    return f"{report.kind.value} {_CHANGING.sub('#', report.message)}"[:MAX_SIGNATURE_LENGTH]
