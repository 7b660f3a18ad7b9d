"""PURE: YAML text -> values, and the line on which each value's key stands.

Numbers such as 1e-3 are numbers (YAML 1.1 as PyYAML reads it makes strings of them), a key may stand only once, and
tags other than YAML's own are refused. Called by gangline.config.parse alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from gangline.errors import GanglineError, invalid


@dataclass(frozen=True, slots=True)
class Document:
    """line_by_path: 1-based; the path of a value -> the line of its key."""

    values: Any
    line_by_path: dict[tuple[str | int, ...], int] = field(default_factory=dict)

    def line_of(self, path: tuple[str | int, ...]) -> int | None:
        """The line of the value, or of the nearest mapping around it when it is not there; None for the whole text."""
        while path and path not in self.line_by_path:
            path = path[:-1]
        return self.line_by_path.get(path)


class _Loader(yaml.SafeLoader):
    """SafeLoader with its own table of number shapes."""


_Loader.yaml_implicit_resolvers = dict(yaml.SafeLoader.yaml_implicit_resolvers)
for _letter in "-+0123456789.":
    _Loader.yaml_implicit_resolvers[_letter] = [
        (
            "tag:yaml.org,2002:float",
            re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
        ),
        *_Loader.yaml_implicit_resolvers.get(_letter, []),
    ]


def parse_document(text: str) -> Document:
    """Raises GanglineError `config.syntax` with line and column."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines: dict[tuple[str | int, ...], int] = {}
            _note_lines(node, (), lines)
            values = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except yaml.YAMLError as failure:
        raise _syntax_error(failure) from failure
    return Document(values, lines)


def _note_lines(node: yaml.Node | None, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*path, str(key.value))
            line = key.start_mark.line + 1
            if place in lines and key.tag != "tag:yaml.org,2002:merge":
                raise invalid(
                    "config.duplicate_key",
                    f"line {line}: {key.value} stands here a second time (first on line {lines[place]}); keep one",
                )
            lines[place] = line
            _note_lines(value, place, lines)
    elif isinstance(node, yaml.SequenceNode):
        for position, entry in enumerate(node.value):
            lines[(*path, position)] = entry.start_mark.line + 1
            _note_lines(entry, (*path, position), lines)


def _syntax_error(failure: yaml.YAMLError) -> GanglineError:
    mark = getattr(failure, "problem_mark", None)
    problem = getattr(failure, "problem", None) or str(failure).splitlines()[0]
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return invalid("config.syntax", f"{place}this is no valid YAML: {problem}")
