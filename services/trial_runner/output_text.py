"""PURE: the sentences about the files of an attempt's processes in the trial's log: kept, not kept, not reported.

output.py finds the files and has them copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline.domain.limits import MB
from gangline.domain.storage.output import OUTPUT_KEY
from gangline.printable import to_line

# Names of files in one sentence.
MOST_NAMES = 3
# Of one name or one reason.
_MOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Written:
    """The files that processes wrote into their working folder."""

    num_files: int = 0  # number of files found by then
    names: tuple[str, ...] = ()  # names of the first files
    is_whole: bool = True  # whether all of the folder was examined


@dataclass(frozen=True, slots=True)
class Left:
    """A file of the output folder that is not in the storage, with the reason as a clause."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of the copying."""

    num_files: int = 0
    num_bytes: int = 0
    num_left: int = 0
    left: tuple[Left, ...] = ()  # the first files that are not kept
    problem: str = ""  # why the copying ended early; empty if it did not


def describe_kept(kept: Kept, trial_id: str) -> str:
    """Returns a sentence; empty if nothing is kept."""
    if not kept.num_files:
        return ""
    return f"kept {_count(kept.num_files)} ({_size(kept.num_bytes)}) of ${OUTPUT_KEY}: gangline trial output {trial_id}"


def describe_lost(kept: Kept, written: Written, folder: str, agent_id: str) -> str:
    """Returns a sentence about all that is not kept, where it stays and until when; empty if nothing is lost. folder:
    that of the allocation, once the agent has forgotten it."""
    parts = [part for part in (_describe_left(kept), _describe_written(written)) if part]
    if not parts:
        return ""
    return f"not kept: {'; '.join(parts)}; these files {_where(folder, agent_id)}"


def describe_interrupted(message: str, folder: str, agent_id: str) -> str:
    """Returns the message of an exit for the case that the trial runner dies while the output is copied. message: that
    of the exit without this; may be empty. folder: as above."""
    lost = f"its trial runner was lost while it copied the files of ${OUTPUT_KEY}; those that are not in the storage"
    return f"{message}{'; ' if message else ''}{lost} {_where(folder, agent_id)}"


def _where(folder: str, agent_id: str) -> str:
    return (
        f"stay below {folder} on {agent_id} until {agent_id} has ended keep_ended further allocations (10 by default)"
    )


NOT_REPORTED = "the entrypoint has reported no metrics and no checkpoint; gangline.core reports them"


def _describe_left(kept: Kept) -> str:
    named = "; ".join(f"{_short(each.path)}: {_short(each.why)}" for each in kept.left)
    more = "; ..." if kept.num_left > len(kept.left) else ""
    files = f"{_count(kept.num_left)} of ${OUTPUT_KEY} ({named}{more})" if kept.num_left else ""
    rest = f"the rest of ${OUTPUT_KEY} ({_short(kept.problem)})" if kept.problem else ""
    return " and ".join(part for part in (files, rest) if part)


def _describe_written(written: Written) -> str:
    if not written.num_files:
        return ""
    names = ", ".join(_short(name) for name in written.names)
    more = ", ..." if written.num_files > len(written.names) else ""
    least = "" if written.is_whole else "at least "
    files = f"{least}{_count(written.num_files)} of the working folder ({names}{more})"
    return f"{files}, where ${OUTPUT_KEY} names the folder whose files are kept"


def _count(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


def _size(num_bytes: int) -> str:
    return f"{num_bytes} bytes" if num_bytes < MB else f"{num_bytes / MB:.1f} MB"


def _short(text: str) -> str:
    line = to_line(text)
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."
