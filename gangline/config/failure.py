"""PURE: the sections `hang_detection` and `log_policies`: when an attempt has failed, and what a failure means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from gangline.config.section import Section, fault
from gangline.domain.failure import HangRule

_ACTIONS = ("cancel_retries", "exclude_node")


class HangDetection(Section):
    """A gang hangs when none of its ranks moves on for `seconds`, or `factor` times the slowest step if that is
    longer. enabled: None watches Trainer.fit alone, true also scripts that use the Core API."""

    enabled: bool | None = None
    seconds: float = Field(default=HangRule().seconds, gt=0)
    factor: float = Field(default=HangRule().factor, ge=1)


class LogPolicy(Section):
    """What to do when a trial prints a line in which the pattern is found. action: None only says so in the log; the
    older form {type: ...} is read too. signal: the older word for name. Without a pattern it does nothing."""

    pattern: str | None = None
    name: str | None = None
    action: Literal["cancel_retries", "exclude_node"] | None = None
    signal: str | None = None

    @field_validator("pattern", mode="after")
    @classmethod
    def _is_pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise fault("invalid_value", f"is no regular expression: {error}, found {value!r}") from error
        return value

    @field_validator("action", mode="before")
    @classmethod
    def _is_action(cls, value: Any) -> Any:
        action = value.get("type") if isinstance(value, Mapping) else value
        if action is not None and action not in _ACTIONS:
            raise fault("invalid_value", f"must be cancel_retries or exclude_node, found {action!r}")
        if isinstance(value, Mapping) and len(value) != 1:
            raise fault("invalid_value", "expected only type, as in action: {type: cancel_retries}")
        return action
