"""`gangline audit`: its filters, and the records as a table, as CSV and as lines of JSON."""

from __future__ import annotations

import csv
import io
import json

import pytest

from gangline.v1 import audit_pb2
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway

CHANGES = {"priority": {"old": 50, "new": 10}, "name": {"new": "=x"}}


@pytest.fixture
def filled(gateway: StandInGateway) -> StandInGateway:
    gateway.audit_records = [
        audit_pb2.AuditRecord(
            id=2, at=1764396925.5, actor_kind="user", actor="ann", credential="session", address="10.0.0.1",
            surface="grpc", action="experiment.set_resources", object_kind="experiment", object_id="7",
            workspace="=lab", changes_json=json.dumps(CHANGES), outcome="done", request_id="r1",
        ),
        audit_pb2.AuditRecord(id=1, at=1.0, actor_kind="anonymous", action="call.unknown_token", outcome="auth.x"),
    ]  # fmt: skip
    return gateway


def test_a_table_shows_who_did_what_to_what(cli: Cli, filled: StandInGateway) -> None:
    done = cli("audit", "--wide")
    assert done.status == 0
    heading, first, second = done.out.splitlines()
    assert heading.split()[:5] == ["TIME", "USER", "ACTION", "OBJECT", "OUTCOME"]
    for text in ("ann", "experiment.set_resources", "experiment/7", "done", "priority: 50 -> 10", "session"):
        assert text in first
    assert "anonymous" in second


def test_json_has_one_object_on_each_line_and_csv_no_formula(cli: Cli, filled: StandInGateway) -> None:
    lines = [json.loads(line) for line in cli("audit", "--json").out.splitlines()]
    assert [line["id"] for line in lines] == [2, 1]
    assert lines[0]["changes"] == CHANGES
    rows = list(csv.DictReader(io.StringIO(cli("audit", "--csv").out, newline="")))
    assert [row["workspace"] for row in rows] == ["'=lab", ""]
    assert json.loads(rows[0]["changes"]) == CHANGES


def test_filters_reach_the_gateway_and_a_wrong_one_is_named(cli: Cli, filled: StandInGateway) -> None:
    cli(
        "audit", "--user", "ann", "--action", "experiment", "--object", "experiment/7", "--outcome", "failed",
        "--address", "10.0.0.1", "--since", "2025-01-01T00:00:00+00:00", "--limit", "7",
    )  # fmt: skip
    request = filled.audit_requests[-1]
    wanted = request.filter
    assert (wanted.user, wanted.action, wanted.object, wanted.outcome, wanted.address, wanted.since) == (
        "ann", "experiment", "experiment/7", "failed", "10.0.0.1", 1735689600.0,
    )  # fmt: skip
    assert request.limit == 7
    done = cli("audit", "--since", "yesterday")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "--since" in done.err
    assert "--csv" in cli("audit", "--csv", "--json").err
