"""PURE: an experiment's settings for failures, and facts about failures that ranks and runners share."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from gangline.domain.state import LogAction

# The code of errors about the checkpoint from which the cluster wants this trial to resume. The next attempt may resume
# from an older one.
LATEST_CORRUPT = "checkpoint.latest_corrupt"
# The code of the error that ends a rank which is to give its slots back while its storage takes no checkpoint. That is
# no failure: the trial goes on from the checkpoint that it has.
NOT_SAVED = "checkpoint.not_saved"
# Beginning of the note that an exception in a stage of a pipeline gets.
STAGE_NOTE = "in stage "
# The beginning of a sentence about a process that a rank had started.
CHILD = "a process that it had started was "
# Exit codes by which shells (128 + signal) and Python scripts (256 - signal) pass on the death of a child. Only these
# signals count, because other numbers of this kind are ordinary exit codes as well.
_PASSED_ON = {
    code: number
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV)
    for code in (128 + number, 256 - number)
}


def signal_passed_on(code: int) -> signal.Signals | None:
    """Returns the signal that killed a process of a script or shell, where the script ends with that process's exit
    code."""
    return _PASSED_ON.get(code & 0xFF)


def describe_signal(number: int, whom: str = "") -> str:
    """Describes the end of a process by a signal. whom: CHILD for a process that a rank had started."""
    return f"{whom}ended by signal {number} ({signal_name(number)})"


def signal_name(number: int) -> str:
    """Returns the name of a signal, as SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"


@dataclass(frozen=True, slots=True)
class HangRule:
    """The limits at which a gang counts as hung, see gangline.config.failure.HangDetection."""

    seconds: float = 60.0
    factor: float = 5.0
    start_seconds: float = 1800.0
    rest_seconds: float = 14400.0
    enabled: bool | None = None  # None where the rule applies to Trainer.fit alone

    @property
    def is_enabled(self) -> bool:
        """Returns whether the rule applies at all."""
        return self.enabled is not False

    @property
    def watches_scripts(self) -> bool:
        """Returns whether it applies where no trainer runs."""
        return self.enabled is True


@dataclass(frozen=True, slots=True)
class LogRule:
    """A log policy: the action for a line of a trial's output."""

    name: str | None = None
    pattern: str | None = None  # searched for in the line; None or empty never matches
    action: LogAction | None = None  # None only reports the match in the log
    signal: str | None = None  # the older key for name

    @property
    def label(self) -> str:
        """Returns the name of the policy for users."""
        return self.name or self.signal or self.pattern or ""
