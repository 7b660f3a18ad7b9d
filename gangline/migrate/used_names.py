"""PURE: the names of Determined that a Python program uses, found without running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gangline.alias.surface import ROOT, is_ours

# Methods that the objects of a trial have in Determined alone, by the last two parts of their names.
LACKING_METHODS = frozenset(
    ("train", method) for method in ("get_experiment_best_validation", "get_metadata", "set_metadata")
)
_CONTEXT = f"{ROOT}.core.Context"
# Programs of Determined in a shell line: `python3 -m determined.launch.torch_distributed`.
_PROGRAM = re.compile(rf"-m\s+({ROOT}(?:\.\w+)+)")


@dataclass(frozen=True, slots=True, order=True)
class UsedName:
    """A name of Determined that a file uses."""

    line: int  # line in the file, from 1
    name: str  # with its package, such as determined.core.init


def find_names(source: str) -> list[UsedName]:
    """Returns each name of Determined once, where it is used first. Raises SyntaxError or ValueError for what is no
    Python 3."""
    tree = ast.parse(source)
    module_by_alias: dict[str, str] = {}
    found: list[UsedName] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if is_ours(name.name):
                    found.append(UsedName(node.lineno, name.name))
                    module_by_alias[name.asname or ROOT] = name.name if name.asname else ROOT
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level and is_ours(node.module):
            for name in node.names:
                full = node.module if name.name == "*" else f"{node.module}.{name.name}"
                found.append(UsedName(node.lineno, full))
                module_by_alias[name.asname or name.name] = full
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = list(_chain(node))[::-1]
            if parts and parts[0] in module_by_alias:
                found.append(UsedName(node.lineno, ".".join([module_by_alias[parts[0]], *parts[1:]])))
            elif module_by_alias and tuple(parts[-2:]) in LACKING_METHODS:
                found.append(UsedName(node.lineno, f"{_CONTEXT}.{parts[-2]}.{parts[-1]}"))
    return _first_uses(found)


def find_programs(text: str) -> list[str]:
    """Returns the modules of Determined that a shell line runs."""
    return list(dict.fromkeys(_PROGRAM.findall(text)))


def _chain(node: ast.expr) -> Iterator[str]:
    """Yields the names of `a.b.c` from the right; nothing where the left end is no plain name."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        yield from (*names, node.id)


def _first_uses(found: list[UsedName]) -> list[UsedName]:
    """Leaves out repetitions, and the inner parts of longer names: `a.b` of `a.b.c` in the same line."""
    by_name: dict[str, UsedName] = {}
    for used in sorted(found):
        by_name.setdefault(used.name, used)
    return sorted(
        used
        for used in by_name.values()
        if not any(other.line == used.line and other.name.startswith(f"{used.name}.") for other in by_name.values())
    )
