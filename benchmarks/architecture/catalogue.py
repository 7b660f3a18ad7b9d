"""The list of all architectures, by family."""

from __future__ import annotations

from benchmarks.architecture.model import Architecture
from benchmarks.architecture.other import list_other
from benchmarks.architecture.text import list_text
from benchmarks.architecture.vision import list_vision


def list_architectures() -> list[Architecture]:
    """Returns all, those of missing libraries too, with the members of a family one after the other."""
    found = [*list_text(), *list_vision(), *list_other()]
    families = list(dict.fromkeys(each.family for each in found))
    return sorted(found, key=lambda each: families.index(each.family))


def find(name: str) -> Architecture:
    return next(each for each in list_architectures() if each.name == name)
