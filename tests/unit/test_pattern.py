"""Patterns that users write: what is refused, so that no compile holds up a service."""

from __future__ import annotations

import json
import random

import pytest
import re2

from gangline import pattern as pattern_module
from gangline.config import check_config, check_patterns
from gangline.config.failure import MAX_PATTERN_CHARACTERS, MAX_PATTERNS
from gangline.errors import GanglineError
from gangline.pattern import MAX_PATTERN_BYTES, MAX_PATTERN_LENGTH, BadPattern, compile_pattern
from services.scheduler.placement.request.snapshot import PoolConfig
from services.scheduler.service.restart_calls import _override
from services.scheduler.transition.submit_check import admit

# An instruction of RE2's program has 16 bytes.
MOST_INSTRUCTIONS = MAX_PATTERN_BYTES // 16


def config_of(*patterns: str) -> str:
    policies = [{"pattern": pattern} for pattern in patterns]
    searcher = {"name": "single", "metric": "loss"}
    return json.dumps({"name": "x", "entrypoint": "true", "searcher": searcher, "log_policies": policies})


@pytest.mark.parametrize(
    "pattern",
    [r"\pL{400}", r"(\pL{20}){20}", r"\pL" * 333, r"[^\pL]" * 166, r"(?i)\pL{300}", r"((a{1,30}){1,30}){1,30}"],
)
def test_a_pattern_whose_program_is_large_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", [r".{1000}", r"(?i)cuda out of memory|out of memory.*device", r"(\w+\s*){50}", f"({'a*b*|' * 190})*"]
)
def test_a_pattern_of_a_usual_size_is_compiled(pattern: str) -> None:
    compile_pattern(pattern)
    options = re2.Options()
    options.max_mem = MAX_PATTERN_BYTES
    assert re2.compile(pattern, options).programsize <= MOST_INSTRUCTIONS


def test_the_length_of_a_pattern_is_limited_before_it_is_read() -> None:
    compile_pattern("x" * MAX_PATTERN_LENGTH)
    with pytest.raises(BadPattern, match="has 1001 characters, at most 1000 are allowed"):
        compile_pattern("x" * (MAX_PATTERN_LENGTH + 1))


def test_number_and_sum_of_patterns_are_limited() -> None:
    check_patterns(check_config(config_of(*["x" * (MAX_PATTERN_CHARACTERS // MAX_PATTERNS)] * MAX_PATTERNS)))
    for patterns in (["x"] * (MAX_PATTERNS + 1), ["x" * 700] * 3):
        with pytest.raises(GanglineError, match=r"^log_policies: "):
            check_patterns(check_config(config_of(*patterns)))


def test_the_leader_compiles_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pattern: str) -> None:
        raise AssertionError(f"the leader compiles {pattern!r}")

    monkeypatch.setattr(pattern_module, "compile_pattern", fail)
    submitted = {"request_id": "r", "owner": "ann", "config_json": config_of("out of memory"), "code_sha256": "0"}
    admitted, _ = admit(submitted, [PoolConfig("default")], [], random.Random(1))
    _override(admitted.config_json, json.dumps({"log_policies": [{"pattern": "another"}]}))
