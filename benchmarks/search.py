"""Measures searches: `adaptive_asha` against `random` on real trials, and a simulated search of 10,000 trials.

1. Both searchers run on one cluster, with the same number of trials, the same hyperparameters' ranges, the same longest
   training and the same seed of each run. The trial is examples/digits. For each run it prints the best accuracy, the
   batches that all trials together have trained, and the seconds.
2. The scheduler's own transitions run a search of `--simulated` trials in memory, without etcd and without processes.
   Each trial reports a validation at each of its rungs. It prints the events a second of the searcher, with everything
   that the leader does for an event, and the seconds in which a new leader reads the records and rebuilds the searcher.

Run it with `python -m benchmarks.search`. The median of `--runs` runs counts; the spread follows in brackets.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.statistic import summarise
from gangline.client import Client
from gangline.client.transfer.packing import pack_code
from gangline.domain.allocation import Allocation, ExitReport, Request
from gangline.domain.experiment import Experiment, Trial
from gangline.domain.history import MetricsPoint
from gangline.domain.id import allocation_id
from gangline.domain.resource import Agent, Slot
from gangline.domain.search import Search
from gangline.domain.state import ExitKind, State
from services.common.etcd import KeyValue, Listing, Put
from services.scheduler.placement import Assignment
from services.scheduler.searcher.draw import warm_up
from services.scheduler.searcher.replay import replay
from services.scheduler.state.codec import operations_of
from services.scheduler.state.records import SchedulerState, StateChange, get
from services.scheduler.state.rules import Rules
from services.scheduler.state.settled import settled_of
from services.scheduler.state.state_store import state_of
from services.scheduler.transition.availability import registered
from services.scheduler.transition.end import continue_change
from services.scheduler.transition.exit import member_exited
from services.scheduler.transition.place import place
from services.scheduler.transition.report import validated
from services.scheduler.transition.submit_check import AdmittedSubmission, submit_experiment

DIGITS = Path(__file__).parent.parent / "examples" / "digits"
SEARCHERS = ("random", "adaptive_asha")
MOST_SECONDS = 3600.0
RULES = Rules()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--trials", type=int, default=32, help="of each real search")
    parser.add_argument("--epochs", type=int, default=16, help="the longest training of a trial")
    parser.add_argument("--slots", type=int, default=2, help="artificial slots of the cluster's one agent")
    parser.add_argument("--simulated", type=int, default=10_000, help="trials of the simulated search")
    arguments = parser.parse_args()
    print(describe_machine())
    measure_simulated(arguments.simulated, arguments.runs)
    measure_real(arguments.trials, arguments.epochs, arguments.slots, arguments.runs)


def measure_real(num_trials: int, epochs: int, slots: int, num_runs: int) -> None:
    rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in SEARCHERS}
    with running_cluster(1, slots) as (client, _):
        code = pack_code(DIGITS)
        client.upload_code(code)
        for run in range(num_runs):
            for name in SEARCHERS:
                row = run_search(client, code.sha256, digits_config(name, num_trials, epochs, run))
                rows[name].append(row)
                print(f"run {run + 1}, {name}: accuracy {row[0]:.4f}, {row[1]:.0f} batches, {row[2]:.1f} s", flush=True)
    for name, results in rows.items():
        accuracy, batches, seconds = zip(*results, strict=True)
        print(
            f"{name}: best accuracy {describe(accuracy, '.4f')}, batches {describe(batches, '.0f')}, "
            f"seconds {describe(seconds, '.1f')}"
        )


def digits_config(searcher: str, num_trials: int, epochs: int, seed: int) -> str:
    return json.dumps(
        {
            "name": f"digits-{searcher}-{seed}",
            "entrypoint": "model_def:DigitsTrial",
            "hyperparameters": {
                "global_batch_size": 64,
                "learning_rate": {"type": "log", "minval": -4, "maxval": 0},
                "decay": {"type": "double", "minval": 0.7, "maxval": 1.0},
                "width": {"type": "categorical", "vals": [4, 8, 16]},
            },
            "searcher": {
                "name": searcher,
                "metric": "accuracy",
                "smaller_is_better": False,
                "max_length": {"epochs": epochs},
                "max_trials": num_trials,
            },
            # A learning rate of 1 may make the loss infinite, which is a bad result and no failure.
            "optimizations": {"nonfinite_loss": "ignore"},
            "checkpoint_policy": "none",
            "reproducibility": {"experiment_seed": seed},
        }
    )


def run_search(client: Client, code_sha256: str, config: str) -> tuple[float, float, float]:
    """Returns the best accuracy, the batches of all trials together, and the seconds."""
    began_at = time.monotonic()
    number = client.submit_experiment(config, code_sha256).experiment.id
    view = client.wait_experiment(number, MOST_SECONDS)
    seconds = time.monotonic() - began_at
    trials = [trial.trial for trial in view.trials]
    best = max(trial.best_validation for trial in trials if trial.best_validation is not None)
    return best, float(sum(trial.batches_completed for trial in trials)), seconds


def measure_simulated(num_trials: int, num_runs: int) -> None:
    warm_up()
    rates, loads, num_events = [], [], 0
    for run in range(num_runs):
        simulation = SimulatedSearch(num_trials, seed=run)
        began_at = time.perf_counter()
        simulation.run()
        seconds = time.perf_counter() - began_at
        num_events = get(simulation.state, Search, 1).num_events
        rates.append(num_events / seconds)
        loads.append(load_again(simulation.state))
        print(f"run {run + 1}: {num_events} events in {seconds:.1f} s, loaded in {loads[-1]:.2f} s", flush=True)
    print(
        f"simulated search of {num_trials} trials, {num_events} events: {describe(rates, '.0f')} events a second, "
        f"load and replay {describe(loads, '.2f')} s"
    )


def load_again(state: SchedulerState) -> float:
    """Returns the seconds in which a new leader decodes all records and replays the search."""
    change = StateChange(puts=tuple(record for table in state.tables.values() for record in table.values()))
    items = [KeyValue(put.key, put.value, 0, 0) for put in operations_of(change) if isinstance(put, Put)]
    began_at = time.perf_counter()
    loaded = state_of(Listing(tuple(items), 1))
    replay(loaded, get(loaded, Search, 1), settled_of(get(loaded, Experiment, 1).config_json))
    return time.perf_counter() - began_at


class SimulatedSearch:
    """One adaptive_asha search over the scheduler's transitions. There is always room, and an event takes no time."""

    def __init__(self, num_trials: int, seed: int) -> None:
        self.state = SchedulerState()
        self._rng = random.Random(seed)
        self._now = 1.0
        config = simulated_config(num_trials)
        section = settled_of(config).searcher
        self._lengths = sorted({rung.length for bracket in section.brackets for rung in bracket.rungs})
        self._apply(registered(self.state, Agent("a1", slots=tuple(Slot(f"a1/{n}") for n in range(64))), RULES, 1.0))
        self._apply(
            submit_experiment(
                self.state, AdmittedSubmission("r", "ann", settled_of(config), config, "0", seed), RULES, 1.0
            )
        )

    def run(self) -> None:
        """Runs until the experiment has ended."""
        while get(self.state, Experiment, 1).state is not State.TERMINAL:
            for request in list(self.state.all_of(Request)):
                self._apply(place(self.state, Assignment(request.trial_id, {"a1": 1}), epoch=1, rules=RULES, now=1.0))
            for allocation in list(self.state.all_of(Allocation)):
                self._train(allocation)

    def _train(self, allocation: Allocation) -> None:
        """Trains a trial to its next rung."""
        trial = get(self.state, Trial, allocation.trial_id)
        done = trial.validated_batches or 0
        batches = next((length for length in self._lengths if length > done), None)
        if batches is not None:
            point = MetricsPoint("validation", batches, {"loss": self._rng.random() / batches})
            self._apply(validated(self.state, trial.id, point, rules=RULES, now=self._now))
        live = self.state.find(Allocation, allocation_id(trial.id, trial.attempts))
        if live is not None and live.state is State.STOPPING:
            report = ExitReport("a1", ExitKind.PREEMPTED, "stopped", ended_at=self._now)
            self._apply(member_exited(self.state, live.id, report, RULES, self._now))

    def _apply(self, change: StateChange) -> None:
        """Applies the change, and all that the leader does because of it."""
        self._now += 0.01
        while change:
            self.state.apply(change, self.state.revision + 1)
            change = continue_change(self.state, 1, RULES, self._now)


def simulated_config(num_trials: int) -> str:
    config: dict[str, Any] = {
        "entrypoint": "python3 t.py",
        "hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": -1}},
        "searcher": {
            "name": "adaptive_asha",
            "metric": "loss",
            "max_length": {"batches": 4096},
            "max_trials": num_trials,
            "max_concurrent_trials": 64,
        },
    }
    return json.dumps(config)


def describe(samples: Sequence[float], form: str) -> str:
    """Returns the median with the least and the largest sample."""
    summary = summarise(samples)
    return f"{summary.p50:{form}} [{summary.minimum:{form}} to {summary.maximum:{form}}]"


if __name__ == "__main__":
    run_benchmark(main)
