"""PURE: `determined.errors`: the exceptions that a program of Determined raises by itself.

Their one argument is the sentence that users see. Gangline's own refusals are GanglineErrors with codes of their own,
so an `except` of one of these classes catches only what the program has raised.
"""

from __future__ import annotations

from gangline.errors import GanglineError

__all__ = [
    "InternalException",
    "InvalidCheckpointException",
    "InvalidConfigurationException",
    "InvalidDataTypeException",
    "InvalidExperimentException",
]


class InvalidExperimentException(GanglineError):
    """The experiment or its code cannot run as it is. The trial ends with this sentence and is not retried."""

    def __init__(self, message: object = "the experiment is not valid") -> None:
        super().__init__("trial.invalid_experiment", str(message))


class InvalidDataTypeException(InvalidExperimentException):
    def __init__(self, typ: type, message: str) -> None:
        super().__init__(f"invalid type of data ({typ.__name__}): {message}")


class InvalidConfigurationException(InvalidExperimentException):
    def __init__(self, config: object, message: str) -> None:
        super().__init__(f"invalid configuration ({config!r:.200}): {message}")


class InternalException(Exception):
    """A state that the raising code did not expect. The trial is retried."""


class InvalidCheckpointException(Exception):
    """A checkpoint that cannot be used."""

    def __init__(self, message: str = "the checkpoint is not valid") -> None:
        super().__init__(message)
