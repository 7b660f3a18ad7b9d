"""Measures how fast a metric with a million reports is read in a thousand points, beside TensorBoard.

A gateway's writer stores `--reports` reports of one trial with four metrics each, in batches as trial runners send
them, on SQLite and on PostgreSQL (in a temporary cluster of `pg_virtualenv`, Debian's package postgresql-common). Then
`--runs` fresh readers read one metric in `--points` points; the first values must be the ends and the extremes of the
series. The same is read once without the summaries, as it would be in an earlier version. The peer is TensorBoard: its
EventAccumulator reads an event file of one metric of as many reports in a fresh process, and keeps `--points` values,
chosen at random.

Run it with `python -m benchmarks.long_series`. It exits with 1 when a median is above the target.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from benchmarks.machine import describe_machine
from benchmarks.peer import PeersMissing, peer_python
from benchmarks.process import run_benchmark
from benchmarks.statistic import summarise
from gangline.domain.history import MetricsPoint
from services.gateway.history.condense import read_reports
from services.gateway.history.database import open_database
from services.gateway.history.metric_block import BLOCK_REPORTS
from services.gateway.history.reader import Reader
from services.gateway.history.writer import Writer
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord, Scope

WORKLOAD = Path(__file__).parent / "workload"
TARGET_SECONDS = 0.3
BATCH_REPORTS = 1000
METRICS = ("loss", "accuracy", "lr", "gradient_norm")
TENSORBOARD = ("tensorboard==2.20.0",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=int, default=1_000_000)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--postgresql", action="store_true", help="measure on the PostgreSQL that PGHOST and PGPORT name"
    )
    arguments = parser.parse_args()
    if arguments.postgresql:
        sys.exit(_measure("PostgreSQL", _postgresql_url(), arguments))
    print(describe_machine())
    print(f"{arguments.reports:,} reports of {len(METRICS)} metrics; one metric is read in {arguments.points:,} points")
    with tempfile.TemporaryDirectory(prefix="gl-history-") as folder:
        is_missed = _measure("SQLite", f"sqlite:///{folder}/history.db", arguments)
    is_missed |= _measure_postgresql(arguments)
    _measure_tensorboard(arguments)
    sys.exit(is_missed)


def _measure_postgresql(arguments: argparse.Namespace) -> int:
    if shutil.which("pg_virtualenv") is None:
        print("PostgreSQL: not measured, because pg_virtualenv is missing (Debian: apt-get install postgresql)")
        return 0
    options = [f"--{name}={getattr(arguments, name)}" for name in ("reports", "points", "runs")]
    inside = [sys.executable, "-m", "benchmarks.long_series", "--postgresql", *options]
    return subprocess.run(["pg_virtualenv", "-t", *inside], check=False).returncode


def _postgresql_url() -> str:
    host, port = os.environ["PGHOST"], os.environ["PGPORT"]
    return f"postgresql://{os.environ['PGUSER']}:{os.environ['PGPASSWORD']}@{host}:{port}/postgres"


def _measure(name: str, url: str, arguments: argparse.Namespace) -> int:
    """Prints the figures of one database and returns whether the target was missed."""
    engine = open_database(url)
    losses = _losses(arguments.reports)
    began = time.perf_counter()
    asyncio.run(_store(engine, losses))
    stored = time.perf_counter() - began
    seconds = [asyncio.run(_read(engine, losses, arguments.points)) for _ in range(arguments.runs)]
    began = time.perf_counter()
    with engine.connect() as connection:
        reports = read_reports(connection, "1.1", "training", 0, arguments.reports)
    plain = time.perf_counter() - began
    assert len(reports) == arguments.reports
    engine.dispose()
    read = summarise([1000 * second for second in seconds])
    is_met = read.p50 <= 1000 * TARGET_SECONDS
    print(
        f"{name:11} median {read.p50:.1f} ms ({read.minimum:.1f} to {1000 * max(seconds):.1f}), "
        f"at most {1000 * TARGET_SECONDS:.0f}: {'yes' if is_met else 'NO'}; all reports read one by one {plain:.1f} s; "
        f"stored {arguments.reports / stored:,.0f} reports a second",
        flush=True,
    )
    return 0 if is_met else 1


def _losses(num_reports: int) -> list[float]:
    draw = random.Random(0)
    return [draw.gauss(1, 0.1) for _ in range(num_reports)]


async def _store(engine: sa.Engine, losses: list[float]) -> None:
    writer = Writer(engine, lambda _: None)
    for start in range(0, len(losses), BATCH_REPORTS):
        records = tuple(
            IngestRecord(batches, 1e9 + batches, MetricsPoint("training", batches, dict.fromkeys(METRICS, loss)))
            for batches, loss in enumerate(losses[start : start + BATCH_REPORTS], start + 1)
        )
        await writer.store(IngestBatch("1.1.1/0", 1, "1.1", records))
    await writer.close()


async def _read(engine: sa.Engine, losses: list[float], num_points: int) -> float:
    """Returns the seconds of one reader. Raises AssertionError when a point that has to be there is missing."""
    reader = Reader(engine)
    began = time.perf_counter()
    series = await reader.series(Scope(1, "1.1", "training"), METRICS[0], num_points)
    seconds = time.perf_counter() - began
    reader.close()
    values = [point.value for point in series.points]
    assert len(values) <= num_points
    assert (values[0], values[-1]) == (losses[0], losses[-1])
    assert (min(values), max(values)) == (min(losses), max(losses))
    assert series.num_values == len(losses) > BLOCK_REPORTS
    return seconds


def _measure_tensorboard(arguments: argparse.Namespace) -> None:
    try:
        with peer_python(TENSORBOARD) as python, tempfile.TemporaryDirectory(prefix="gl-history-") as folder:
            command = [str(python), str(WORKLOAD / "board.py"), folder, str(arguments.reports)]
            subprocess.run([*command, "write"], check=True)
            seconds = [
                float(
                    subprocess.run(
                        [*command, "read", str(arguments.points)], check=True, capture_output=True, text=True
                    ).stdout
                )
                for _ in range(arguments.runs)
            ]
    except PeersMissing as reason:
        print(f"TensorBoard: not measured: {reason}")
        return
    read = summarise(seconds)
    print(
        f"TensorBoard median {read.p50:.1f} s ({read.minimum:.1f} to {max(seconds):.1f}). "
        "Later reads are from its memory. Its values are chosen at random, so the extremes may be missing"
    )


if __name__ == "__main__":
    run_benchmark(main)
