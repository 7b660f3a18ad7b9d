"""The number of random examples: a quarter with CI set, all of them elsewhere, and no test that decides by itself."""

from __future__ import annotations

import re

import pytest
from hypothesis import settings

from tests.support.examples import USUAL, VARIABLE, are_fixed, examples
from tests.support.source import ROOT


@pytest.mark.parametrize(
    ("ci", "chosen", "expected"),
    [("", "", [100, 15, 1]), ("true", "", [25, 4, 1]), ("true", "all", [100, 15, 1]), ("", "quarter", [25, 4, 1])],
)
def test_a_quarter_is_tried_with_ci(monkeypatch: pytest.MonkeyPatch, ci: str, chosen: str, expected: list[int]) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv(VARIABLE, chosen)
    assert [examples(100), examples(15), examples(1)] == expected
    assert are_fixed() == bool(ci)


def test_a_misspelt_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "ALL")
    with pytest.raises(AssertionError, match="GANGLINE_EXAMPLES is all or quarter, not 'ALL'"):
        examples(100)


def test_every_test_asks_for_its_examples() -> None:
    assert settings.default is not None
    assert settings.default.max_examples in {USUAL, examples(USUAL)}
    by_itself = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if re.search(r"max_examples\s*=\s*(?!examples\b)", path.read_text())
    ]
    assert by_itself == []
