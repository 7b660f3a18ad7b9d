"""An ended experiment with its files, put where a scheduler and gateways find them: etcd, storage and history."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import Cluster, Counter
from gangline.domain.search import Search, SearchLog
from gangline.domain.state import DeletionStage, Outcome, State
from gangline.domain.storage.partial import Writer, partial_name
from gangline.domain.storage.storage_fault import MARKER_FILE
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, Put
from tests.support.scheduler import config_json

CLUSTER_ID = "c1"
NUM_TRIALS = 3
TABLES = ("logs", "metrics", "newest_metrics", "progress", "ingest_cursors")


async def put_experiment(
    etcd: EtcdClient,
    storage: Path,
    experiment_id: int,
    code: str,
    *,
    num_checkpoints: int = 2,
    owner: str = "alice",
    deletion: DeletionStage | None = None,
) -> None:
    """Writes the records and the files. code: a character that the sha256 of its archive consists of. deletion: the
    stage in which it is found."""
    config = config_json(checkpoint_storage={"save_trial_latest": 100})
    ended = Experiment(
        experiment_id, "old", owner, config, code * 64, State.TERMINAL, Outcome.COMPLETED,
        request_id=f"r{experiment_id}", created_at=1.0, ended_at=2.0, deletion=deletion,
    )  # fmt: skip
    trials = [
        Trial(f"{experiment_id}.{number}", experiment_id, number, state=State.TERMINAL, outcome=Outcome.COMPLETED)
        for number in range(1, NUM_TRIALS + 1)
    ]
    checkpoints = [
        Checkpoint(
            f"e{experiment_id}-{number}", trials[0].id, experiment_id, number,
            str(storage / "checkpoints" / f"e{experiment_id}-{number}"), {"weights": 1}, created_at=1.0,
        )
        for number in range(num_checkpoints)
    ]  # fmt: skip
    make_files(storage, experiment_id, code, [checkpoint.id for checkpoint in checkpoints])
    records = [
        Put(keys.experiment(experiment_id), wire.encode(ended)),
        Put(keys.search(experiment_id), wire.encode(Search(experiment_id, 7))),
        *(Put(keys.search_log(log.id), wire.encode(log)) for log in (SearchLog(experiment_id, 0),)),
        *(Put(keys.trial(trial.id), wire.encode(trial)) for trial in trials),
        *(Put(keys.checkpoint(checkpoint.id), wire.encode(checkpoint)) for checkpoint in checkpoints),
        Put(keys.NEXT_EXPERIMENT, wire.encode(Counter(experiment_id + 1))),
        Put(keys.CLUSTER, wire.encode(Cluster(1, CLUSTER_ID, 1.0))),
    ]
    await etcd.commit(records)


def make_files(storage: Path, experiment_id: int, code: str, checkpoint_ids: Sequence[str]) -> None:
    partial = partial_name(Writer(CLUSTER_ID, f"{experiment_id}.1.1"), "half")
    places = [
        *(f"checkpoints/{checkpoint_id}/{name}" for checkpoint_id in checkpoint_ids for name in ("w", "metadata.json")),
        f"checkpoints/{partial}/tensors/0",
        *(f"tensorboard/{experiment_id}.{number}/rank1/events" for number in range(1, NUM_TRIALS + 1)),
        f"code/{code * 64}.tar.gz",
    ]
    for place in places:
        (storage / place).parent.mkdir(parents=True, exist_ok=True)
        (storage / place).write_text(place)


def fill_history(database: Path, experiment_id: int, num_lines: int = 10) -> None:
    """Adds rows of the first trial to each table. The gateway has made the tables."""
    trial_id = f"{experiment_id}.1"
    with closing(sqlite3.connect(database, timeout=20)) as connection, connection:
        for number in range(num_lines):
            connection.execute(
                "insert into logs (experiment_id, trial_id, at, rank, agent_id, stream, text) values (?,?,?,?,?,?,?)",
                (experiment_id, trial_id, 1.0, 0, "a1", "stdout", f"line {number}"),
            )
        connection.execute(
            "insert into metrics (experiment_id, trial_id, at, metric_group, batches_completed, metrics_json) "
            "values (?,?,?,?,?,?)",
            (experiment_id, trial_id, 1.0, "training", 1, "{}"),
        )
        connection.execute("insert into newest_metrics values (?,?,?,?,?)", (trial_id, "training", 1, "{}", 1))
        connection.execute("insert into progress values (?,?,?,?,?,?)", (trial_id, 1.0, 1, 2, 1.0, 1))
        connection.execute("insert into ingest_cursors values (?,?,?)", (f"{trial_id}.1/0", 5, 1.0))


def count_rows(database: Path, experiment_id: int) -> dict[str, int]:
    """Returns the rows that belong to the experiment, by table, without empty tables."""
    where = {"ingest_cursors": "spool_id like ?", "newest_metrics": "trial_id like ?", "progress": "trial_id like ?"}
    with closing(sqlite3.connect(database, timeout=20)) as connection:
        counts = {
            table: connection.execute(
                f"select count(*) from {table} where {where.get(table, 'trial_id like ?')}", (f"{experiment_id}.%",)
            ).fetchone()[0]
            for table in TABLES
        }
    return {table: number for table, number in counts.items() if number}


def list_files(storage: Path) -> list[str]:
    """Returns the paths of all files but the marker, which stays as long as the storage."""
    files = (str(path.relative_to(storage)) for path in storage.rglob("*") if path.is_file())
    return sorted(path for path in files if path != MARKER_FILE)


async def list_keys(etcd: EtcdClient, experiment_id: int) -> list[str]:
    """Returns the keys of the experiment and of all that belongs to it."""
    listing = await etcd.list(keys.ROOT)
    prefixes = (
        keys.experiment(experiment_id),
        keys.search(experiment_id),
        f"{keys.SEARCH_LOGS}{experiment_id}/",
        f"{keys.TRIALS}{experiment_id}.",
        f"{keys.CHECKPOINTS}e{experiment_id}-",
    )
    return [item.key for item in listing.items if item.key.startswith(prefixes)]
