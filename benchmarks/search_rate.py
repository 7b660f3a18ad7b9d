"""Measures how many short trials of a search end in a minute, and how long the slots stand idle, beside Ray Tune.

A random search of `--trials` trials of one slot runs on `--slots` slots of one machine. A trial waits `--seconds`
seconds, as for a GPU, and reports one validation, each in a fresh process (workload/search/train.py). So slots and not
cores are the limit. Both sides call the same function, and both are warm: a first search of as many trials as slots is
not counted. The time runs from the submit, or from `Tuner.fit`, until the search has ended.

Two shares of the slots' time are printed. In the share without work no trial does its work; it counts every delay, and
is the same for both sides: 1 - trials * seconds / (slots * wall time). In the idle share no trial holds the slot: from
the end of a trial to the placement of the next one. Ray does not say when a trial holds a slot.

Ray runs in turn with Gangline, with its default settings and with `reuse_actors=True`, which keeps one process for all
trials of a slot. It is installed into a virtual environment below the user's cache folder, and stays there. The phases
of Gangline's trials are printed too.

Run it with `python -m benchmarks.search_rate`. It exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from pathlib import Path

from benchmarks.cluster import running_cluster
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.statistic import summarise
from gangline.client import Client
from gangline.domain.allocation import Timeline
from gangline.domain.state import Outcome
from gangline.domain.view import TrialView

WORKLOAD = Path(__file__).parent / "workload" / "search"
RAY = "ray[tune]==2.60.0"
# Targets of 100 trials of 2 s on 4 slots.
TRIALS_PER_MINUTE = 100.0
IDLE_SHARE = 0.05
MOST_SECONDS = 600.0
# The phases of a trial by the field of Timeline that ends them; a script has no first step.
PHASES = [field.name for field in fields(Timeline) if field.name != "first_step_at"]


@dataclass(frozen=True, slots=True)
class Load:
    """Describes the search."""

    trials: int
    slots: int
    seconds: float  # time that the work of a trial takes

    def share_without_work(self, wall_seconds: float) -> float:
        return 1 - self.trials * self.seconds / (self.slots * wall_seconds)

    def per_minute(self, wall_seconds: float) -> float:
        return 60 * self.trials / wall_seconds


def measure_gangline(load: Load) -> tuple[float, float, str]:
    """Returns the seconds of the search, the idle share of the slots, and a line with the medians of its trials'
    phases."""
    with tempfile.TemporaryDirectory() as stamps, running_cluster(1, load.slots) as (client, _):
        _search(client, Load(load.slots, load.slots, 0.1), "")
        experiment_id, wall_seconds = _search(client, load, stamps)
        works = {path.name: _read_stamps(path) for path in Path(stamps).iterdir()}
        trials = client.get_experiment(experiment_id).trials
        held_seconds = sum(view.trial.ended_at - view.trial.timeline.placed_at for view in trials)
        return wall_seconds, 1 - held_seconds / (load.slots * wall_seconds), _describe_phases(trials, works)


def _search(client: Client, load: Load, stamps: str) -> tuple[int, float]:
    config = {
        "name": "search-rate",
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "lr": {"type": "log", "minval": -4, "maxval": -1},
            "seconds": load.seconds,
            "stamps": stamps,
        },
        "searcher": {"name": "random", "metric": "loss", "max_trials": load.trials},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 0,
    }
    created = client.create_experiment(json.dumps(config), WORKLOAD).experiment
    ended = client.wait_experiment(created.id, MOST_SECONDS).experiment
    if ended.outcome is not Outcome.COMPLETED or f"all {load.trials} trials completed" not in ended.reason:
        raise SystemExit(f"the search ended {ended.outcome}: {ended.reason}")
    return created.id, ended.ended_at - created.created_at


def _read_stamps(path: Path) -> tuple[float, float]:
    began_at, ended_at = map(float, path.read_text().split())
    return began_at, ended_at


def _describe_phases(trials: tuple[TrialView, ...], works: dict[str, tuple[float, float]]) -> str:
    """Returns the median of each phase in ms: from the placement to the start of the work, and from its end to the end
    of the trial."""
    names = ["placed", "accepted", "runner up", "rendezvous", "ranks up", "work begins", "work", "trial ends"]
    rows = []
    for view in trials:
        timeline = dict(zip([field.name for field in fields(Timeline)], astuple(view.trial.timeline), strict=True))
        moments = [timeline[name] for name in PHASES] + [*works[view.trial.id], view.trial.ended_at]
        rows.append([(later - earlier) * 1e3 for earlier, later in pairwise(moments)])
    medians = [summarise(column).p50 for column in zip(*rows, strict=True)]
    return ", ".join(f"{name} {median:.0f}" for name, median in zip(names, medians, strict=True))


def measure_ray(python: Path, load: Load, *, is_reusing: bool) -> float:
    """Returns the seconds of the search."""
    command = [str(python), str(WORKLOAD / "ray_search.py"), "--trials", str(load.trials), "--slots", str(load.slots)]
    command += ["--seconds", str(load.seconds), *(["--reuse"] if is_reusing else [])]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=MOST_SECONDS, cwd="/"
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if done.returncode or not lines:
        raise SystemExit(f"Ray Tune ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return float(lines[-1].split()[1])


def install_ray() -> Path:
    """Returns the interpreter of a virtual environment that has Ray; makes the environment if it is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "gangline-benchmarks" / RAY.replace("[", "-").replace("]==", "-")
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", RAY], check=True)
        (folder / "installed").touch()
    return python


def _show(name: str, load: Load, wall_seconds: float) -> None:
    print(
        f"{name:24} {wall_seconds:6.1f} s, {load.per_minute(wall_seconds):6.1f} trials a minute, "
        f"slots without work {load.share_without_work(wall_seconds):6.1%}",
        flush=True,
    )


def _summarise(name: str, load: Load, walls: list[float]) -> None:
    rate = summarise([load.per_minute(wall) for wall in walls])
    idle = summarise([load.share_without_work(wall) for wall in walls])
    print(
        f"{name:24} {rate.count} runs: median {rate.p50:.1f} trials a minute ({rate.minimum:.1f} to "
        f"{rate.maximum:.1f}), slots without work {idle.p50:.1%} ({idle.minimum:.1%} to {idle.maximum:.1%})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0, help="of the work of each trial")
    parser.add_argument("--no-ray", action="store_true")
    arguments = parser.parse_args()
    load = Load(arguments.trials, arguments.slots, arguments.seconds)
    python = None if arguments.no_ray else install_ray()
    print(describe_machine())
    print(
        f"work: {load.trials} trials that sleep {load.seconds:g} s each and report one validation, {load.slots} slots"
    )
    walls: dict[str, list[float]] = {}
    idle_shares: list[float] = []
    for _ in range(arguments.runs):
        wall_seconds, idle_share, phases = measure_gangline(load)
        walls.setdefault("gangline", []).append(wall_seconds)
        idle_shares.append(idle_share)
        _show("gangline", load, wall_seconds)
        print(f"  slots idle {idle_share:.1%}; ms, medians: {phases}")
        if python is not None:
            for name, is_reusing in (("ray tune", False), ("ray tune, reuse_actors", True)):
                walls.setdefault(name, []).append(measure_ray(python, load, is_reusing=is_reusing))
                _show(name, load, walls[name][-1])
    for name, seconds in walls.items():
        _summarise(name, load, seconds)
    idle = summarise(idle_shares)
    print(f"gangline: slots idle, median {idle.p50:.1%} ({idle.minimum:.1%} to {idle.maximum:.1%})")
    print(f"wanted: at least {TRIALS_PER_MINUTE:g} trials a minute, slots idle at most {IDLE_SHARE:.0%}")
    is_fast = load.per_minute(summarise(walls["gangline"]).p50) >= TRIALS_PER_MINUTE
    return 0 if is_fast and idle.p50 <= IDLE_SHARE else 1


if __name__ == "__main__":
    run_benchmark(main)
