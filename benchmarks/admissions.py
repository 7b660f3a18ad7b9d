"""Measures how many waiting requests the scheduler admits in a second, on the load of Kueue's own performance test.

An admission is an allocation in etcd, written in a transaction that the leader's fencing token guards, and sent to all
of its agents. The scheduler and etcd are the real programs, and etcd syncs to the disk. Agents are simulated
(simulated_agent.py): each holds a real stream, accepts its allocations and reports their ends in time.

The load is Kueue's baseline (kubernetes-sigs/kueue, test/performance/scheduler/configs/baseline/generator.yaml): 30
queues of 500 requests each, 350 small ones of 1 slot, 100 medium ones of 5 and 50 large ones of 20, the larger the more
urgent, submitted in the order in which its generator makes them. Its five cohorts of six queues with a quota of 20 that
may be borrowed by all six are five pools here, each of 24 agents with 5 slots, 600 slots in all: a medium request takes
an agent, a large one is a gang over four agents. Every request is an experiment of its own with a configuration of its
own.

Two things differ, because otherwise 600 slots could not take more than 227 requests a second, however fast the
scheduler is: Kueue's run times of 0.2, 0.5 and 1 s are divided by `--shorten`, and all requests wait already when the
agents connect instead of arriving over a minute. The deep queue makes planning more expensive, not cheaper. Kueue also
preempts there; these pools do not.

The peer's figure is Kueue's own, as published beside its test (rangespec.yaml: 15,000 requests in 351.1 s, the mean of
five runs). It counts from the first submission to the last end, so the figure beside it here does as well. Kueue needs
a Kubernetes API server, so it is not run here. Every run has a fresh etcd and a fresh scheduler.
Run it with `python -m benchmarks.admissions`; runs for which `--seconds` leaves no time are left out, and the output
says so.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import fmean

import grpc.aio

from benchmarks.control_plane import ControlPlane, running_control_plane
from benchmarks.machine import describe_machine
from benchmarks.process import run_benchmark
from benchmarks.simulated_agent import Book, SimulatedAgent
from benchmarks.statistic import summarise
from gangline.config import ExperimentConfig
from gangline.domain.experiment import Experiment
from gangline.domain.resource import Agent, Slot
from gangline.domain.state import Outcome
from gangline.protocol import rpc, wire
from gangline.v1 import runner_pb2, scheduler_pb2, scheduler_pb2_grpc
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings

# Kueue's baseline, see above.
COHORTS = 5
QUEUES_PER_COHORT = 6
AGENTS_PER_COHORT = 24
SLOTS_PER_AGENT = 5
# Kueue's published figure, see above.
KUEUE_PER_SECOND = 15_000 / 351.1164
# The bar, from the first submission to the last end.
TARGET_PER_SECOND = 150.0
# Concurrent calls to submit.
SUBMITTERS = 32
READY_SECONDS = 30.0
RUN_DEADLINE_SECONDS = 240.0


@dataclass(frozen=True)
class Class:
    """Describes a class of requests."""

    name: str
    count: int  # requests in each queue
    slots: int
    run_seconds: float
    every_seconds: float  # Kueue's interval between two of them
    priority: int  # 1 is the most urgent


CLASSES = (
    Class("small", 350, 1, 0.2, 0.1, 60),
    Class("medium", 100, 5, 0.5, 0.5, 40),
    Class("large", 50, 20, 1.0, 1.2, 20),
)
SETTINGS = "".join(
    f'[[resource_pools]]\npool_name = "cohort-{cohort}"\nscheduler = {{ preemption = false }}\n'
    for cohort in range(COHORTS)
)
CLASS_BY_SLOTS = {request_class.slots: request_class for request_class in CLASSES}


@dataclass(frozen=True)
class Measurement:
    """Holds the figures of one run."""

    submits_per_second: float
    admissions_per_second: float
    whole_per_second: float  # requests over the time from the first submission to the last end on record
    waits: dict[str, list[float]]  # by class, seconds from the agents' connecting to the admission
    processor_ms: dict[str, float]
    faults: tuple[str, ...]


def make_requests(scale: float) -> list[tuple[float, str, Class]]:
    """Returns requests in the order in which Kueue's generator would make them: its time, a name, a class. scale: the
    part of each class."""
    requests = []
    for queue in range(COHORTS * QUEUES_PER_COHORT):
        for request_class in CLASSES:
            for number in range(max(1, round(request_class.count * scale))):
                at = (number + 1) * request_class.every_seconds
                requests.append((at, f"queue-{queue}-{request_class.name}-{number}", request_class))
    return sorted(requests, key=lambda request: request[0])


def config_json(name: str, request_class: Class) -> str:
    cohort = int(name.split("-")[1]) // QUEUES_PER_COHORT
    document = {
        "name": name,
        "entrypoint": ["true"],
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {
            "slots_per_trial": request_class.slots,
            "resource_pool": f"cohort-{cohort}",
            "priority": request_class.priority,
        },
    }
    return ExperimentConfig.model_validate(document).model_dump_json()


def make_agents(shorten: float, book: Book) -> list[SimulatedAgent]:
    def run_seconds(spec: runner_pb2.RunnerSpec) -> float:
        slots = sum(len(member.slot_ids) for member in spec.allocation.members)
        return CLASS_BY_SLOTS[slots].run_seconds / shorten

    agents = []
    for number in range(COHORTS * AGENTS_PER_COHORT):
        name = f"agent-{number}"
        slots = tuple(Slot(f"{name}/cpu-{slot}") for slot in range(SLOTS_PER_AGENT))
        record = Agent(name, f"cohort-{number // AGENTS_PER_COHORT}", slots=slots, host_id=name, hostname=name)
        agents.append(SimulatedAgent(record, run_seconds, book))
    return agents


async def measure(plane: ControlPlane, scale: float, shorten: float) -> Measurement:
    requests = make_requests(scale)
    book = Book()
    agents = make_agents(shorten, book)
    await _make_pools(plane, agents)
    began_at = time.time()
    class_by_trial = await _submit_all(plane, requests)
    submitted_at = time.time()
    processor_before = plane.processor_seconds()
    await _admit_all(plane, agents, book, len(requests))
    ended_at = time.time()
    processor = {name: used - processor_before[name] for name, used in plane.processor_seconds().items()}
    await _check_records(plane, len(requests), book)
    last_at = max(book.started_at.values())
    waits: dict[str, list[float]] = {request_class.name: [] for request_class in CLASSES}
    for allocation_id, at in book.started_at.items():
        waits[class_by_trial[allocation_id.rpartition(".")[0]].name].append(at - submitted_at)
    return Measurement(
        submits_per_second=len(requests) / (submitted_at - began_at),
        admissions_per_second=len(requests) / (last_at - submitted_at),
        whole_per_second=len(requests) / (ended_at - began_at),
        waits=waits,
        processor_ms={name: used / len(requests) * 1e3 for name, used in processor.items()},
        faults=tuple(book.faults),
    )


async def _make_pools(plane: ControlPlane, agents: Sequence[SimulatedAgent]) -> None:
    """Creates the pools, which exist once their agents have registered. The agents leave again, so that nothing starts
    yet."""
    async with asyncio.timeout(READY_SECONDS), _connected(plane, agents), _etcd(plane) as client:
        while len((await client.list(keys.AGENTS)).items) < len(agents):  # noqa: ASYNC110 - etcd sets no event
            await asyncio.sleep(0.05)


async def _submit_all(plane: ControlPlane, requests: Sequence[tuple[float, str, Class]]) -> dict[str, Class]:
    """Submits all requests and returns the class of each trial. The number of concurrent calls is that of a few
    gateways."""
    class_by_trial: dict[str, Class] = {}
    coming = iter(requests)

    async def submit(stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub) -> None:
        for _, name, request_class in coming:
            request = scheduler_pb2.SubmitExperimentRequest(
                request_id=name, owner="benchmark", config_json=config_json(name, request_class), code_sha256="0" * 64
            )
            answer = await stub.SubmitExperiment(request, metadata=rpc.token_metadata(plane.token), timeout=60)
            class_by_trial[f"{answer.experiment.id}.1"] = request_class

    async with (
        asyncio.timeout(RUN_DEADLINE_SECONDS),
        grpc.aio.insecure_channel(plane.address, options=rpc.CHANNEL_OPTIONS) as channel,
    ):
        stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        await asyncio.gather(*(submit(stub) for _ in range(SUBMITTERS)))
    return class_by_trial


async def _admit_all(plane: ControlPlane, agents: Sequence[SimulatedAgent], book: Book, count: int) -> None:
    """Runs until the scheduler has the end of each request on record. Raises SystemExit when a request is left
    behind."""
    async with _connected(plane, agents) as streams:
        deadline = time.monotonic() + RUN_DEADLINE_SECONDS
        while len(book.ended) < count:
            book.has_news.clear()
            for stream in streams:
                if stream.done():
                    stream.result()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await book.has_news.wait()
            except TimeoutError:
                raise SystemExit(
                    f"stranded: {count - len(book.ended)} of {count} requests after {RUN_DEADLINE_SECONDS:g} s; "
                    f"{len(book.started_at)} were admitted"
                ) from None


@asynccontextmanager
async def _connected(plane: ControlPlane, agents: Sequence[SimulatedAgent]) -> AsyncIterator[list[asyncio.Task[None]]]:
    streams = [asyncio.create_task(agent.run(plane.address, plane.token)) for agent in agents]
    try:
        yield streams
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


def _etcd(plane: ControlPlane) -> EtcdClient:
    return EtcdClient(EtcdSettings(endpoints=(plane.etcd_address,)))


async def _check_records(plane: ControlPlane, count: int, book: Book) -> None:
    """Checks the records in etcd, not the scheduler's answers: every request completed, and no request or allocation is
    left."""
    async with _etcd(plane) as client:
        experiments = [
            wire.decode(Experiment, item.value).outcome for item in (await client.list(keys.EXPERIMENTS)).items
        ]
        left = [*(await client.list(keys.REQUESTS)).items, *(await client.list(keys.ALLOCATIONS)).items]
    if experiments.count(Outcome.COMPLETED) != count:
        book.faults.append(f"{experiments.count(Outcome.COMPLETED)} of {count} experiments completed")
    book.faults += [f"{item.key} is left" for item in left]


def show(measurement: Measurement) -> None:
    used = ", ".join(f"{name} {milliseconds:.2f}" for name, milliseconds in measurement.processor_ms.items())
    waits = ", ".join(f"{name} {fmean(seconds):.1f}" for name, seconds in measurement.waits.items())
    print(
        f"  admitted {measurement.admissions_per_second:6.1f} a second; submitted before that "
        f"{measurement.submits_per_second:6.1f} a second; from submission to end {measurement.whole_per_second:6.1f}; "
        f"processor ms each: {used}; mean wait s: {waits}",
        flush=True,
    )
    for fault in measurement.faults[:10]:
        print(f"  FAULT: {fault}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=900.0, help="no run begins that would probably end after this")
    parser.add_argument("--scale", type=float, default=1.0, help="the part of the 15,000 requests")
    parser.add_argument("--shorten", type=float, default=10.0, help="by what Kueue's run times are divided")
    arguments = parser.parse_args()
    print(describe_machine())
    began_at, measurements = time.monotonic(), list[Measurement]()
    while len(measurements) < arguments.runs:
        if measurements and (time.monotonic() - began_at) * (1 + 1 / len(measurements)) > arguments.seconds:
            break
        with running_control_plane(SETTINGS) as plane:
            measurements.append(asyncio.run(measure(plane, arguments.scale, arguments.shorten)))
        show(measurements[-1])
    num_requests = len(make_requests(arguments.scale))
    print(f"{num_requests:,} requests, {len(measurements)} of {arguments.runs} runs, a second:")
    admitted = summarise([measurement.admissions_per_second for measurement in measurements])
    end_to_end = summarise([measurement.whole_per_second for measurement in measurements])
    for name, rates in (("admissions alone", admitted), ("from the first submission to the last end", end_to_end)):
        print(f"  {name:42} median {rates.p50:6.1f} ({rates.minimum:.1f} to {rates.maximum:.1f})")
    print(
        f"  {'Kueue, published, not run here':42} {KUEUE_PER_SECOND:13.1f}, from the first submission to the last end: "
        f"1/{end_to_end.p50 / KUEUE_PER_SECOND:.1f}"
    )
    return (
        0 if end_to_end.p50 >= TARGET_PER_SECOND and not any(measurement.faults for measurement in measurements) else 1
    )


if __name__ == "__main__":
    run_benchmark(main)
