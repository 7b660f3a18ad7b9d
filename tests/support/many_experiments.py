"""Records of many ended experiments, written straight into etcd: with one trial each, whose values follow from its
number."""

from __future__ import annotations

import json
from dataclasses import replace

from gangline.config import parse_config
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.state import Outcome, State
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, Put

RARE = "rare"
OWNERS = ("ann", "bob", "alice")
# Writes in one transaction of etcd, which allows 128.
_MAX_PUTS = 120
_CONFIG = """
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters: {global_batch_size: 64, learning_rate: 0.1}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {epochs: 3}}
"""


def make_experiment(number: int, config_json: str = "") -> Experiment:
    """Returns the experiment of this number; one in a thousand has the label RARE."""
    return Experiment(
        number,
        f"digits-{number}",
        OWNERS[number % len(OWNERS)],
        config_json or parse_config(_CONFIG)[0].model_dump_json(),
        "a" * 64,
        State.TERMINAL,
        Outcome.FAILED if number % 10 == 0 else Outcome.COMPLETED,
        created_at=1.7e9 + 60 * number,
        ended_at=1.7e9 + 60 * number + 30,
        labels=(RARE,) if number % 1000 == 0 else (),
    )


def make_trial(number: int) -> Trial:
    hyperparameters = {"global_batch_size": 64, "lr": number / 1000, "optimizer": "adam" if number % 2 else "sgd"}
    return Trial(
        f"{number}.1",
        number,
        1,
        hyperparameters_json=json.dumps(hyperparameters),
        state=State.TERMINAL,
        outcome=Outcome.FAILED if number % 10 == 0 else Outcome.COMPLETED,
        best_validation=(number * 7919 % 10_007) / 10_007,
        validation_json=json.dumps({"accuracy": (number * 7919 % 10_007) / 10_007, "loss": 1 / number}),
        created_at=1.7e9 + 60 * number,
        ended_at=1.7e9 + 60 * number + 30,
        batches_completed=number,
        batches_total=number,
    )


async def put_experiments(etcd: EtcdClient, num_experiments: int) -> None:
    """Writes the experiments 1 to `num_experiments`."""
    first = make_experiment(1)
    puts: list[Put] = []
    for number in range(1, num_experiments + 1):
        experiment = make_experiment(number, first.config_json)
        puts.append(Put(keys.experiment(number), wire.encode(experiment)))
        puts.append(Put(keys.trial(f"{number}.1"), wire.encode(make_trial(number))))
    for start in range(0, len(puts), _MAX_PUTS):
        await etcd.commit(puts[start : start + _MAX_PUTS])


def renamed(number: int, name: str) -> Put:
    """Returns the write that gives an experiment another name."""
    return Put(keys.experiment(number), wire.encode(replace(make_experiment(number), name=name)))
