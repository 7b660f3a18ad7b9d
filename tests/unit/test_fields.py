"""Holds records and models to one place for the meaning of a field: behind the field, or on a line above it.

A docstring that describes several fields of a large class in one paragraph makes a reader search for each of them.
Models of the HTTP API are held to it as well. Those of the experiment file are exempt: its schema publishes their
docstrings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.source import list_source_files

MAX_FIELDS = 5
"""A class with more fields does not describe two or more of them in its docstring."""
# One name or several before a colon, such as "since, until: ", "`pid`: " or "memory (MiB): ".
_DESCRIBED = re.compile(r"((?:`?\w+`?(?:, and |, | and ))*`?\w+`?)(?: \([^)]*\))?:\s")

_PACKED = '''
@dataclass(frozen=True)
class Place:
    """The slots of a trial. memory: bytes of each slot. inside, across: bytes a second."""

    memory: int
    inside: float
    across: float
    slots: int
    rate: float
    taken: int
'''
_CLEAR = '''
@dataclass(frozen=True)
class Place:
    """The slots of a trial. Note: rate: is named here alone."""

    memory: int  # bytes of each slot
    inside: float
    across: float
    slots: int
    rate: float
    taken: int
'''


def test_no_docstring_lists_the_fields_of_a_large_class() -> None:
    lists = [
        f"{file.path}:{finding}" for file in list_source_files() if _may_have(file.text) for finding in _find(file.tree)
    ]
    assert lists == []


@pytest.mark.parametrize(
    ("source", "findings"),
    [
        (_PACKED, ["3 Place: its docstring describes memory, inside, across; put each meaning behind its field"]),
        (_CLEAR, []),
        (_PACKED.replace("    taken: int\n", ""), []),
        (_PACKED.replace("@dataclass(frozen=True)\n", ""), []),
        (
            _PACKED.replace("@dataclass(frozen=True)\n", "").replace("Place:", "Place(Body):"),
            ["2 Place: its docstring describes memory, inside, across; put each meaning behind its field"],
        ),
    ],
    ids=["packed", "clear", "few fields", "no dataclass", "body of a request"],
)
def test_what_counts_as_a_list(source: str, findings: list[str]) -> None:
    assert list(_find(ast.parse(source))) == findings


def _may_have(text: str) -> bool:
    return any(name in text for name in ("@dataclass", "NamedTuple", "Answer", "Body"))


def _find(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or not _is_record(node):
            continue
        fields = [
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        names = {
            name for found in _DESCRIBED.findall(ast.get_docstring(node) or "") for name in re.findall(r"\w+", found)
        }
        described = [name for name in fields if name in names]
        if len(fields) > MAX_FIELDS and len(described) > 1:
            where = f"{node.lineno} {node.name}"
            yield f"{where}: its docstring describes {', '.join(described)}; put each meaning behind its field"


def _is_record(node: ast.ClassDef) -> bool:
    names = {ast.unparse(each).split("(")[0].split(".")[-1] for each in (*node.decorator_list, *node.bases)}
    return bool(names & {"dataclass", "NamedTuple", "Answer", "Body"})
