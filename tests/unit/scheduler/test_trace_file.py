"""The CSV file of a trace: its columns, their defaults, and mistakes with line and column."""

from __future__ import annotations

import pytest

from gangline.errors import GanglineError
from services.scheduler.simulator.submission import TraceSubmission
from services.scheduler.simulator.trace_file import dump_trace, parse_trace
from tests.support.source import ROOT

HEADER = "submitted_at,slots,duration_seconds,priority,group\n"


def test_the_columns_of_the_design() -> None:
    first, second = parse_trace(HEADER + "5,8,60.5,10,lab\n1,1,2,,\n")
    assert first == TraceSubmission("t2", 1.0, 1, 2.0, 2.0, 42, "t2")
    assert second == TraceSubmission("t1", 5.0, 8, 60.5, 60.5, 10, "lab")


def test_three_columns_in_any_order_are_enough() -> None:
    (only,) = parse_trace("slots, duration_seconds, submitted_at\n\n 4 , 3600 , 0 \n")
    assert (only.slots, only.duration_seconds, only.submitted_at) == (4, 3600.0, 0.0)


def test_all_columns() -> None:
    text = (
        "id,submitted_at,slots,duration_seconds,planned_seconds,preemptible,single_agent,outcome,group,priority\n"
        "a,0,1,10,40,false,1,failed,g,1\n"
    )
    assert parse_trace(text) == [TraceSubmission("a", 0.0, 1, 10.0, 40.0, 1, "g", False, True, "failed")]


def test_what_is_written_reads_back() -> None:
    submissions = parse_trace((ROOT / "examples" / "simulator" / "trace.csv").read_text())
    assert len(submissions) == 247
    assert parse_trace(dump_trace(submissions)) == submissions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: must name the columns submitted_at, slots, duration_seconds; the file is empty"),
        (HEADER, "line 1: the file has columns, but no row below them"),
        ("submitted_at,slots\n1,2\n", "line 1: the column duration_seconds is missing"),
        ("submitted_at,slots,duration\n1,2,3\n", "line 1, column 3: 'duration' is no column of a trace; did you mean"),
        ("submitted_at,slots,slots\n1,2,3\n", "line 1, column 3: 'slots' is there twice"),
        (HEADER + "0,1,60,42\n", "line 2, column 5: there are 4 fields, but 5 columns"),
        (HEADER + "0,1,60,42,g,x\n", "line 2, column 6: there are 6 fields, but 5 columns"),
        (
            HEADER + "0,1,60,42,g\n0,0,60,42,g\n",
            "line 3, column 2 (slots): must be a whole number of at least 1, not 0",
        ),
        (HEADER + "0,-4,60,42,g\n", "line 2, column 2 (slots): must be a whole number of at least 1, not -4"),
        (HEADER + "0,two,60,42,g\n", "line 2, column 2 (slots): must be a whole number of at least 1, not 'two'"),
        (HEADER + "0,,60,42,g\n", "line 2, column 2 (slots): must be a whole number of at least 1, not ''"),
        (HEADER + "0,1,0,42,g\n", "line 2, column 3 (duration_seconds): must be seconds, more than 0, not 0"),
        (HEADER + "0,1,nan,42,g\n", "line 2, column 3 (duration_seconds): must be seconds, more than 0, not nan"),
        (HEADER + "-1,1,60,42,g\n", "line 2, column 1 (submitted_at): must be seconds, at least 0, not -1"),
        (HEADER + "noon,1,60,42,g\n", "line 2, column 1 (submitted_at): must be seconds, at least 0, not 'noon'"),
        (HEADER + "0,1,60,100,g\n", "line 2, column 4 (priority): must be a whole number from 1 to 99, not 100"),
        (HEADER + "0,1,60,0,g\n", "line 2, column 4 (priority): must be a whole number from 1 to 99, not 0"),
        (
            "id,submitted_at,slots,duration_seconds\na,0,1,1\nb,0,1,1\na,0,1,1\n",
            "line 4, column 1 (id): 'a' is on line 2",
        ),
        (
            "submitted_at,slots,duration_seconds,planned_seconds\n0,1,60,59\n",
            "line 2, column 4 (planned_seconds): must be seconds, at least 60, not 59",
        ),
        (
            "submitted_at,slots,duration_seconds,outcome\n0,1,60,lost\n",
            "line 2, column 4 (outcome): must be completed, cancelled or failed, not 'lost'",
        ),
        (HEADER + '0,1,60,42,"g\n', "line 2: unexpected end of data"),
    ],
)
def test_mistakes_are_one_line_with_line_and_column(text: str, said: str) -> None:
    with pytest.raises(GanglineError) as refused:
        parse_trace(text)
    assert said in refused.value.message
    assert "\n" not in refused.value.message
