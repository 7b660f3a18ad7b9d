"""Stored content of one trial never breaks the answers to other users: HTTP answers stay valid JSON."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from gangline.domain.allocation import Allocation, ExitReport, Member, Timeline
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.fusion import FusionRecord
from gangline.domain.resource import Agent
from gangline.domain.state import ExitKind, State
from gangline.protocol import wire
from gangline.v1 import ingest_pb2
from services.common import keys
from services.common.etcd import EtcdClient, Put
from services.gateway.history import table
from services.gateway.history.database import open_database
from tests.support.gateway import Client
from tests.support.stand_in_leader import StandInLeader
from tests.support.wait import until_async

_ABSURD = [1e308, -1e308, math.inf, math.nan, 2**62 + 0.0]
_BAD_METADATA = ["no JSON", "[" * 100_000, '{"a": NaN, "b": "\\ud800"}', '{"a": ' + "9" * 400 + "}"]
_PATHS = [
    "checkpoints", "tasks", "experiments", "experiments/7", "experiments/7/trials", "experiments/7/checkpoints",
    "experiments/7/logs", "experiments/7/metrics", "trials/7.1", "fusion", "job-queues", "jobs/7/explanation",
    "cluster", "agents", "agents/a1",
]  # fmt: skip


def _strict(text: str) -> Any:
    """Parsed as browsers and other programs do it: NaN and Infinity are errors."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


async def _store(etcd: EtcdClient, absurd: float, metadata_json: str) -> None:
    """As an earlier version has taken it over from a trial."""
    timeline = Timeline(absurd, absurd, absurd, absurd, absurd, absurd, absurd)
    failure = ExitReport("a1", ExitKind.USER_ERROR, "lies", failed_at=absurd, ended_at=absurd)
    experiment = Experiment(7, "n", "alice", "{}", "a" * 64, State.RUNNING, created_at=1.0)
    trial = Trial(
        "7.1", 7, 1, state=State.RUNNING, timeline=timeline, last_failure=failure, seconds_per_batch=absurd,
        best_validation=absurd, validation_json='{"loss": NaN, "best": Infinity}', batches_completed=-(2**62),
    )  # fmt: skip
    allocation = Allocation(
        "7.1.1", "7.1", 7, 1, 1, "default", (Member("a1", 0, ("a1/0",)),), State.RUNNING, exits=(failure,),
        created_at=absurd, timeline=timeline,
    )  # fmt: skip
    checkpoint = Checkpoint(
        "c1", "7.1", 7, -5, "/x/c1", {"w": -1}, metadata_json=metadata_json, created_at=absurd
    )  # fmt: skip
    tuned = FusionRecord("ab-cd", default_step_seconds=absurd, tuned_step_seconds=1e-300, created_at=absurd)
    await etcd.commit(
        [
            Put(keys.experiment(7), wire.encode(experiment)),
            Put(keys.trial("7.1"), wire.encode(trial)),
            Put(keys.allocation("7.1.1"), wire.encode(allocation)),
            Put(keys.checkpoint("c1"), wire.encode(checkpoint)),
            Put(keys.fusion("ab-cd"), wire.encode(tuned)),
            Put(keys.agent("a1"), wire.encode(Agent("a1", registered_at=absurd, lost_at=absurd))),
        ]
    )


async def _answers(client: Client) -> dict[str, str]:
    """By path, once the records are mirrored."""

    async def is_there() -> bool:
        return (await client.http.get("/api/v1/experiments/7")).status_code != 404

    await until_async(is_there, "the gateway showing the experiment")
    answers = {path: await client.http.get(f"/api/v1/{path}") for path in _PATHS}
    assert {path: answer.status_code for path, answer in answers.items() if answer.status_code != 200} == {}
    return {path: answer.text for path, answer in answers.items()}


@pytest.mark.parametrize("absurd", _ABSURD)
async def test_absurd_records_leave_every_page_readable(
    client: Client, etcd: EtcdClient, leader: StandInLeader, tmp_path: Path, absurd: float
) -> None:
    await _store(etcd, absurd, "{}")
    engine = open_database(f"sqlite:///{tmp_path}/gateway.db")
    place = {"experiment_id": 7, "trial_id": "7.1", "at": 1e308 if math.isnan(absurd) else absurd}
    with engine.begin() as connection:
        connection.execute(
            sa.insert(table.logs), {**place, "rank": 0, "agent_id": "a1", "stream": "stdout", "text": "line"}
        )
        connection.execute(
            sa.insert(table.metrics),
            {**place, "metric_group": "training", "batches_completed": 1, "metrics_json": '{"loss": NaN}'},
        )
    engine.dispose()
    answers = {path: _strict(text) for path, text in (await _answers(client)).items()}
    if math.isfinite(absurd):
        assert answers["checkpoints"]["checkpoints"][0]["reportTime"] is None
    assert answers["experiments/7/metrics"]["metrics"][0]["point"]["metrics"] == {"loss": None}


@pytest.mark.parametrize("metadata_json", _BAD_METADATA)
async def test_metadata_of_a_checkpoint_breaks_no_list(
    client: Client, etcd: EtcdClient, leader: StandInLeader, metadata_json: str
) -> None:
    await _store(etcd, 1.0, metadata_json)
    assert _strict((await _answers(client))["checkpoints"])["checkpoints"][0]["id"] == "c1"


async def test_values_that_no_reader_could_show_are_left_out_at_intake(
    client: Client, etcd: EtcdClient, leader: StandInLeader
) -> None:
    """And the rest of the report stays, as does what a later page shows."""
    await _store(etcd, 1.0, "{}")
    await _answers(client)
    texts = [
        "no JSON",
        "[" * 100_000 + "]" * 100_000,
        '{"deep": ' + "[" * 40 + "]" * 40 + ', "note": "kept"}',
        '{"odd": ["\\ud800", NaN, 1e999, ' + "9" * 400 + "]}",
    ]
    records = [
        ingest_pb2.IngestRecord(
            sequence=number,
            at=1.0,
            metrics=ingest_pb2.MetricsPoint(group="training", metrics={"loss": 1.0}, values_json=text),
        )
        for number, text in enumerate(texts, 1)
    ]
    request = ingest_pb2.IngestRequest(spool_id="7.1.1/0", trial_id="7.1", records=records)
    stream = client.ingest.Ingest(iter([request]), metadata=client.runner_metadata("7.1.1"))
    assert [answer.stored_sequence async for answer in stream] == [len(records)]
    answers = {path: _strict(text) for path, text in (await _answers(client)).items()}
    points = [row["point"] for row in answers["experiments/7/metrics"]["metrics"]]
    assert [point["metrics"] for point in points] == [{"loss": 1.0}] * 4
    assert [point["values"] for point in points[:3]] == [None, None, {"note": "kept"}]
    assert points[3]["values"]["odd"][:3] == ["\ufffd", None, None]


async def test_records_with_absurd_numbers_are_stored_with_plausible_ones(
    client: Client, etcd: EtcdClient, leader: StandInLeader, tmp_path: Path
) -> None:
    """And the whole batch is: a database that refused one of them would have its runner send all of them for ever."""
    await _store(etcd, 1.0, "{}")
    await _answers(client)
    records: list[ingest_pb2.IngestRecord] = []
    for absurd in _ABSURD:
        number = len(records)
        line = ingest_pb2.LogLine(rank=0, agent_id="a1", stream="stdout", text="line")
        point = ingest_pb2.MetricsPoint(group="training", batches_completed=-1, metrics={"loss": absurd})
        progress = ingest_pb2.ProgressPoint(batches_completed=1, batches_total=-(2**60), samples_per_second=absurd)
        records += [
            ingest_pb2.IngestRecord(sequence=number + 1, at=absurd, log=line),
            ingest_pb2.IngestRecord(sequence=number + 2, at=absurd, metrics=point),
            ingest_pb2.IngestRecord(sequence=number + 3, at=absurd, progress=progress),
        ]
    request = ingest_pb2.IngestRequest(spool_id="7.1.1/0", trial_id="7.1", records=records)
    stream = client.ingest.Ingest(iter([request]), metadata=client.runner_metadata("7.1.1"))
    assert [answer.stored_sequence async for answer in stream] == [len(records)]

    answers = {path: _strict(text) for path, text in (await _answers(client)).items()}
    assert len(answers["experiments/7/logs"]["logs"]) == len(_ABSURD)
    points = [row["point"] for row in answers["experiments/7/metrics"]["metrics"]]
    assert [point["batchesCompleted"] for point in points] == [0] * len(_ABSURD)
    assert [point["metrics"]["loss"] for point in points] == [1e308, -1e308, None, None, float(2**62)]
    progress = answers["trials/7.1"]["newest"]["progress"]
    assert (progress["batchesTotal"], progress["samplesPerSecond"]) == (0, 0.0)
    engine = open_database(f"sqlite:///{tmp_path}/gateway.db")
    with engine.connect() as connection:
        times = [*connection.scalars(sa.select(table.logs.c.at)), *connection.scalars(sa.select(table.metrics.c.at))]
    engine.dispose()
    assert all(abs(at - time.time()) < 60 for at in times)

    scraped = (await client.http.get("/metrics")).text
    [replaced] = [
        sample.value
        for family in text_string_to_metric_families(scraped)
        for sample in family.samples
        if sample.name == "gangline_gateway_ingest_implausible_values_total"
    ]
    assert replaced >= len(records)


async def test_text_of_users_comes_into_no_label(client: Client, etcd: EtcdClient, leader: StandInLeader) -> None:
    """Names, groups, paths and methods: the series stay few, whatever is asked for and delivered."""
    await _store(etcd, 1.0, "{}")
    await _answers(client)
    evil = 'evil"},\n\\'
    renamed = Experiment(7, evil, evil, "{}", "a" * 64, State.RUNNING, created_at=1.0)
    await etcd.commit([Put(keys.experiment(7), wire.encode(renamed))])
    point = ingest_pb2.MetricsPoint(group=evil, batches_completed=1, metrics={evil: 0.5})
    line = ingest_pb2.LogLine(agent_id=evil, stream=evil, text=evil)
    request = ingest_pb2.IngestRequest(
        spool_id="7.1.1/0", trial_id="7.1",
        records=[ingest_pb2.IngestRecord(sequence=1, metrics=point), ingest_pb2.IngestRecord(sequence=2, log=line)],
    )  # fmt: skip
    stream = client.ingest.Ingest(iter([request]), metadata=client.runner_metadata("7.1.1"))
    assert [answer.stored_sequence async for answer in stream] == [2]
    await client.http.get("/api/v1/evil/evil")
    await client.http.request("EVIL", "/api/v1/experiments")
    await client.http.get("/api/v1/experiments/7/metrics", params={"group": evil})
    async with grpc.aio.insecure_channel(client.grpc_address) as channel:
        call: Any = channel.unary_unary("/gangline.v1.GatewayService/Evil")
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"", metadata=client.metadata)
    scraped = (await client.http.get("/metrics")).text
    assert "evil" not in scraped.lower()
    assert list(text_string_to_metric_families(scraped))
    assert "evil" not in (await client.http.get("/prom/http-sd")).text


async def test_discovery_names_no_host_that_a_trial_has_reported(
    client: Client, etcd: EtcdClient, leader: StandInLeader
) -> None:
    """Also where an earlier version has stored it."""
    members = (
        Member("a1", 0, ("a1/0",), metrics_address="169.254.169.254:9009"),
        Member("a1", 1, ("a1/1",), metrics_address="10.0.0.7:9009"),
    )
    allocation = Allocation("7.1.1", "7.1", 7, 1, 1, "default", members, State.RUNNING)
    await etcd.commit(
        [
            Put(keys.agent("a1"), wire.encode(Agent("a1", metrics_address="10.0.0.7:8084"))),
            Put(keys.allocation("7.1.1"), wire.encode(allocation)),
        ]
    )

    async def find() -> Any:
        targets_by_service = {
            target["labels"]["service"]: target["targets"] for target in (await client.http.get("/prom/http-sd")).json()
        }
        return targets_by_service if "trial_runner" in targets_by_service else None

    targets_by_service = await until_async(find, "the runner being listed")
    assert targets_by_service["trial_runner"] == ["10.0.0.7:9009"]
