"""PURE: what failures of the same cause have in common, so that the scheduler sees when one only repeats itself.

Owns which failures the user's code answers for, and what of a message changes from one attempt to the next.
"""

from __future__ import annotations

import re
import signal

from gangline.domain.allocation import ExitReport
from gangline.domain.state import ExitKind
from services.trial_runner.outcome import is_consequence

MAX_SIGNATURE_LENGTH = 300
# Addresses, ids, sizes, times.
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]*\d[0-9a-f]*\b|\d+")
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


def signature_of(report: ExitReport) -> str:
    """Empty where somebody else may be the cause: a machine, a network, another rank, whoever sent a signal."""
    is_own_signal = report.kind is ExitKind.SIGNAL and report.signal in _OWN_SIGNALS
    if report.kind is ExitKind.HANG:
        # Its message tells how long, and who was where.
        return report.kind.value
    is_own = report.kind is ExitKind.USER_ERROR and not is_consequence(report.message)
    if not is_own and not is_own_signal:
        return ""
    return f"{report.kind.value} {_CHANGING.sub('#', report.message)}"[:MAX_SIGNATURE_LENGTH]
