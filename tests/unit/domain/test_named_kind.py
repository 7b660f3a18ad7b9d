"""The table of the kinds of named records: each row fits the record that it describes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from gangline.domain.experiment import Project, ProjectCounter, Template, Workspace
from gangline.domain.named_kind import KINDS, PROJECT, TEMPLATE, WORKSPACE, NamedKind


def _names(record_type: type[Any]) -> set[str]:
    return {field.name for field in fields(record_type)}


@pytest.mark.parametrize("kind", KINDS, ids=[kind.noun for kind in KINDS])
def test_a_row_names_fields_of_its_record(kind: NamedKind[Any]) -> None:
    expected = {"name", "owner", "created_at", "request_ids", *kind.fields}
    if kind.is_numbered:
        expected.add("id")
        assert kind.counter in _names(ProjectCounter)
    if kind.parent is not None:
        expected.add(f"{kind.parent.noun}_id")
    assert expected <= _names(kind.record_type)


def test_records_are_known_by_ids_names_and_parents() -> None:
    assert (WORKSPACE.key_of(Workspace(7, "lab")), WORKSPACE.parent_id_of(Workspace(7, "lab"))) == (7, 0)
    assert (PROJECT.key_of(Project(8, 7, "vision")), PROJECT.parent_id_of(Project(8, 7, "vision"))) == (8, 7)
    assert TEMPLATE.key_of(Template("base")) == "base"
