"""PURE: checks settings that are no whole experiment: a template, and a default of a workspace or a project.

Each key has to be valid by itself. Required keys may be missing, and no rule between keys applies, because the
experiment's own configuration comes on top.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gangline.config.bound import check_text, find_unusable, too_deep
from gangline.config.complaint import Complaint, complaints_of
from gangline.config.experiment import ExperimentConfig
from gangline.config.parse import first_error
from gangline.config.section import WRITTEN, describe
from gangline.config.yaml_document import Document, parse_document
from gangline.domain.experiment import ConfigLayer, ProjectDefaults
from gangline.errors import GanglineError, invalid
from gangline.printable import find_unprintable

# The project chooses the template, so a template cannot choose the project.
_OF_THE_PROJECT = ("workspace", "project")
MAX_NAME_LENGTH = 80
MAX_DESCRIPTION_LENGTH = 1000


def read_template(text: str) -> str:
    """Returns the settings of a template's YAML as JSON. Raises GanglineError `config.*`, with the line."""
    return _dump(_check(parse_document(text), "the template"))


def check_template(config_json: str) -> None:
    """Checks the settings of a template from a client. Raises GanglineError `config.*`."""
    _check(_parse(config_json, "the template"), "the template")


def read_storage(text: str) -> str:
    """Returns a section checkpoint_storage, as YAML or JSON, as JSON; an empty text for an empty section. Raises
    GanglineError `config.*`."""
    values = parse_document(text).values
    if not values:
        return ""
    _check(Document({"checkpoint_storage": values}), "the storage")
    return _dump(values)


def check_storage(storage_json: str) -> None:
    """Checks a section checkpoint_storage from a client; an empty text is none. Raises GanglineError `config.*`."""
    if storage_json:
        _check(Document({"checkpoint_storage": _parse(storage_json, "the storage").values}), "the storage")


def check_name(kind: str, name: str) -> None:
    """Checks the name of a workspace, a project, a template or a model; kind is one of these words. Raises
    GanglineError `<kind>.name`."""
    letter = find_unprintable(name)
    if letter is not None:
        why = f"has the control character {letter}; use letters, digits, spaces and signs that can be printed"
    elif not name or name != name.strip():
        why = "is empty, or begins or ends with a space; give another one"
    elif len(name) > MAX_NAME_LENGTH:
        why = f"has {len(name)} characters; give one with at most {MAX_NAME_LENGTH}"
    elif "/" in name:
        why = "has a slash, which would divide it in the paths of the HTTP API; give one without"
    else:
        return
    raise invalid(f"{kind}.name", f"the name {_shown(name, letter)} of the {kind} {why}")


def check_description(kind: str, description: str) -> None:
    """Checks the description of a project or a model. Raises GanglineError `<kind>.description`."""
    if len(description) > MAX_DESCRIPTION_LENGTH:
        raise invalid(
            f"{kind}.description",
            f"the description has {len(description)} characters; give one with at most {MAX_DESCRIPTION_LENGTH}",
        )


def defaults_layer(source: str, defaults: ProjectDefaults) -> ConfigLayer | None:
    """Returns the settings that these defaults stand for; None where none is set."""
    values: dict[str, Any] = {}
    if defaults.resource_pool:
        values["resources"] = {"resource_pool": defaults.resource_pool}
    if defaults.checkpoint_storage_json:
        values["checkpoint_storage"] = json.loads(defaults.checkpoint_storage_json)
    return ConfigLayer(source, _dump(values)) if values else None


def _shown(name: str, letter: str | None) -> str:
    # A name with a control character is not repeated, because the message would carry the character.
    return "" if letter is not None else repr(name[: MAX_NAME_LENGTH + 1])


def _parse(text: str, what: str) -> Document:
    check_text(text)
    try:
        return Document(json.loads(text))
    except ValueError as error:
        raise invalid("config.syntax", f"{what} is no JSON document; check its quotes, commas and brackets") from error
    except RecursionError as error:
        raise too_deep() from error


def _check(document: Document, what: str) -> Mapping[str, Any]:
    values = document.values
    if not isinstance(values, dict) or not values:
        found = "is empty" if not values else f"expected a mapping such as resources: ..., found {describe(values)}"
        raise invalid("config.wrong_type", f"{what}: {found}; write settings as in an experiment's YAML")
    unusable = find_unusable(values)
    complaints = [unusable] if unusable is not None else [*_misplaced(values), *_invalid_keys(values)]
    if complaints:
        raise _prefixed(first_error(complaints, document), what)
    return values


def _misplaced(values: Mapping[str, Any]) -> list[Complaint]:
    text = "the project chooses the template, so a template cannot choose it; remove the key"
    return [Complaint("unknown_key", (key,), text) for key in _OF_THE_PROJECT if key in values]


def _invalid_keys(values: Mapping[str, Any]) -> list[Complaint]:
    # Without the entrypoint no model is whole, so no rule between the top-level keys applies.
    parts = [{key: value for key, value in values.items() if key != "entrypoint"}]
    if values.get("entrypoint") is not None:
        parts.append({"entrypoint": values["entrypoint"]})
    complaints: list[Complaint] = []
    for part in parts:
        try:
            ExperimentConfig.model_validate(part, context=WRITTEN)
        except ValidationError as failure:
            complaints += [found for found in complaints_of(failure, part) if found.code != "missing_key"]
    return complaints


def _prefixed(error: GanglineError, what: str) -> GanglineError:
    return error.reworded(f"{what}: {error.message}")


def _dump(values: Any) -> str:
    return json.dumps(values, default=_plain)


def _plain(value: Any) -> str:
    """Returns the text of a date or a time, the only values of YAML that the check accepts and JSON cannot keep."""
    text: str = value.isoformat()
    return text
