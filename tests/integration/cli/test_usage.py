"""`gangline usage`: its table, its JSON and its refusals."""

from __future__ import annotations

import json
import time

import pytest

from gangline.v1 import types_pb2
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway


def test_usage_prints_slot_hours(cli: Cli, gateway: StandInGateway) -> None:
    gateway.usage.entries.add(key="ann", gpu_slot_seconds=7200.0, cpu_slot_seconds=90.0, num_allocations=3)
    ran = cli("usage", "--since", "7d")
    assert ran.status == 0
    assert ran.out == ("OWNER  GPU SLOT-HOURS  CPU SLOT-HOURS  ALLOCATIONS\nann    2.000           0.025           3\n")
    [request] = gateway.usage_requests
    assert abs(request.since - (time.time() - 7 * 86400)) < 60
    assert (request.until, request.by) == (0.0, types_pb2.USAGE_GROUP_OWNER)


def test_usage_of_a_period_by_experiment_as_json(cli: Cli, gateway: StandInGateway) -> None:
    gateway.usage.entries.add(key="7", gpu_slot_seconds=1.5, num_allocations=1)
    ran = cli("usage", "--since", "2026-01-01T00:00Z", "--until", "2026-01-02T00:00Z", "--by", "experiment", "--json")
    [entry] = json.loads(ran.out)["entries"]
    assert entry == {"key": "7", "cpu_slot_seconds": 0.0, "gpu_slot_seconds": 1.5, "num_allocations": 1}
    [request] = gateway.usage_requests
    assert (request.until - request.since, request.by) == (86400.0, types_pb2.USAGE_GROUP_EXPERIMENT)


def test_an_empty_period_says_so(cli: Cli) -> None:
    assert cli("usage", "--since", "1h").out == "no slots were held in this period\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--since", "soon"), "error: --since 'soon' is no time; give a date or a time such as"),
        (("--since", "7d", "--until", "7x"), "error: --until '7x' is no time; give a date or a time such as"),
        (("--since", "1d", "--until", "2d"), "error: the period ends before it begins; give --until a later time"),
        (("--since", "9999-01-01"), "error: the period begins in the future; give --since an earlier time"),
    ],
)
def test_bad_periods_are_refused_in_one_line(
    cli: Cli, gateway: StandInGateway, options: tuple[str, ...], message: str
) -> None:
    ran = cli("usage", *options)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(message)
    assert gateway.calls == []
