"""Looks at the machine now and then: GPU health and load, interfaces. Feeds the gauges and has the agent say it anew.

Owns the period and that a driver which hangs does not take the agent along. Runs as one long-lived task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from services.agent import metrics, network, nvml, slot
from services.agent.agent import Agent
from services.agent.link import Link
from services.agent.slot import Slots, with_problem

# Longer than NVML takes with a GPU that is being reset.
NVML_SECONDS = 20.0

log = structlog.get_logger(__name__)


async def watch_machine(agent: Agent, link: Link, period_seconds: float) -> None:
    """Until cancelled."""
    observe(agent, link)
    while True:
        await asyncio.sleep(period_seconds)
        slots, interfaces = await _look(agent.identity.id, agent.slots), network.list_interfaces()
        if slots.slots != agent.slots.slots or interfaces != agent.interfaces:
            _log_changes(agent.slots, slots)
            agent.slots, agent.interfaces = slots, interfaces
            link.reconnect()


def observe(agent: Agent, link: Link) -> None:
    """Lets the gauges read the agent whenever somebody scrapes."""
    for state in ("free", "used", "unhealthy"):
        metrics.slots.labels(state=state).set_function(_counter(agent, state))
    metrics.journaled.set_function(lambda: len(agent.roster.records))
    metrics.heartbeat_age.set_function(lambda: time.monotonic() - (link.heartbeat_at or time.monotonic()))


def _counter(agent: Agent, state: str) -> Callable[[], float]:
    def count() -> float:
        used = {slot_id for record in agent.roster.records if record.is_live for slot_id in record.slot_ids}
        unhealthy = {each.id for each in agent.slots.slots if not each.is_healthy} - used
        sizes = {"used": len(used), "unhealthy": len(unhealthy)}
        return sizes.get(state, len(agent.slots.slots) - len(used) - len(unhealthy))

    return count


async def _look(agent_id: str, before: Slots) -> Slots:
    if not before.devices:
        return before
    try:
        async with asyncio.timeout(NVML_SECONDS):
            slots = await asyncio.to_thread(slot.refresh_slots, agent_id, before)
            with suppress(nvml.NvmlUnavailableError):
                _report(await asyncio.to_thread(nvml.sample_devices))
            return slots
    except TimeoutError:
        return with_problem(agent_id, before, f"NVML did not answer within {NVML_SECONDS:g} s")


def _report(samples: tuple[nvml.Sample, ...]) -> None:
    for sample in samples:
        if sample.utilization_ratio is not None:
            metrics.gpu_utilization.labels(uuid=sample.uuid).set(sample.utilization_ratio)
        metrics.gpu_memory_used.labels(uuid=sample.uuid).set(sample.memory_used_bytes)
        metrics.gpu_memory_total.labels(uuid=sample.uuid).set(sample.memory_total_bytes)


def _log_changes(before: Slots, now: Slots) -> None:
    for old, new in zip(before.slots, now.slots, strict=True):
        if new.problem and new.problem != old.problem:
            log.error("a slot became unhealthy", slot_id=new.id, problem=new.problem)
        elif old.problem and not new.problem:
            log.info("a slot is healthy again", slot_id=new.id)
