"""PURE: an experiment's settings for failures, read from its configuration as a dictionary, and facts about failures
that ranks and runners share.

Ranks and runners get the configuration as a dictionary. Submit has validated it (gangline.config.failure). A
configuration that another version of Gangline stored may lack keys.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    is_enabled: bool = True  # whether the rule applies at all
    watches_scripts: bool = False  # whether it applies where no trainer runs


def hang_rule_of(config: Mapping[str, Any]) -> HangRule:
    section = config.get("hang_detection") or {}
    enabled = section.get("enabled")
    return HangRule(
        seconds=float(section.get("seconds", HangRule().seconds)),
        factor=float(section.get("factor", HangRule().factor)),
        start_seconds=float(section.get("start_seconds", HangRule().start_seconds)),
        rest_seconds=float(section.get("rest_seconds", HangRule().rest_seconds)),
        is_enabled=enabled is not False,
        watches_scripts=enabled is True,
    )


@dataclass(frozen=True, slots=True)
class LogRule:
    """A log policy."""

    label: str  # name of the policy for users
    pattern: str
    action: LogAction | None  # None only reports the match in the log


def log_rules_of(config: Mapping[str, Any]) -> list[LogRule]:
    """Returns the log policies that have a pattern."""
    entries = [entry for entry in config.get("log_policies") or () if entry.get("pattern")]
    return [
        LogRule(entry.get("name") or entry.get("signal") or entry["pattern"], entry["pattern"], _action_of(entry))
        for entry in entries
    ]


def _action_of(entry: Mapping[str, Any]) -> LogAction | None:
    action = entry.get("action")
    word = action.get("type") if isinstance(action, Mapping) else action
    return LogAction(str(word).upper()) if word else None
