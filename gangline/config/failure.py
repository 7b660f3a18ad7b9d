"""PURE: the sections `hang_detection` and `log_policies`: when an attempt counts as failed, and the effects of a
failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from gangline.config.complaint import Complaint
from gangline.config.section import Section, fault
from gangline.domain.failure import HangRule

_ACTIONS = ("cancel_retries", "exclude_node")
# Limits on the patterns of one configuration. Each of them is compiled at the submit and at each start of a trial, and
# searched for in each line that a rank prints.
MAX_PATTERNS = 32
MAX_PATTERN_CHARACTERS = 2000
_SYNTAX = "write it as https://github.com/google/re2/wiki/Syntax says, without lookaround and backreferences"


class HangDetection(Section):
    """A gang hangs when none of its ranks makes progress for `seconds`, or for `factor` times the slowest step if that
    is longer. start_seconds: the limit before the first completed batch. rest_seconds: the limit while a callback,
    evaluate_full_dataset or storage keeps a rank busy. enabled: None watches Trainer.fit alone, true also scripts that
    use the Core API."""

    enabled: bool | None = None
    seconds: float = Field(default=HangRule().seconds, gt=0)
    factor: float = Field(default=HangRule().factor, ge=1)
    start_seconds: float = Field(default=HangRule().start_seconds, gt=0)
    rest_seconds: float = Field(default=HangRule().rest_seconds, gt=0)


class LogPolicy(Section):
    """The action for a line of a trial's output in which the pattern is found. action: None only reports the match in
    the log; the older form {type: ...} is read too. signal: the older key for name. Without a pattern the policy does
    nothing."""

    pattern: str | None = None
    name: str | None = None
    action: Literal["cancel_retries", "exclude_node"] | None = None
    signal: str | None = None

    @field_validator("action", mode="before")
    @classmethod
    def _is_action(cls, value: Any) -> Any:
        action = value.get("type") if isinstance(value, Mapping) else value
        if action is not None and action not in _ACTIONS:
            raise fault("invalid_value", f"must be cancel_retries or exclude_node, found {action!r}")
        if isinstance(value, Mapping) and len(value) != 1:
            raise fault("invalid_value", "expected only type, as in action: {type: cancel_retries}")
        return action


def find_bad_pattern(policies: Sequence[LogPolicy]) -> Complaint | None:
    """Returns a complaint about patterns that RE2 cannot compile, or that together take too long to compile.

    A gateway calls it for a submit, outside of its event loop, and so does the client that reads a user's text. No
    other code does: the scheduler never compiles a pattern, and experiments of an earlier version may have patterns in
    Python's syntax.
    """
    patterns = {position: policy.pattern for position, policy in enumerate(policies) if policy.pattern}
    if not patterns:
        return None
    if len(patterns) > MAX_PATTERNS:
        text = f"has {len(patterns)} patterns, at most {MAX_PATTERNS} are allowed; join some with |"
        return Complaint("invalid_value", ("log_policies",), text)
    from gangline.pattern import BadPattern, compile_pattern  # noqa: PLC0415 - loads a library that few files need

    num_characters = 0
    for position, pattern in patterns.items():
        num_characters += len(pattern)
        if num_characters > MAX_PATTERN_CHARACTERS:
            text = f"the patterns have more than {MAX_PATTERN_CHARACTERS} characters together; shorten them"
            return Complaint("invalid_value", ("log_policies",), text)
        try:
            compile_pattern(pattern)
        except BadPattern as error:
            return Complaint("invalid_value", ("log_policies", position, "pattern"), f"{error}; {_SYNTAX}")
    return None
