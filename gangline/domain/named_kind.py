"""PURE: the kinds of records that users create and name, one row for each: workspaces, projects, templates
and models.

The leader, the gateway and the SDK find and change such records by the row of their kind. The leader's rules for
single fields and for deletions are in `services/scheduler/transition/project/kind_rule.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from gangline.domain.experiment import (
    DEFAULT_PROJECT_ID,
    DEFAULT_WORKSPACE_ID,
    UNCATEGORIZED,
    Project,
    Template,
    Workspace,
)
from gangline.domain.registry import Model


class Named(Protocol):
    """The fields that records of all kinds have."""

    @property
    def name(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def request_ids(self) -> tuple[str, ...]: ...


N = TypeVar("N", bound=Named)


@dataclass(frozen=True)
class NamedKind(Generic[N]):
    """One kind of named records."""

    record_type: type[N]
    fields: tuple[str, ...]  # fields that an edit may change; the others keep the value that they were created with
    # kind of the record that holds it, within which its name is unique; None: its name is unique in the cluster
    parent: NamedKind[Any] | None = None
    default: N | None = None  # record of the cluster itself, which always exists and never changes
    # whether its records have ids, so that they can be renamed; a record without an id that is created again is edited
    is_numbered: bool = True
    creation: tuple[str, str] = ("create", "")  # command that creates a record: its verb, and what follows the names
    contents: str = "experiments"  # what an archived record takes no more, as the refusal says it
    verbs: Mapping[str, str] = field(default_factory=dict)  # by action, words that differ from the action's name

    @property
    def noun(self) -> str:
        return self.record_type.__name__.lower()

    @property
    def counter(self) -> str:
        """The field of ProjectCounter with the id of the next record."""
        return f"next_{self.noun}_id"

    def key_of(self, record: N) -> int | str:
        """Returns the id, or the name of a record without an id."""
        return getattr(record, "id" if self.is_numbered else "name")  # type: ignore[no-any-return]  # of either type

    def parent_id_of(self, record: N) -> int:
        """Returns the id of the record that holds it; 0 for a kind without parents."""
        return getattr(record, f"{self.parent.noun}_id") if self.parent is not None else 0


DEFAULT_WORKSPACE = Workspace(DEFAULT_WORKSPACE_ID, UNCATEGORIZED)
DEFAULT_PROJECT = Project(DEFAULT_PROJECT_ID, DEFAULT_WORKSPACE_ID, UNCATEGORIZED)

WORKSPACE = NamedKind(Workspace, ("name", "defaults"), default=DEFAULT_WORKSPACE)
PROJECT = NamedKind(Project, ("name", "description", "defaults"), WORKSPACE, DEFAULT_PROJECT)
TEMPLATE = NamedKind(
    Template,
    ("config_json",),
    is_numbered=False,
    creation=("set", " FILE"),
    verbs={"EDIT": "change", "DELETE": "remove"},
)
MODEL = NamedKind(
    Model, ("name", "description", "notes", "workspace_id", "metadata_json", "labels"), contents="versions"
)
KINDS: tuple[NamedKind[Any], ...] = (WORKSPACE, PROJECT, TEMPLATE, MODEL)
