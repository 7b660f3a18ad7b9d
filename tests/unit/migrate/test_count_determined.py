"""What Gangline has of Determined: the page counts what is so, and everything that is not there names the way out."""

from __future__ import annotations

import re

import pytest
import yaml

from scripts.count_determined import LISTS, PAGE, Has, check_forms, judge_all, judge_calls, make_table, replace_table
from services.gateway.determined.lacking_call import lacking

# A refusal says what to write instead, what there is, or where it is explained.
_WAY_OUT = re.compile(r"did you mean|known here are|must be|expected|docs/|use |needs? ")


def test_the_page_counts_what_is_so() -> None:
    page = PAGE.read_text()
    assert page == replace_table(page, make_table(judge_all())), "run: python -m scripts.count_determined"


def test_every_form_of_an_experiment_file_runs_or_is_refused_with_the_way_out() -> None:
    findings = check_forms()
    assert set(findings) == set(yaml.safe_load((LISTS / "forms.yaml").read_text()))
    without = [
        (form, note)
        for form, finding in findings.items()
        for note in finding.notes
        if not _WAY_OUT.search(note) and "effect here (" not in note
    ]
    assert without == []


@pytest.mark.parametrize("call", [call for call, has in judge_calls().items() if has is not Has.HAD])
def test_every_call_that_is_not_there_names_what_is(call: str) -> None:
    method, path = call.split()
    error = lacking(method, re.sub(r"\{[^}]*\}", "1", path))
    assert "\n" not in error.message
    # The words of calls that no prefix explains.
    assert "has no call" not in error.message
