"""`gangline agent ...` and `gangline slot ...`: the machines of the cluster, and the allocations that hold their
slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.text import format_age, format_bytes
from gangline.cli.shared import Json, Wide, add_list, connect, new_group, show, show_table
from gangline.domain.explanation import troubles_of
from gangline.domain.id import describe_allocations
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.domain.resource import Agent
    from gangline.domain.view import AgentView

app = new_group("See the machines of the cluster, and take them out of use.")
slot_app = new_group("See the slots of the cluster, and take them out of use.")

_AGENT_COLUMNS = (
    Column("AGENT"),
    Column("POOL", 5, least=7),
    Column("STATE", 9, is_state=True),
    Column("AVAILABILITY", 7, is_state=True),
    Column("HEALTH", 8, least=12),
    Column("SLOTS USED", 6),
    Column("HOST", 3, least=8),
    Column("REGISTERED", 2),
    Column("VERSION", 1, least=7),
)
_SLOT_COLUMNS = (
    Column("SLOT"),
    Column("AGENT", 1),
    Column("KIND", 3),
    Column("MODEL", 4, least=10),
    Column("MEMORY", 5),
    Column("AVAILABILITY", 7, is_state=True),
    Column("HEALTH", 8, least=12),
    Column("HELD BY", 9),
)

AgentId = Annotated[str, typer.Argument(metavar="ID", help="The id of the agent.")]
SlotId = Annotated[str, typer.Argument(metavar="ID", help="The id of the slot, as agent-1/0.")]
Drain = Annotated[bool, typer.Option("--drain", help="Let what runs there go on to its end.")]


def _row(view: AgentView, now: float) -> tuple[object, ...]:
    return (
        view.agent.id,
        view.agent.pool,
        view.agent.state,
        view.agent.availability,
        _health(view.agent, now),
        f"{len(view.allocation_id_by_slot_id)}/{len(view.agent.slots)}",
        view.agent.hostname,
        format_age(view.agent.registered_at, now),
        view.agent.version,
    )


add_list(
    app,
    "List agents with their slots.",
    lambda client: client.list_agents(),
    _AGENT_COLUMNS,
    _row,
    empty="no agents have joined",
)


@app.command()
def enable(agent_id: AgentId, is_json: Json = False) -> None:
    """Let work start on it again."""
    with connect() as client:
        _show_agent(client.enable_agent(agent_id), is_json)


@app.command()
def disable(agent_id: AgentId, drain: Drain = False, is_json: Json = False) -> None:
    """Start no more work there. Running trials checkpoint and wait again; with --drain they run to their end."""
    with connect() as client:
        _show_agent((client.drain_agent if drain else client.disable_agent)(agent_id), is_json)


@slot_app.command("list")
@slot_app.command("ls", hidden=True)
def list_slots(is_json: Json = False, is_wide: Wide = False) -> None:
    """List slots, each with the allocation that holds it."""
    with connect() as client:
        views = client.list_agents()
    pairs = [
        (view, slot, view.allocation_id_by_slot_id.get(slot.id)) for view in views for slot in view.agent.known_slots
    ]
    records = [{"agent_id": view.agent.id, "slot": slot, "allocation_id": holder} for view, slot, holder in pairs]
    rows = [
        (
            slot.id,
            view.agent.id,
            slot.kind,
            slot.model or "-",
            format_bytes(slot.memory_bytes) if slot.memory_bytes else "-",
            slot.availability,
            "ok" if slot.is_healthy else slot.problem or "unhealthy",
            _holder_name(holder) or ("free" if slot.is_open and view.agent.availability == "ENABLED" else "-"),
        )
        for view, slot, holder in pairs
    ]
    show_table(records, _SLOT_COLUMNS, rows, "no agents have joined", is_json=is_json, is_wide=is_wide)


@slot_app.command("enable")
def enable_slot(slot_id: SlotId, is_json: Json = False) -> None:
    """Let work start on it again."""
    with connect() as client:
        _show_slot(client.enable_agent(_agent_of(slot_id), [slot_id]), slot_id, is_json)


@slot_app.command("disable")
def disable_slot(slot_id: SlotId, drain: Drain = False, is_json: Json = False) -> None:
    """Start no more work on it. A running trial checkpoints and waits again; with --drain it runs to its end."""
    with connect() as client:
        change = client.drain_agent if drain else client.disable_agent
        _show_slot(change(_agent_of(slot_id), [slot_id]), slot_id, is_json)


def _holder_name(allocation_id: str | None) -> str:
    return describe_allocations([allocation_id]) if allocation_id else ""


def _agent_of(slot_id: str) -> str:
    """Returns the agent of a slot. Raises GanglineError `id.slot`."""
    agent_id, slash, name = slot_id.partition("/")
    if not (agent_id and slash and name):
        raise invalid("id.slot", f"{slot_id!r} is no slot id; one looks like 'agent-1/0': gangline slot list")
    return agent_id


def _health(agent: Agent, now: float) -> str:
    """Returns "ok", the reason why no work starts on the agent, or the number of its unhealthy slots."""
    troubles = troubles_of(agent, now)
    if troubles:
        return "; ".join(troubles)
    unhealthy = sum(not slot.is_healthy for slot in agent.slots)
    return f"{unhealthy} of {len(agent.slots)} unhealthy" if unhealthy else "ok"


def _show_agent(agent: Agent, is_json: bool) -> None:
    show(agent, is_json, lambda: [f"agent {agent.id}: {agent.availability}"])


def _show_slot(agent: Agent, slot_id: str, is_json: bool) -> None:
    slot = next(slot for slot in agent.known_slots if slot.id == slot_id)
    show(slot, is_json, lambda: [f"slot {slot.id}: {slot.availability}"])
