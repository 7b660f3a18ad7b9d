"""Measures planning passes: how long `plan(snapshot, now)` takes for queues and clusters of several sizes.

Run as `python -m benchmarks.planning`. Every figure is the median of five runs with their spread, in processor time
(which other work on the machine does not stretch) and in wall-clock time. A case with a budget fails the run when its
median processor time exceeds it. At the end it prints how the cost grows with the queue and with the cluster, and how
long a snapshot file of 10,000 agents takes to load and to plan.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.statistic import summarise
from services.scheduler.placement import AgentRoom, PendingRequest, Plan, PoolConfig, Running, Snapshot, plan
from services.scheduler.placement.request.queue import Queue
from services.scheduler.placement.simulation_file import dump_simulation, parse_simulation

# Passes of each case, of which the median counts.
RUNS = 5
# Virtual time of every pass, in seconds.
NOW = 100_000.0
# Slots of each agent.
SLOTS = 8
POOL = "default"


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Snapshot]
    budget_seconds: float | None = None


def agents(count: int, used: int = 0) -> tuple[AgentRoom, ...]:
    return tuple(AgentRoom(f"a{n}", POOL, SLOTS, used, labels={"rack": f"r{n // 16}"}) for n in range(count))


def pending(count: int, seed: int = 1, priorities: tuple[int, ...] = (42,)) -> tuple[PendingRequest, ...]:
    """Draws requests in sizes that training clusters see: mostly one slot, sometimes a gang over several agents."""
    rng = random.Random(seed)
    sizes, weights = (1, 2, 4, 8, 16, 32), (50, 15, 12, 15, 5, 3)
    return tuple(
        PendingRequest(
            f"{n}.1",
            str(n % 97),
            POOL,
            rng.choices(sizes, weights)[0],
            priority=rng.choice(priorities),
            submitted_at=float(n),
            estimated_seconds=rng.lognormvariate(5.3, 2.0),
        )
        for n in range(1, count + 1)
    )


def running(num_agents: int, slots: int, priority: int = 42, seed: int = 2) -> tuple[Running, ...]:
    """Fills every agent with allocations of this size."""
    rng = random.Random(seed)
    works = []
    for n in range(num_agents):
        for part in range(SLOTS // slots):
            name = f"{100_000 + n * SLOTS + part}.1"
            started_at = NOW - rng.uniform(1, 5000)
            works.append(
                Running(
                    f"{name}.1",
                    name,
                    "r",
                    POOL,
                    {f"a{n}": slots},
                    priority,
                    True,
                    started_at,
                    NOW + rng.uniform(1, 9e3),
                )
            )
    return tuple(works)


def idle(num_agents: int, num_pending: int, policy: str = "priority") -> Snapshot:
    return Snapshot((PoolConfig(POOL, policy),), agents(num_agents), pending(num_pending))


def full(num_agents: int, num_pending: int, policy: str = "priority") -> Snapshot:
    """Builds a settled cluster: all slots are busy, and all requests wait."""
    return Snapshot(
        (PoolConfig(POOL, policy),), agents(num_agents, SLOTS), pending(num_pending), running(num_agents, 2)
    )


def one_ended(num_agents: int, num_pending: int) -> Snapshot:
    """Builds a settled cluster in which one allocation has just ended. The leader keeps the queue sorted between
    passes."""
    settled, queue = full(num_agents, num_pending), Queue()
    for request in settled.requests:
        queue.add(request)
    first, *other_agents = settled.agents
    settled = replace(settled, requests=queue.requests())
    return replace(settled, agents=(replace(first, used=SLOTS - 2), *other_agents), running=settled.running[1:])


def avoiding(num_agents: int, num_pending: int, share: float) -> Snapshot:
    """Builds `one_ended` with a share of requests that avoid one to three agents each, as after failed attempts."""
    settled, rng, queue = one_ended(num_agents, num_pending), random.Random(3), Queue()
    for request in settled.requests:
        avoided = rng.sample(range(num_agents), rng.randint(1, 3)) if rng.random() < share else ()
        queue.add(replace(request, blocklist=tuple(f"a{number}" for number in avoided)))
    return replace(settled, requests=queue.requests())


def on_call(num_agents: int, num_pending: int) -> Snapshot:
    """Builds a cluster in which a gang as large as the cluster waits for one running allocation, and all others have
    passed it. One of these has ended."""
    settled = one_ended(num_agents, num_pending)
    gang = PendingRequest("0.1", "g", POOL, num_agents * SLOTS)
    first, *other_allocations = settled.running
    passed = (replace(work, is_on_call=True, submitted_at=work.started_at) for work in other_allocations)
    config = PoolConfig(POOL, is_preemption_on=True, backfill="on_call")
    return replace(settled, pools=(config,), requests=(gang, *settled.requests), running=(first, *passed))


def urgent(num_agents: int, num_pending: int) -> Snapshot:
    """Builds urgent requests for agents that are full of less urgent work: all of that is preempted."""
    config = PoolConfig(POOL, is_preemption_on=True)
    requests = pending(num_pending, priorities=(1, 20, 42))
    return Snapshot((config,), agents(num_agents, SLOTS), requests, running(num_agents, 2, priority=60))


def cases() -> list[Case]:
    small = [
        Case(f"{policy}, {n} idle agents, 1,000 pending", partial(idle, n, 1000, policy), 0.05)
        for policy in ("priority", "fair_share", "round_robin")
        for n in (8, 64)
    ]
    return [
        *small,
        Case("priority, 8 full agents, 1,000 pending", lambda: full(8, 1000), 0.05),
        Case("priority, 64 full agents, 1,000 pending", lambda: full(64, 1000), 0.05),
        Case("priority, 1,000 idle agents, 10,000 pending", lambda: idle(1000, 10_000), 1.0),
        Case("fair_share, 1,000 idle agents, 10,000 pending", lambda: idle(1000, 10_000, "fair_share"), 1.0),
        Case("priority, 1,000 full agents, 10,000 pending", lambda: full(1000, 10_000), 1.0),
        Case("settled, one allocation ended, 1,000 agents, 10,000 pending", lambda: one_ended(1000, 10_000), 0.05),
        *(
            Case(f"the same, {share:.0%} of requests avoid agents", partial(avoiding, 1000, 10_000, share), 0.05)
            for share in (0.05, 0.3)
        ),
        Case("on call, one allocation ended, 1,000 agents, 10,000 pending", lambda: on_call(1000, 10_000), 0.1),
        Case("preemption, 64 agents, 1,000 pending", lambda: urgent(64, 1000)),
        Case("preemption, 1,000 agents, 10,000 pending", lambda: urgent(1000, 10_000), 1.0),
        Case("priority, 10,000 idle agents, 10,000 pending", lambda: idle(10_000, 10_000)),
        Case("priority, 10,000 full agents, 10,000 pending", lambda: full(10_000, 10_000)),
    ]


def measure(case: Case) -> tuple[list[float], list[float], list[float], Plan]:
    """Returns seconds of processor time and of wall-clock time for a pass, and of processor time to compute all its
    reasons."""
    snapshot = case.make()
    processor, wall, reasons = [], [], []
    for _ in range(RUNS):
        gc.collect()
        began, cpu_began = time.perf_counter(), time.process_time()
        decided = plan(snapshot, NOW)
        processor.append(time.process_time() - cpu_began)
        wall.append(time.perf_counter() - began)
        cpu_began = time.process_time()
        list(decided.reasons.values())
        reasons.append(time.process_time() - cpu_began)
    return processor, wall, reasons, decided


def print_growth() -> None:
    """Prints the growth of the cost. The exponent is the power of the size with which it grows: 1 is proportional."""
    print("\ngrowth (processor time of a pass; all slots busy, so that everybody is looked at and waits)")
    of_queue = _growth("pending", (1000, 3000, 10_000), lambda size: full(64, size))
    of_cluster = _growth("agents", (100, 1000, 10_000), lambda size: full(size, 1000))
    print(
        f"  A pass sorts the queue, which the leader keeps sorted, and looks once at every agent: it grows with the\n"
        f"  queue by the power {of_queue:.2f}, with the cluster by {of_cluster:.2f}. Of requests of one kind it asks\n"
        f"  a few, so the two add up and do not multiply."
    )


def _growth(name: str, sizes: tuple[int, ...], make: Callable[[int], Snapshot]) -> float:
    """Returns the exponent between the smallest and the largest size."""
    medians = [summarise(measure(Case("", partial(make, size)))[0]).p50 for size in sizes]
    print(
        f"  {name:<8}" + "   ".join(f"{size:,}: {cpu * 1e3:.1f} ms" for size, cpu in zip(sizes, medians, strict=True))
    )
    return math.log(medians[-1] / medians[0]) / math.log(sizes[-1] / sizes[0])


def print_file(num_agents: int) -> None:
    """Measures a settled cluster as a file: from its text to the plan."""
    text = json.dumps(dump_simulation(full(num_agents, 10_000), POOL, NOW))
    load, planned = [], []
    for _ in range(RUNS):
        gc.collect()
        began = time.process_time()
        simulation = parse_simulation(text)
        load.append(time.process_time() - began)
        plan(simulation.snapshot, simulation.now)
        planned.append(time.process_time() - began)
    loaded, total = summarise(load), summarise(planned)
    print(
        f"\nsnapshot file of {num_agents:,} agents with {num_agents * SLOTS:,} slots, {num_agents * 4:,} allocations, "
        f"10,000 pending ({len(text) / 2**20:.1f} MiB)\n"
        f"  loads in {loaded.p50:.2f} s ({loaded.minimum:.2f} to {loaded.maximum:.2f}), "
        f"loads and plans in {total.p50:.2f} s ({total.minimum:.2f} to {total.maximum:.2f})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    chosen = parser.parse_args().only
    print(describe_machine())
    columns = "".join(f"{name:>8}" for name in ("median", "min", "max", "wall", "budget", "reasons"))
    print(f"{'case (milliseconds, of processor time but for wall)':<62}{columns}  starts/stops/waits")
    is_within = True
    for case in (case for case in cases() if chosen in case.name):
        processor, wall, reasons, decided = measure(case)
        cpu, clock, reason_seconds = summarise(processor), summarise(wall), summarise(reasons)
        counts = f"{len(decided.assignments)}/{len(decided.preemptions)}/{len(decided.reasons)}"
        budget = "" if case.budget_seconds is None else f"{case.budget_seconds * 1e3:.0f}"
        numbers = f"{cpu.p50 * 1e3:>8.1f}{cpu.minimum * 1e3:>8.1f}{cpu.maximum * 1e3:>8.1f}{clock.p50 * 1e3:>8.1f}"
        print(f"{case.name:<62}{numbers}{budget:>8}{reason_seconds.p50 * 1e3:>8.1f}  {counts}", flush=True)
        is_within &= case.budget_seconds is None or cpu.p50 <= case.budget_seconds
    if not chosen:
        print_growth()
        print_file(10_000)
    return 0 if is_within else 1


if __name__ == "__main__":
    run_benchmark(main)
