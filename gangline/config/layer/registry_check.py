"""PURE: the limits of what users write about models and their versions, and the error for a version that is not there.

The gateway checks a change before it sends it to the leading scheduler, which checks it again.
"""

from __future__ import annotations

import re
import shlex

from gangline.config.layer.experiment_text import check_line, check_note
from gangline.domain.document import check_document
from gangline.domain.registry import ModelVersionChange
from gangline.errors import GanglineError, conflict, invalid, not_found

MAX_ALIASES = 64
# Of one model. All versions are in the memory of the leader and of each gateway.
MAX_VERSIONS = 10_000
MAX_ALIAS_LENGTH = 80
MAX_METADATA_BYTES = 64 << 10
MAX_VERSION_NAME_LENGTH = 80
_ALIAS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def check_alias(alias: str) -> None:
    """Raises GanglineError `model.alias`. A number would name a version itself."""
    if not _ALIAS.fullmatch(alias) or alias.isdecimal() or len(alias) > MAX_ALIAS_LENGTH:
        raise invalid(
            "model.alias",
            f"the alias {alias[: MAX_ALIAS_LENGTH + 1]!r} cannot be used; give letters, digits, '_', '-' and '.', at "
            f"most {MAX_ALIAS_LENGTH} and not digits alone, such as champion",
        )


def check_num_aliases(model_name: str, num_aliases: int) -> None:
    """Raises GanglineError `model.aliases`."""
    if num_aliases > MAX_ALIASES:
        raise conflict(
            "model.aliases",
            f"model {model_name!r} would have {num_aliases} aliases, at most {MAX_ALIASES} are allowed; remove one "
            "with: gangline model unalias",
        )


def check_num_versions(model_name: str, num_versions: int) -> None:
    """Raises GanglineError `model.versions`."""
    if num_versions > MAX_VERSIONS:
        raise conflict(
            "model.versions",
            f"model {model_name!r} would have {num_versions} versions, at most {MAX_VERSIONS} are allowed; delete some "
            f"with: gangline model delete-version {shlex.quote(model_name)} VERSION",
        )


def check_metadata(metadata_json: str, what: str) -> None:
    """Raises GanglineError `document.invalid`, `model.metadata`. what: the subject of the message."""
    num_bytes = len(metadata_json.encode(errors="replace"))
    if num_bytes > MAX_METADATA_BYTES:
        raise invalid(
            "model.metadata", f"{what} has {num_bytes} bytes, at most {MAX_METADATA_BYTES} are allowed; shorten it"
        )
    check_document(metadata_json, what)


def check_notes(notes: str) -> None:
    """Raises GanglineError `texts.too_long`, `texts.text`."""
    check_note("the notes", notes)


def check_version_change(change: ModelVersionChange) -> None:
    """Raises GanglineError `model.version_name`, and the errors of notes and metadata."""
    if change.name:
        check_line("model.version_name", "the name of the version", change.name, MAX_VERSION_NAME_LENGTH)
    if change.notes is not None:
        check_notes(change.notes)
    if change.metadata_json is not None:
        check_metadata(change.metadata_json, "the metadata of the version")


def no_version(model_name: str, number: int) -> GanglineError:
    """Returns the error of a version that a model does not have."""
    return not_found(
        "model.no_version",
        f"model {model_name!r} has no version {number}; list them with: gangline model versions "
        f"{shlex.quote(model_name)}",
    )
