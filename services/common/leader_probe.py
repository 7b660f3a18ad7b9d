"""Notices within milliseconds that a process on another machine has died.

When a process dies its kernel closes its sockets at once. So a standby keeps a plain TCP connection to the leader's
grpc port: when it closes and a new one is refused, no process listens there any more. A host that is gone closes
nothing; that case is left to the lease. This module decides nothing; `election.py` does.

Owns the error of a scheduler that does not lead, with the leader's address as a field.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from gangline.errors import Effect, ErrorKind, GanglineError
from services.common.address import split_address

_log = structlog.get_logger(__name__)

# Limit for opening a connection.
_DIAL_SECONDS = 2.0
# Pause after an address that refused or was not reachable.
_REDIAL_SECONDS = 1.0
# Pause after a connection that was reset while it was opened.
_RESET_SECONDS = 0.05


async def leader_died(address: str, on_connected: Callable[[], None] = lambda: None) -> None:
    """Returns when a connection to this address was open, was closed, and the next one is refused.

    on_connected: called whenever a connection is open; from then on a death is noticed.
    An address that refuses from the start proves nothing, because it may only mean something on the leader's own
    machine. This function then never returns; nor does it when a host just stops answering.
    """
    host, port = split_address(address)
    was_connected = False
    while True:
        try:
            async with asyncio.timeout(_DIAL_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            if was_connected:
                return
        except ConnectionError:
            # The listener accepted the dial and was gone before the connection was open: its process is just ending.
            await asyncio.sleep(_RESET_SECONDS)
            continue
        except (OSError, TimeoutError):
            # Unreachable does not mean dead: the network may be at fault. The lease decides.
            was_connected = False
        else:
            was_connected = True
            on_connected()
            await _wait_until_closed(reader, writer)
            # A grpc server closes a connection that sends nothing after two minutes; then the next dial succeeds.
            continue
        await asyncio.sleep(_REDIAL_SECONDS)


async def _wait_until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while await reader.read(4096):
                pass
    finally:
        writer.close()


NOT_LEADER_CODE = "scheduler.not_leader"


def not_leader(address: str = "", effect: Effect = Effect.NONE) -> GanglineError:
    """Builds the error of a standby, and of a leader whose term is over. The schedulers raise it; agents, trial runners
    and gateways continue with the address in its `leader_address`.

    address: "host:port" of the leader; empty when the caller knows none. effect: of the change that was asked for.
    """
    where = f"the leader is at {address}" if address else "no scheduler leads right now; try again"
    error = GanglineError(NOT_LEADER_CODE, f"this scheduler does not lead; {where}", ErrorKind.CONFLICT, effect)
    error.leader_address = address
    return error
