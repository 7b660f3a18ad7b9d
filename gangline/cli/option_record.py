"""Records of options: a command takes several arguments and options as one parameter, and several commands share them.

The fields of such a dataclass are annotated as the parameters of a command are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def spread(**types: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replaces each named parameter of a command by the fields of its record, at the same place, for typer. A type that
    is no record only annotates the parameter, where commands of several groups are written once."""
    record_types: dict[str, Any] = {name: given for name, given in types.items() if is_dataclass(given)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True) | types
        parameters = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name in record_types:
                parameters += _parameters_of(record_types[parameter.name])
            else:
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters.append(parameter.replace(annotation=hints[parameter.name], kind=kind))

        @wraps(command)
        def run(**values: Any) -> None:
            for name, record_type in record_types.items():
                values[name] = record_type(**{field.name: values.pop(field.name) for field in fields(record_type)})
            command(**values)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameters_of(record_type: type) -> list[inspect.Parameter]:
    hints = get_type_hints(record_type, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(record_type)
    ]
