"""Checks a folder of experiments that were written for Determined: which of its files run here as they are.

Experiment files are read as a submit reads them. Python files are not run: their names of Determined are compared with
those that Gangline has.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gangline.alias.surface import NAMES_BY_OPTIONAL_MODULE, TARGET_BY_MODULE
from gangline.config import parse_config
from gangline.config.yaml_document import parse_document
from gangline.domain.container import names_container
from gangline.domain.entrypoint import refused_launcher
from gangline.errors import GanglineError, invalid
from gangline.lacking import explain
from gangline.migrate.used_names import LACKING_METHODS, find_names, find_programs

MAX_FILES = 20_000
# A larger file is no experiment file and no program that somebody wrote.
MAX_BYTES = 1 << 20
_IGNORED = frozenset({"__pycache__", "node_modules", "venv", "site-packages"})
_EXPERIMENT_KEYS = frozenset({"entrypoint", "searcher"})
_LIKE_EXPERIMENT = re.compile(r"^(entrypoint|searcher)\s*:", re.MULTILINE)
# An image of Determined has the packages of Determined's harness, not ours.
_IMAGE = (
    "environment.image: agents need podman or docker for it, and the image needs Python 3.11 with gangline[train]; "
    "without the line the trial runs in the agents' Python"
)


class Verdict(StrEnum):
    RUNS = "runs"
    WARNING = "runs with a warning"
    CHANGE = "needs a change"


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one file."""

    path: str  # path below the folder
    verdict: Verdict
    notes: tuple[str, ...] = ()  # one line each


def check_folder(folder: Path) -> list[Finding]:
    """Returns a finding for every experiment file, and for every Python file that uses Determined, by their paths.

    Raises GanglineError `migrate.*` when the folder cannot be read or has more than MAX_FILES files.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise invalid("migrate.no_folder", f"{folder} {what}; give the folder that holds the experiments")
    found = []
    for path in _files(folder):
        name = str(path.relative_to(folder))
        try:
            text = path.read_text(encoding="utf-8") if path.stat().st_size <= MAX_BYTES else ""
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            found.append(Finding(name, Verdict.CHANGE, (f"the file cannot be read: {reason}",)))
            continue
        finding = check_program(name, text) if path.suffix == ".py" else check_experiment(name, text)
        if finding is not None:
            found.append(finding)
    return found


def check_experiment(name: str, text: str) -> Finding | None:
    """Returns a finding for an experiment file; None for any other YAML."""
    try:
        values = parse_document(text).values
    except GanglineError as error:
        return Finding(name, Verdict.CHANGE, (error.message,)) if _LIKE_EXPERIMENT.search(text) else None
    if not isinstance(values, dict) or not _EXPERIMENT_KEYS & values.keys():
        return None
    notes = []
    entrypoint = values.get("entrypoint")
    words = entrypoint if isinstance(entrypoint, list) else [entrypoint]
    for program in find_programs(" ".join(map(str, words))):
        # The configuration's own error names launchers that Gangline does not have.
        if program not in TARGET_BY_MODULE and refused_launcher(f"-m {program}") is None:
            notes.append(f"entrypoint: {explain(program)}")
    try:
        config, warnings = parse_config(text)
    except GanglineError as error:
        return Finding(name, Verdict.CHANGE, (*notes, *error.message.splitlines()))
    if names_container(config.environment.image):
        warnings = [*warnings, _IMAGE]
    if notes:
        return Finding(name, Verdict.CHANGE, (*notes, *warnings))
    return Finding(name, Verdict.WARNING if warnings else Verdict.RUNS, tuple(warnings))


def check_program(name: str, source: str) -> Finding | None:
    """Returns a finding for a Python file that uses Determined; None for any other."""
    try:
        used = find_names(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        if not re.search(r"\bdetermined\b", source):
            return None
        why = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        return Finding(name, Verdict.CHANGE, (f"this is no Python that can be read: {why}",))
    if not used:
        return None
    notes = tuple(f"line {each.line}: {explain(each.name)}" for each in used if not is_there(each.name))
    return Finding(name, Verdict.CHANGE if notes else Verdict.RUNS, notes)


def is_there(name: str) -> bool:
    """Returns whether Gangline has a name of Determined. What an object of it has is known for a few names only."""
    parts = name.split(".")
    if tuple(parts[-2:]) in LACKING_METHODS:
        return False
    module = max((".".join(parts[:count]) for count in range(1, len(parts) + 1)), key=_depth_of_module)
    rest = parts[module.count(".") + 1 :]
    if not rest:
        return True
    if module in NAMES_BY_OPTIONAL_MODULE:
        return rest[0] in NAMES_BY_OPTIONAL_MODULE[module]
    target = importlib.import_module(TARGET_BY_MODULE[module])
    return rest[0] in getattr(target, "__all__", ()) or (rest[0].startswith("__") and hasattr(target, rest[0]))


def _depth_of_module(name: str) -> int:
    return name.count(".") + 1 if name in TARGET_BY_MODULE else 0


def _files(folder: Path) -> Iterator[Path]:
    """Yields YAML and Python files by their paths. Hidden folders and installed packages are left out."""
    num_files = 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _IGNORED and not name.startswith("."))
        num_files += len(files)
        if num_files > MAX_FILES:
            raise invalid(
                "migrate.too_many",
                f"{folder} has more than {MAX_FILES} files; give the folder that holds the experiments",
            )
        for name in sorted(files):
            if name.endswith((".yaml", ".yml", ".py")):
                yield Path(place, name)
