"""PURE: a plan as text: which requests start where, which work is stopped for which request, and why the rest waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from services.scheduler.placement.plan import Plan
from services.scheduler.placement.request.snapshot import PendingRequest
from services.scheduler.placement.request.snapshot_change import describe_changes
from services.scheduler.placement.simulation_file import Simulation


def describe_plan(simulation: Simulation, decided: Plan) -> str:
    """Returns lines for a terminal, without a last line break."""
    requests = {request.trial_id: request for request in simulation.snapshot.requests}
    parts = [_summary(simulation), *_starts(decided, requests), *_stops(simulation, decided)]
    return "\n".join([*parts, *_waits(decided, requests, simulation.now)])


def describe_seconds(seconds: float) -> str:
    """Formats seconds in the two largest units: "45 s", "12 min 5 s", "3 h 20 min", "2 d 4 h"."""
    left = max(0, round(seconds))
    parts: list[tuple[int, str]] = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts or unit == "s":
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count or len(parts) == 1)


def align(rows: Iterable[tuple[str, ...]], numbers: frozenset[int] = frozenset()) -> list[str]:
    """Aligns columns to their widest field; the columns with these numbers are aligned to the right."""
    table = list(rows)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))] if table else []
    return [
        "  ".join(
            field.rjust(width) if column in numbers else field.ljust(width)
            for column, (field, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _summary(simulation: Simulation) -> str:
    snapshot = simulation.snapshot
    config, usable = snapshot.pools[0], [agent for agent in snapshot.agents if agent.is_usable]
    free, total = sum(agent.free for agent in usable), sum(agent.slots for agent in usable)
    if len(usable) < len(snapshot.agents):
        agents = f"{len(usable)} of {len(snapshot.agents)} agents"
    else:
        agents = f"{len(usable)} agent{'' if len(usable) == 1 else 's'}"
    return (
        f"policy {config.policy}: {agents} with {free} of {total} slots free; "
        f"{len(snapshot.running)} running, {len(snapshot.requests)} pending"
    )


def _starts(decided: Plan, requests: Mapping[str, PendingRequest]) -> list[str]:
    if not decided.assignments:
        return ["", "nothing starts"]
    rows = [("task", "slots", "on")]
    for assignment in decided.assignments:
        slots_by_agent = sorted(assignment.slots_by_agent.items())
        where = ", ".join(f"{agent}: {slots}" if slots else f"{agent} (auxiliary)" for agent, slots in slots_by_agent)
        where += ", on call" if assignment.is_on_call else ""
        requested_slots, slots = requests[assignment.trial_id].slots, sum(assignment.slots_by_agent.values())
        rows.append(
            (
                assignment.trial_id,
                f"{slots} of {requested_slots}" if slots < requested_slots else str(requested_slots),
                where,
            )
        )
    return ["", f"starts ({len(decided.assignments)})", *_indented(align(rows, frozenset({1})))]


def _stops(simulation: Simulation, decided: Plan) -> list[str]:
    if not decided.preemptions:
        return []
    works = {work.allocation_id: work for work in simulation.snapshot.running}
    rows = [("task", "slots", "priority", "makes room for")]
    for preemption in decided.preemptions:
        work = works[preemption.allocation_id]
        purpose = "itself, to grow" if preemption.is_growth else preemption.for_trial_id
        rows.append((preemption.allocation_id, str(work.slots), str(work.priority), purpose))
    return ["", f"is stopped ({len(decided.preemptions)})", *_indented(align(rows, frozenset({1, 2})))]


def _waits(decided: Plan, requests: Mapping[str, PendingRequest], now: float) -> list[str]:
    if not decided.reasons:
        return ["", "nothing waits"]
    lines = ["", f"waits ({len(decided.reasons)})"]
    for trial_id, reason in decided.reasons.items():
        eta = "no start in sight" if reason.eta_at is None else f"expected {_at(reason.eta_at - now)}"
        slots = requests[trial_id].slots
        lines.append(f"  {trial_id}, {slots} slot{'' if slots == 1 else 's'}: {reason.code.lower()}, {eta}")
        lines.append(f"    {reason.message}")
        needed = describe_changes(decided.changes.get(trial_id, ()))
        lines.append(f"    would start if {needed or reason.would_start_if}")
    return lines


def _at(seconds: float) -> str:
    return "now" if seconds <= 0 else f"in {describe_seconds(seconds)}"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
