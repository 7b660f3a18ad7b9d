"""PURE: shortens Python tracebacks in a rank's output to the frames of the user's code.

The frames of torch, Gangline and Python itself become one line with their number. Errors, their causes and every line
outside of a traceback stay. A report of an exit carries the result; the log keeps every line. Called by rank_group.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<file>.*)", line \d+(?P<function>, in .*)?$')
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/.]+)")
_STANDARD = re.compile(r"/lib/python3[^/]*/|<frozen ")


@dataclass(slots=True)
class _Frame:
    """The lines of one frame, with the marks below the code."""

    owner: str  # empty for the user's code
    lines: list[str] = field(default_factory=list)


def fold_tracebacks(lines: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Returns the lines with the frames outside of the folders folded, and the paths of the other frames made relative.

    folders: the spellings of the folder of the user's code. A traceback without a frame of the user's code stays whole,
    because its other frames are then the only place that it names.
    """
    kept: list[str] = []
    position = 0
    while position < len(lines):
        kept.append(lines[position])
        position += 1
        if kept[-1] != _HEADER:
            continue
        frames: list[_Frame] = []
        while position < len(lines) and lines[position].startswith("  "):
            _take(lines[position], frames, folders)
            position += 1
        kept += _fold(frames)
    return kept


def _take(line: str, frames: list[_Frame], folders: Sequence[str]) -> None:
    """Adds a line of a traceback to its frame, or begins the next frame."""
    match = _FRAME.match(line)
    if match is None and frames:
        frames[-1].lines.append(line)
        return
    file = match["file"] if match is not None else ""
    folder = next((folder for folder in folders if file.startswith(f"{folder}/")), None)
    if folder is not None:
        line = line.replace(f"{folder}/", "", 1)
    # A line without a function is the place of a syntax error.
    is_users = folder is not None or match is None or match["function"] is None or not file.startswith(("/", "<"))
    frames.append(_Frame("" if is_users else _owner_of(file), [line]))


def _owner_of(file: str) -> str:
    package = _PACKAGE.search(file)
    if package is not None:
        return package[1]
    if _STANDARD.search(file) or file.startswith("<"):
        return "python"
    return "gangline" if "/gangline/" in file else "other files"


def _fold(frames: Sequence[_Frame]) -> Iterator[str]:
    if all(frame.owner for frame in frames):
        for frame in frames:
            yield from frame.lines
        return
    owners: list[str] = []
    for frame in frames:
        if frame.owner:
            owners.append(frame.owner)
            continue
        yield from _folded_line(owners)
        owners = []
        yield from frame.lines
    yield from _folded_line(owners)


def _folded_line(owners: Sequence[str]) -> Iterator[str]:
    if owners:
        frames = "1 frame" if len(owners) == 1 else f"{len(owners)} frames"
        yield f"  ... {frames} of {', '.join(dict.fromkeys(owners))}"
