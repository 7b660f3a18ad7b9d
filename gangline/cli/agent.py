"""`gangline agent ...` and `gangline slot ...`: the machines of the cluster and what holds their slots."""

from __future__ import annotations

import time

from gangline.cli.shared import Json, connect, new_group, show_table
from gangline.cli.text import format_age, format_bytes

app = new_group("See the machines of the cluster.")
slot_app = new_group("See the slots of the cluster.")


@app.command("list")
@app.command("ls", hidden=True)
def list_agents(is_json: Json = False) -> None:
    """List agents with their slots."""
    with connect() as client:
        views = client.list_agents()
    now = time.time()
    rows = [
        (
            view.agent.id,
            view.agent.pool,
            view.agent.state,
            f"{len(view.allocation_id_by_slot_id)}/{len(view.agent.slots)}",
            view.agent.hostname,
            format_age(view.agent.registered_at, now),
            view.agent.version,
        )
        for view in views
    ]
    headings = ("AGENT", "POOL", "STATE", "SLOTS USED", "HOST", "REGISTERED", "VERSION")
    show_table(views, is_json, headings, rows, "no agents have joined")


@slot_app.command("list")
@slot_app.command("ls", hidden=True)
def list_slots(is_json: Json = False) -> None:
    """List slots, each with the allocation that holds it."""
    with connect() as client:
        views = client.list_agents()
    pairs = [(view, slot, view.allocation_id_by_slot_id.get(slot.id)) for view in views for slot in view.agent.slots]
    records = [{"agent_id": view.agent.id, "slot": slot, "allocation_id": holder} for view, slot, holder in pairs]
    rows = [
        (
            slot.id,
            view.agent.id,
            slot.kind,
            slot.model or "-",
            format_bytes(slot.memory_bytes) if slot.memory_bytes else "-",
            holder or ("free" if slot.is_healthy else slot.problem or "unhealthy"),
        )
        for view, slot, holder in pairs
    ]
    headings = ("SLOT", "AGENT", "KIND", "MODEL", "MEMORY", "HELD BY")
    show_table(records, is_json, headings, rows, "no agents have joined")
