"""The cost of each field of a configuration, at the largest size that a submit lets in, for gateway and leader.

A candidate is made for each field from the schema, by the field's type: one long text, many short entries, many keys,
deep nesting, and for some fields what is known to be costly. For each service it measures the longest time in which
the event loop cannot run: a step on the loop counts whole, and a step in a thread counts as long as it holds Python's
global lock. The limit is LIMIT_MS. The script prints the table, the costliest first, and exits with 1 above the limit.

Times are processor times of the thread, so other programs on the machine change them little. Run it with
`python -m benchmarks.config_cost`.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from gangline.config import ExperimentConfig, check_config, check_patterns
from gangline.config.bound import MAX_TEXT_BYTES, MAX_VALUES, is_small
from gangline.config.failure import MAX_PATTERN_CHARACTERS, MAX_PATTERNS
from gangline.config.layer.secret import hide_secrets
from gangline.domain.experiment import Experiment
from gangline.errors import GanglineError
from gangline.pattern import MAX_PATTERN_LENGTH
from gangline.protocol import wire
from services.scheduler.placement.request.snapshot import PoolConfig
from services.scheduler.searcher.draw import warm_up
from services.scheduler.state.records import SchedulerState
from services.scheduler.state.rules import Rules
from services.scheduler.transition.submit_check import AdmittedSubmission, admit, submit_experiment

LIMIT_MS = 50.0
BASE: dict[str, Any] = {
    "name": "cost",
    "entrypoint": "true",
    "searcher": {"name": "single", "metric": "loss"},
    "resources": {"slots_per_trial": 1},
}
# Room for BASE and the candidate's own keys.
ROOM = MAX_TEXT_BYTES - 2048
POOLS = (PoolConfig("default"),)


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds for which each service's loop could not run."""

    name: str
    num_bytes: int
    gateway_ms: float
    leader_ms: float
    refusal: str  # code of the refusing error; empty for none


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each candidate; the least counts")
    parser.add_argument("--lines", type=int, default=25, help="of the table")
    arguments = parser.parse_args()
    print(describe_machine())
    warm_up()
    # A collection of all of this process' objects takes 100 ms, wherever it happens.
    gc.freeze()
    costs = [measure(name, config, arguments.runs) for name, config in candidates()]
    costs.sort(key=lambda cost: -max(cost.gateway_ms, cost.leader_ms))
    print(f"{len(costs)} candidates; the costliest:")
    print(f"{'field':46} {'bytes':>8} {'gateway ms':>11} {'leader ms':>10}  refused with")
    for cost in costs[: arguments.lines]:
        print(f"{cost.name:46} {cost.num_bytes:8} {cost.gateway_ms:11.1f} {cost.leader_ms:10.1f}  {cost.refusal}")
    return int(max(costs[0].gateway_ms, costs[0].leader_ms) > LIMIT_MS)


def measure(name: str, config: Mapping[str, Any], num_runs: int) -> Cost:
    text = json.dumps(config)
    runs = [(*_gateway(text), _leader(text)) for _ in range(num_runs)]
    print(f"{name}: {len(text)} bytes", file=sys.stderr)
    return Cost(name, len(text), min(run[0] for run in runs), min(run[2] for run in runs), runs[0][1])


def _gateway(text: str) -> tuple[float, str]:
    """Checks the submit, then masks the experiment as the mirror does. Returns milliseconds and the refusal."""
    stalls = [_on_loop(check_config, text) if is_small(text) else _in_thread(check_config, text)]
    try:
        checked = check_config(text)
        stalls.append(_in_thread(check_patterns, checked))
        check_patterns(checked)
    except GanglineError as error:
        return max(stalls), error.code
    record = wire.encode(Experiment(1, "cost", "alice", checked.model_dump_json(), "0" * 64))
    stalls.append(_on_loop(lambda: hide_secrets(wire.decode(Experiment, record))))
    return max(stalls), ""


def _leader(text: str) -> float:
    """Admits the submit and makes its records. What a gateway refuses does not reach the leader, but is measured."""
    submitted = {"request_id": "r", "owner": "alice", "config_json": text, "code_sha256": "0" * 64}
    outcome: list[AdmittedSubmission] = []

    def run() -> None:
        outcome.append(admit(submitted, POOLS, (), random.Random(1))[0])

    stall = _on_loop(run) if is_small(text) else _in_thread(run)
    if not outcome:
        return stall
    return max(stall, _on_loop(submit_experiment, SchedulerState(), outcome[0], Rules(), 0.0))


def _on_loop(work: Callable[..., object], *arguments: object) -> float:
    started = time.thread_time()
    _try(work, *arguments)
    return (time.thread_time() - started) * 1e3


def _in_thread(work: Callable[..., object], *arguments: object) -> float:
    """Returns the longest step between two calls of functions. Python's threads can take turns only between them: a
    call of C, as a compile of a pattern, holds the global lock until it returns."""
    longest, last = 0.0, time.thread_time()

    def note(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal longest, last
        now = time.thread_time()
        longest, last = max(longest, now - last), now

    sys.setprofile(note)
    try:
        _try(work, *arguments)
    finally:
        sys.setprofile(None)
    return longest * 1e3


def _try(work: Callable[..., object], *arguments: object) -> None:
    try:
        work(*arguments)
    except GanglineError:
        return


def candidates() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a name and a configuration for each field and each costly value of its type."""
    schema = ExperimentConfig.model_json_schema()
    for path, field in _fields(schema, schema, ()):
        for kind, value in _values(schema, field):
            yield f"{'.'.join(path)}: {kind}", _with(BASE, path, value)
    yield from _known()


def _known() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields what costs more than its type says."""
    half = MAX_PATTERN_CHARACTERS // 2
    patterns = {
        "classes": [r"\pL" * (min(half, MAX_PATTERN_LENGTH) // 3)] * 2,
        "counts": [r"\pL{400}"] * MAX_PATTERNS,
        "nested counts": [r"((a{1,30}){1,30}){1,30}" * 40] * 2,
        "lines": [r".{1000}"] * MAX_PATTERNS,
        "both cases": [r"(?i)" + r"[^\pL]" * 160] * 2,
    }
    for kind, texts in patterns.items():
        yield f"log_policies: {kind}", {**BASE, "log_policies": [{"pattern": text} for text in texts]}
    search = {"name": "random", "metric": "loss", "max_trials": 10_000, "max_concurrent_trials": 0}
    double = {"type": "double", "minval": 0.0, "maxval": 1.0}
    words = {"type": "categorical", "vals": [f"{number:06}" for number in range(10_000)]}
    big = {"type": "categorical", "vals": ["x" * 60_000, "y" * 60_000]}
    for kind, parameters in {
        "200 ranges": {f"h{number}": double for number in range(200)},
        "10,000 choices": {"a": words},
        "two large choices": {"a": big},
        "deep": json.loads('{"a":' * 20 + json.dumps({"x": double}) + "}" * 20),
    }.items():
        yield f"hyperparameters: {kind}", {**BASE, "searcher": search, "hyperparameters": parameters}
    grid = {"name": "grid", "metric": "loss", "max_concurrent_trials": 0}
    counted = {f"h{number}": {**double, "count": 10} for number in range(4)}
    yield "hyperparameters: grid of 10,000", {**BASE, "searcher": grid, "hyperparameters": counted}


def _fields(
    schema: Mapping[str, Any], node: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, field in node.get("properties", {}).items():
        yield (*path, name), field
        for branch in _branches(schema, field):
            if len(path) < 4:
                yield from _fields(schema, branch, (*path, name))


def _branches(schema: Mapping[str, Any], field: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields each form of a field, with its references followed."""
    if "$ref" in field:
        name = field["$ref"].split("/")[2]
        yield from _branches(schema, schema["$defs"][name])
        return
    branches = [*field.get("anyOf", ()), *field.get("oneOf", ())]
    if not branches:
        yield field
    for branch in branches:
        yield from _branches(schema, branch)


def _values(schema: Mapping[str, Any], field: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    kinds = {branch.get("type") for branch in _branches(schema, field)}
    if kinds & {"string", None}:
        yield "one long text", "x" * ROOM
        yield "signs", "' :" * (ROOM // 3)
    if kinds & {"integer", "number"}:
        yield "the largest number", 2**62
    if kinds & {"array", None}:
        yield "many short texts", [f"A{number}=" for number in range(min(MAX_VALUES - 50, ROOM // 10))]
        yield "many mappings", [{}] * min(MAX_VALUES - 50, ROOM // 4)
        yield "one long entry", ["PASSWORD=" + "x" * ROOM]
    if kinds & {"object", None}:
        yield "many keys", {f"aTokenB_{number}": 1 for number in range(ROOM // 19)}
        yield "many texts", {f"pass_word{number}": "x" for number in range(ROOM // 22)}
        yield "many URLs", {"a": ["://u:p@h"] * (ROOM // 12)}
        yield "deep", json.loads('{"a":' * 28 + json.dumps(["x" * 10] * (ROOM // 16)) + "}" * 28)


def _with(values: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    inner = values.get(path[0])
    below = inner if isinstance(inner, Mapping) else {}
    return {**values, path[0]: _with(below, path[1:], value) if len(path) > 1 else value}


if __name__ == "__main__":
    run_benchmark(main)
