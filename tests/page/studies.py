"""Experiments of the tests of the page: one that reports until it is ended, a search, and one that fails."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import Cluster

HOSTILE = "<img src=x onerror=alert(1)>\u202egnp"

# The code is user code, which knows only the core library.
_LIVE = f"""\
import time
import gangline

with gangline.core.init() as core:
    for batch in range(1, 100_000):
        metrics = {{"loss": 1 / batch, {HOSTILE!r}: batch}}
        core.train.report_training_metrics(steps_completed=batch, metrics=metrics)
        if batch % 10 == 0:
            core.train.report_validation_metrics(steps_completed=batch, metrics={{"loss": 2 / batch}})
        print(f"\\x1b[31mbatch {{batch}}\\x1b[0m <b>bold</b>", flush=True)
        if core.preempt.should_preempt():
            break
        time.sleep(0.1)
"""
_SEARCH = """\
import gangline

with gangline.core.init() as core:
    rate = gangline.get_cluster_info().trial.hparams["rate"]
    for batch in (1, 2, 3):
        core.train.report_validation_metrics(steps_completed=batch, metrics={"error": rate / batch})
    with core.checkpoint.store_path({"steps_completed": 3}) as (path, _):
        (path / "weights of a model.txt").write_text("1 2 3")
"""
NUM_LINES = 3000
NUM_METRICS = 2000
_BROKEN = f"""\
import gangline

with gangline.core.init() as core:
    metrics = {{f"group/metric {{number:04}}": number for number in range({NUM_METRICS})}}
    core.train.report_training_metrics(steps_completed=1, metrics=metrics)
    for line in range({NUM_LINES}):
        print(f"line {{line}}" + (" WARNING: odd" if line == 17 else ""))
    raise RuntimeError("the <b>data</b> ran out")
"""
# Fails once, and goes on in a second attempt.
_RESTARTED = """\
import pathlib
import time
import gangline

with gangline.core.init() as core:
    mark = pathlib.Path(gangline.get_cluster_info().trial.hparams["mark"])
    if not mark.exists():
        mark.touch()
        print("words of the first attempt", flush=True)
        raise RuntimeError("not at the first <b>try</b>")
    print("words of the second attempt", flush=True)
    core.profiler.on(sampling_interval=0.05, samples_per_report=1)
    core.train.report_training_metrics(steps_completed=1, metrics={"loss": 1.0})
    core.train.report_training_metrics(steps_completed=2, metrics={"loss": 0.01})
    core.train.report_validation_metrics(steps_completed=2, metrics={"loss": 0.5})
    time.sleep(0.5)
    core.profiler.off()
"""
# Trials of two hyperparameters, each of which validates until its search stops it.
_HALVING = """\
import gangline

with gangline.core.init() as core:
    hparams = gangline.get_cluster_info().trial.hparams
    for batch in (1, 2, 3, 4):
        error = hparams["rate"] * hparams["width"] / batch
        core.train.report_validation_metrics(steps_completed=batch, metrics={"error": error})
        if core.preempt.should_preempt():
            break
"""


def start_live(cluster: Cluster, folder: Path, *, is_paused: bool = False) -> int:
    """One trial that reports a metric and prints a line for each batch, until it is ended. is_paused: whether it waits
    to be activated."""
    config = "searcher: {name: single, metric: loss, max_length: {batches: 100000}}\nhyperparameters: {depth: 3}\n"
    return _create(cluster, folder, _LIVE, f"name: live\n{config}", *(["--paused"] if is_paused else []))


def run_search(cluster: Cluster, folder: Path) -> int:
    """Three trials that differ in two hyperparameters; each stores a checkpoint."""
    config = """\
name: search
labels: [first]
searcher: {name: grid, metric: error, max_length: {batches: 3}}
hyperparameters:
  rate: {type: categorical, vals: [0.001, 0.1, 1.0]}
  width: 8
checkpoint_storage: {save_trial_latest: 5}
"""
    made = _create(cluster, folder, _SEARCH, config)
    cluster.run("experiment", "wait", str(made), seconds=120)
    return made


def run_broken(cluster: Cluster, folder: Path) -> int:
    """One trial that reports thousands of metrics, prints thousands of lines, and fails."""
    config = "name: broken\nsearcher: {name: single, metric: error, max_length: {batches: 3}}\nmax_restarts: 0\n"
    made = _create(cluster, folder, _BROKEN, config)
    cluster.run("experiment", "wait", str(made), seconds=120, check=False)
    return made


def run_restarted(cluster: Cluster, folder: Path) -> int:
    """One trial whose first attempt fails, and whose second one reports its load."""
    config = f"""\
name: restarted
searcher: {{name: single, metric: loss, max_length: {{batches: 2}}}}
max_restarts: 1
hyperparameters: {{mark: {folder / "mark"}}}
"""
    made = _create(cluster, folder, _RESTARTED, config)
    cluster.run("experiment", "wait", str(made), seconds=120)
    return made


def run_halving(cluster: Cluster, folder: Path) -> int:
    """A search with two rungs, of trials that differ in two hyperparameters."""
    config = """\
name: halving
searcher: {name: async_halving, metric: error, max_trials: 4, num_rungs: 2, divisor: 2, max_length: {batches: 4}}
hyperparameters:
  rate: {type: double, minval: 0.1, maxval: 1.0}
  width: {type: double, minval: 1.0, maxval: 8.0}
"""
    made = _create(cluster, folder, _HALVING, config)
    cluster.run("experiment", "wait", str(made), seconds=120)
    return made


def _create(cluster: Cluster, folder: Path, code: str, config: str, *options: str) -> int:
    (folder / "train.py").write_text(code)
    (folder / "lib").mkdir()
    (folder / "lib/model.py").write_text("DEPTH = 3\n")
    (folder / "config.yaml").write_text(f"entrypoint: python3 train.py\n{config}")
    number: int = cluster.read("experiment", "create", "--again", *options, folder / "config.yaml", folder)[
        "experiment"
    ]["id"]
    return number
