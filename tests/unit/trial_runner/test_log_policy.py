"""The matches of log policies in a trial's lines."""

from __future__ import annotations

import re

import pytest

from gangline.domain.allocation import LogHit
from gangline.domain.failure import LogRule
from gangline.domain.settled.reading import settle_values
from gangline.domain.state import LogAction
from services.trial_runner.ranks.log_policy import MAX_HIT_LENGTH, MAX_SEARCHED_LENGTH, LogPolicyMatcher

CONFIG = {
    "log_policies": [
        {"name": "ecc", "pattern": "uncorrectable ECC", "action": "exclude_node"},
        {"pattern": "out of .*memory", "action": {"type": "cancel_retries"}},
        {"signal": "note", "pattern": "^slow", "action": None},
        {"name": "nothing to look for"},
    ]
}


def _watch() -> tuple[LogPolicyMatcher, list[str]]:
    notes: list[str] = []
    return LogPolicyMatcher(settle_values(CONFIG).log_policies, notes.append), notes


def test_rules_are_read_in_every_form() -> None:
    rules = settle_values(CONFIG).log_policies
    assert [(rule.label, rule.pattern, rule.action) for rule in rules] == [
        ("ecc", "uncorrectable ECC", LogAction.EXCLUDE_NODE),
        ("out of .*memory", "out of .*memory", LogAction.CANCEL_RETRIES),
        ("note", "^slow", None),
        ("nothing to look for", None, None),
    ]


def test_each_policy_tells_its_first_line() -> None:
    watch, notes = _watch()
    watch.search(1, ["fine", "an uncorrectable ECC error"])
    watch.search(2, ["an uncorrectable ECC error again", "slow"])
    assert watch.hits == [
        LogHit("ecc", LogAction.EXCLUDE_NODE, 1, "an uncorrectable ECC error"),
        LogHit("note", None, 2, "slow"),
    ]
    assert notes == [
        "log policy 'ecc' (exclude_node) matches a line of rank 1: an uncorrectable ECC error",
        "log policy 'note' matches a line of rank 2: slow",
    ]


def test_one_line_may_match_several() -> None:
    watch, _ = _watch()
    watch.search(0, ["slow: out of host memory"])
    assert [hit.policy for hit in watch.hits] == ["out of .*memory", "note"]


def test_a_pattern_that_would_hold_python_up_for_ever_is_only_a_pattern() -> None:
    """For each a more, Python's re takes twice as long to see that a line of them with another end has no match."""
    notes: list[str] = []
    watch = LogPolicyMatcher([LogRule("repetitions", "(a+)+$", None)], notes.append)
    watch.search(0, ["a" * 5000 + "!"])
    assert watch.hits == []
    watch.search(0, ["!" + "a" * 5000])
    assert [hit.policy for hit in watch.hits] == ["repetitions"]


@pytest.mark.parametrize("pattern", ["out of (?!host).*memory", r"(\w+) \1", r"end\Z", "a++"])
def test_a_stored_pattern_that_only_python_knows_leaves_the_others(
    pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    re.compile(pattern)
    notes: list[str] = []
    watch = LogPolicyMatcher([LogRule("old", pattern, None), LogRule("new", "slow", None)], notes.append)
    assert [sentence.partition(" is no pattern of RE2: ")[0] for sentence in watch.left_out] == [
        f"log policy 'old' is not applied: {pattern!r}"
    ]
    watch.search(0, ["out of slow memory memory end"])
    assert [hit.policy for hit in watch.hits] == ["new"]
    assert capfd.readouterr() == ("", "")


def test_long_lines_are_bounded() -> None:
    watch, _ = _watch()
    watch.search(0, ["x" * MAX_SEARCHED_LENGTH + "uncorrectable ECC", "slow" + "y" * 1000])
    assert [hit.policy for hit in watch.hits] == ["note"]
    assert len(watch.hits[0].line) == MAX_HIT_LENGTH
