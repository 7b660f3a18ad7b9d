"""Four users at once: processes that each hold a connection to the gateway and submit as fast as it answers.

They are started and have connected before anything is timed. The code is uploaded once; each submit sends its
configuration, as `gangline.client.Client.submit_experiment` does.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from gangline.client import Client

NUM_CLIENTS = 4

_client: Client | None = None


def config_json(name: str, entrypoint: str, slots: int = 1) -> str:
    document = {
        "name": name,
        "entrypoint": entrypoint,
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": slots},
        "max_restarts": 0,
    }
    return json.dumps(document)


@contextmanager
def connected_clients() -> Iterator[ProcessPoolExecutor]:
    """Starts the clients of the cluster that GANGLINE_HOME names."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(NUM_CLIENTS, context, _connect) as pool:
        list(pool.map(_greet, range(NUM_CLIENTS * 4)))
        yield pool


def submit_all(pool: ProcessPoolExecutor, configs: Sequence[str], code_sha256: str) -> list[int]:
    """Returns the experiments' ids, in the order of the configurations, which the clients share out among
    themselves."""
    return list(pool.map(_submit, configs, [code_sha256] * len(configs), chunksize=1))


def _connect() -> None:
    global _client  # noqa: PLW0603 - one of each process of the pool
    _client = Client()


def _greet(_number: int) -> None:
    assert _client is not None
    _client.get_cluster()


def _submit(config: str, code_sha256: str) -> int:
    assert _client is not None
    return _client.submit_experiment(config, code_sha256).experiment.id
