"""Delivers the records of ended runners to the gateway, and then deletes them.

A runner ends within seconds of its ranks, so that the slots are free again. If the gateway is away at that moment, the
runner's spool stays behind. The drainer is a process of its own. It takes over every spool under <state>/spool whose
flock is free, also that of a killed runner, until all are delivered or too old.
A runner starts the drainer, and one drainer runs at a time. It ends when the machine's agent is gone for good; the next
runner on the machine starts it again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from services.common.concurrency import cancel
from services.common.disk import write_atomic
from services.common.state_folder import StateFolder, take_flock
from services.common.telemetry import configure_logging
from services.trial_runner.delivery.channel_route import route_to_gateways
from services.trial_runner.delivery.record_stream import RecordStream
from services.trial_runner.delivery.spool import Spool

# Age after which a spool is given up: a gateway that has been away for a week will not take its records.
MAX_AGE_SECONDS = 7 * 24 * 3600.0
# Pause between two searches for spools whose runner has ended meanwhile.
RESCAN_SECONDS = 5.0
# Pause before a folder is tried again whose disk fails, or that cannot be removed.
RETRY_SECONDS = 60.0
# Time without an agent after which the drainer ends. An agent that is only restarted is back sooner.
AGENTLESS_SECONDS = 30.0
_TARGET = "target.json"
_LOCK = "lock"

log = structlog.get_logger(__name__)


def claim(folder: Path) -> int | None:
    """Takes the ownership of this spool. Returns the descriptor that holds it, or None if another process owns the
    spool."""
    try:
        return take_flock(folder / _LOCK)
    except BlockingIOError:
        return None


def save_target(
    folder: Path, *, spool_id: str, trial_id: str, addresses: Sequence[str], token: str, agent_id: str = ""
) -> None:
    """Writes where the records must be sent, for the drainer. The file contains the token, so only its owner may read
    it."""
    target = {
        "spool_id": spool_id,
        "trial_id": trial_id,
        "addresses": list(addresses),
        "token": token,
        "agent_id": agent_id,
    }
    write_atomic(folder / _TARGET, json.dumps(target), mode=0o600, is_durable=False)


def has_orphans(spools: Path) -> bool:
    """Whether there is a spool without an owner."""
    for folder in _folders(spools):
        fd = claim(folder)
        if fd is not None:
            os.close(fd)
            return True
    return False


async def drain_all(spools: Path) -> None:
    """Returns when no spool without an owner is left, or when the machine has had no agent for AGENTLESS_SECONDS."""
    busy: dict[Path, asyncio.Task[None]] = {}
    # A folder is tried again after a pause if its disk fails, or if it cannot be removed.
    again_at: dict[Path, float] = {}
    agent_seen_at = time.monotonic()
    while time.monotonic() - agent_seen_at < AGENTLESS_SECONDS:
        if StateFolder(spools.parent).has_agent():
            agent_seen_at = time.monotonic()
        for folder in _folders(spools):
            if folder in busy or again_at.get(folder, 0.0) > time.monotonic():
                continue
            fd = claim(folder)
            if fd is not None:
                busy[folder] = asyncio.create_task(_drain(folder, fd))
        again_at = {folder: at for folder, at in again_at.items() if folder.exists()}
        if not busy and not again_at:
            return
        if not busy:
            await asyncio.sleep(RESCAN_SECONDS)
            continue
        done, _ = await asyncio.wait(busy.values(), timeout=RESCAN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for folder, task in list(busy.items()):
            if task in done:
                del busy[folder]
                _note_end(folder, task)
                again_at[folder] = time.monotonic() + RETRY_SECONDS


def _note_end(folder: Path, task: asyncio.Task[None]) -> None:
    failure = task.exception()
    if failure is not None:
        log.error("a spool cannot be delivered; trying again", folder=folder.name, error=repr(failure))


async def _drain(folder: Path, fd: int) -> None:
    try:
        target = _load_target(folder)
        if target is not None:
            await _deliver(folder, target)
        elif _is_worth_keeping(folder):
            # Without the token, no gateway takes them. The agent reports them for as long as they are here.
            raise ValueError(f"{folder / _TARGET} is missing or damaged, so the records stay; it names their trial")
        else:
            log.error("records are lost: their spool does not say where they belong", folder=folder.name)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(fd)


def _is_worth_keeping(folder: Path) -> bool:
    """Returns whether a spool without a target has records that are not too old."""
    return any(time.time() - path.stat().st_mtime < MAX_AGE_SECONDS for path in folder.glob("*.seg"))


async def _deliver(folder: Path, target: dict[str, object]) -> None:
    spool = Spool(folder, agent_id=str(target.get("agent_id", "")))
    addresses = target["addresses"]
    route = route_to_gateways(addresses if isinstance(addresses, list) else [], StateFolder(folder.parent.parent))
    ingest = RecordStream(
        spool, asyncio.Event(), route, spool_id=str(target["spool_id"]), trial_id=str(target["trial_id"])
    )
    tokens = _tokens(StateFolder(folder.parent.parent), str(target["token"]))
    running = asyncio.create_task(ingest.run(lambda: next(tokens)))
    age = time.time() - (folder / _TARGET).stat().st_mtime
    is_delivered = await ingest.drain(max(0.0, MAX_AGE_SECONDS - age))
    note = log.info if is_delivered and not spool.num_damaged else log.error
    note(
        "a spool is settled",
        folder=folder.name,
        is_delivered=is_delivered and not spool.num_damaged,
        num_left=spool.num_waiting,
        num_damaged=spool.num_damaged,
    )
    await cancel(running)
    await route.close()
    spool.close()


def _tokens(state: StateFolder, own_token: str) -> Iterator[str]:
    """Yields the agent's token and the attempt's own in turn, for one stream each.

    The own token is good for minutes after the end of the attempt. But a gateway of an earlier version knows no other,
    and an agent of an earlier version has written none.
    """
    while True:
        yield state.load_drain_token() or own_token
        yield own_token


def _load_target(folder: Path) -> dict[str, object] | None:
    """Returns the target of the spool, or None if its file is missing or incomplete."""
    try:
        target = json.loads((folder / _TARGET).read_text())
    except (OSError, ValueError):
        return None
    return (
        target if isinstance(target, dict) and {"spool_id", "trial_id", "addresses", "token"} <= set(target) else None
    )


def _folders(spools: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return sorted(path for path in spools.iterdir() if path.is_dir())
    return []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m services.trial_runner.delivery.drainer", description=__doc__)
    parser.add_argument("--spools", type=Path, required=True, help="the folder that holds the spools")
    options = parser.parse_args()
    configure_logging("trial-runner-drainer")
    try:
        take_flock(StateFolder(options.spools.parent).drainer_lock_path)
    except BlockingIOError:
        return 0
    asyncio.run(drain_all(options.spools))
    return 0


if __name__ == "__main__":
    sys.exit(main())
