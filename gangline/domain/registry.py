"""PURE: models and their versions. registry.proto explains more fields.

A version names a checkpoint. While the version exists, nothing deletes the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline.domain.experiment import DEFAULT_WORKSPACE_ID


@dataclass(frozen=True, slots=True)
class ModelAlias:
    """A name of a model for one of its versions, such as `champion`."""

    name: str
    version: int  # number of the version


@dataclass(frozen=True, slots=True)
class Model:
    """A model, which has versions."""

    id: int
    name: str
    owner: str = ""  # user who created it
    created_at: float = 0.0
    updated_at: float = 0.0  # time of the newest change of the model or its aliases
    archived: bool = False  # whether it takes no new versions
    description: str = ""
    notes: str = ""  # Markdown
    labels: tuple[str, ...] = ()  # sorted, each once
    metadata_json: str = "{}"
    workspace_id: int = DEFAULT_WORKSPACE_ID
    next_version: int = 1  # number of the next version; numbers are never given again
    aliases: tuple[ModelAlias, ...] = ()  # by name
    request_ids: tuple[str, ...] = ()  # as in a workspace

    def version_of(self, alias: str) -> int:
        """Returns the number of the version at which the alias points; 0 without such an alias."""
        return next((each.version for each in self.aliases if each.name == alias), 0)

    def aliases_of(self, version: int) -> tuple[str, ...]:
        return tuple(each.name for each in self.aliases if each.version == version)


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A checkpoint that is registered in a model."""

    id: str  # "<model id>.<number>"
    model_id: int
    number: int
    checkpoint_id: str
    name: str = ""  # empty for none
    notes: str = ""  # Markdown
    metadata_json: str = "{}"
    trial_id: str = ""  # trial that saved the checkpoint; empty for an imported one
    experiment_id: int = 0  # 0 for an imported one
    batches_completed: int = 0  # batches after which the checkpoint was saved
    metrics_json: str = "{}"  # validation metrics of the checkpoint when the version was registered
    owner: str = ""  # user who registered it
    created_at: float = 0.0
    request_ids: tuple[str, ...] = ()  # as in a workspace

    @property
    def has_notes(self) -> bool:
        return bool(self.notes)


def version_id(model_id: int, number: int) -> str:
    return f"{model_id}.{number}"


@dataclass(frozen=True, slots=True)
class ModelChange:
    """A change of a model. None leaves a value as it is. Labels that are there, or are not there, already stay so."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None
    workspace: str | None = None  # name of the workspace
    metadata_json: str | None = None  # replaces all metadata
    add_labels: tuple[str, ...] = ()
    remove_labels: tuple[str, ...] = ()
    replaces_labels: bool = False  # whether the labels are those of add_labels alone


@dataclass(frozen=True, slots=True)
class ModelVersionChange:
    """A change of a version. None leaves a value as it is."""

    name: str | None = None
    notes: str | None = None
    metadata_json: str | None = None  # replaces all metadata


@dataclass(frozen=True, slots=True)
class ModelFilter:
    """Selects models. All given conditions have to hold. An empty one holds for all."""

    name_contains: str = ""  # whatever the case
    workspace: str = ""  # name of the workspace
    owner: str = ""
    labels: tuple[str, ...] = ()  # all of them
    archived: bool | None = None  # only archived ones, or only the others; None for both

    def matches(self, model: Model) -> bool:
        """Returns whether all conditions hold but that of the workspace, whose id is known to its caller."""
        return (
            self.name_contains.casefold() in model.name.casefold()
            and self.owner in ("", model.owner)
            and set(self.labels) <= set(model.labels)
            and self.archived in (None, model.archived)
        )


@dataclass(frozen=True, slots=True)
class ModelView:
    """Joins a model with its workspace and its versions' numbers."""

    model: Model
    workspace_name: str = ""
    num_versions: int = 0
    newest_version: int = 0  # 0 without a version


@dataclass(frozen=True, slots=True)
class ModelVersionView:
    """Joins a version with its model."""

    version: ModelVersion
    model_name: str = ""
    aliases: tuple[str, ...] = ()  # by name
