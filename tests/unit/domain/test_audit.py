"""Records of the audit log as CSV, and the checks of its filters."""

from __future__ import annotations

import csv
import io

import pytest

from gangline.audit_csv import CSV_COLUMNS, csv_of, safe_cell
from gangline.domain.audit import (
    AuditFilter,
    AuditRecord,
    check_audit_filter,
    parse_place,
    place_of,
)
from gangline.errors import GanglineError


def record(**values: object) -> AuditRecord:
    fixed = {"id": 3, "at": 1.5, "actor_kind": "user", "actor": "ann", "credential": "token 1", "address": "10.0.0.1"}
    return AuditRecord(**{**fixed, "surface": "grpc", "action": "trial.kill", **values})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "\t=1"])
def test_no_cell_begins_as_a_formula(text: str) -> None:
    assert safe_cell(text)[0] in "'\\"


def test_control_characters_are_escaped_and_other_text_stays() -> None:
    assert safe_cell("a\x1b[31m\r\nb\x00") == "a\\r\\nb\\x00"
    assert safe_cell('x,"y" zoë') == 'x,"y" zoë'


def test_csv_is_read_back_by_a_reader() -> None:
    changes = '{"name":{"old":"a,b","new":"=c"}}'
    rows = list(csv.reader(io.StringIO(csv_of([record(object_id="=7", changes_json=changes)]), newline="")))
    assert rows[0] == list(CSV_COLUMNS)
    values = dict(zip(rows[0], rows[1], strict=True))
    assert (values["time"], values["object_id"], values["changes"]) == ("1970-01-01T00:00:01.500Z", "'=7", changes)


def test_a_place_is_read_back() -> None:
    assert parse_place(place_of(record(at=1764396925.1234567))) == (1764396925.1234567, 3)
    assert parse_place("") is None
    with pytest.raises(GanglineError, match="no place in the audit log"):
        parse_place("yesterday")


@pytest.mark.parametrize(
    ("wanted", "limit", "code"),
    [
        (AuditFilter(user="x" * 301), 0, "audit.filter"),
        (AuditFilter(since=2.0, until=1.0), 0, "audit.filter"),
        (AuditFilter(), 1001, "request.limit"),
        (AuditFilter(), -1, "request.limit"),
    ],
)
def test_a_filter_that_cannot_work_is_refused(wanted: AuditFilter, limit: int, code: str) -> None:
    with pytest.raises(GanglineError) as refused:
        check_audit_filter(wanted, limit)
    assert refused.value.code == code
