"""`gangline fusion`: its text, JSON and exit status, and one line for each mistake."""

from __future__ import annotations

import json
import re
import time

import pytest

from gangline.cli.output.text import format_bytes
from gangline.v1 import types_pb2
from tests.integration.cli.conftest import Cli, Ran
from tests.support.stand_in_gateway import StandInGateway


@pytest.fixture
def remembered(gateway: StandInGateway) -> StandInGateway:
    now = time.time()
    gateway.fusion = [
        types_pb2.FusionRecord(
            key="ab-01", summary="12.5 M parameters, 2 ranks", bucket_bytes=[3 << 20] * 16, total_bytes=48 << 20,
            steps=24, trial_id="3.1",
            default_step_seconds=0.7, tuned_step_seconds=0.56, created_at=now - 7200,
        ),
        types_pb2.FusionRecord(key="ab-02", bucket_bytes=[1 << 20, 3 << 20], total_bytes=48 << 20, created_at=now),
        types_pb2.FusionRecord(key="ab-03", steps=4, created_at=now),
    ]  # fmt: skip
    return gateway


def test_list_shows_what_was_found(cli: Cli, remembered: StandInGateway) -> None:
    ran = cli("fusion", "list")
    assert ran.status == 0
    first, second, third = ran.out.splitlines()[1:]
    size, small = format_bytes(3 << 20), format_bytes(1 << 20)
    assert re.fullmatch(rf"ab-01 +12.5 M parameters, 2 ranks +16 of ~{size} +1.25x +24 +3.1 +\S.*", first)
    assert f"capped at {small}, {size}" in second
    assert "torch's" in third
    listed = json.loads(cli("fusion", "list", "--json").out)
    assert [record["key"] for record in listed] == ["ab-01", "ab-02", "ab-03"]


def test_empty_list_says_how_to_fill_it(cli: Cli, gateway: StandInGateway) -> None:
    text = "nothing is remembered yet; set optimizations.auto_tune_tensor_fusion\n"
    assert cli("fusion", "list") == Ran(0, text, "")


def test_forgetting_one_and_all(cli: Cli, remembered: StandInGateway) -> None:
    assert cli("fusion", "forget", "ab-02") == Ran(0, "forgotten: ab-02\n", "")
    assert json.loads(cli("fusion", "forget", "--all", "--json").out) == {"forgotten": ["ab-01", "ab-03"]}
    assert remembered.fusion == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zz-99",), "nothing is remembered under zz-99; list it with: gangline fusion list"),
        ((), "name one key, or say --all; gangline fusion list shows the keys"),
        (("ab-01", "--all"), "name one key, or say --all; gangline fusion list shows the keys"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, remembered: StandInGateway, arguments: tuple[str, ...], message: str) -> None:
    assert cli("fusion", "forget", *arguments) == Ran(2, "", f"error: {message}\n")
    assert len(remembered.fusion) == 3
