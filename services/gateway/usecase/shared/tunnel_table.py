"""Connections to shells and notebooks: byte streams through the calls that their trial runners hold.

A runner dials every gateway, so a gateway never has to reach an agent. It offers its task at a gateway, receives orders
there, and opens one call for each order, which carries one connection. gRPC's flow control bounds what is in transit of
each call, so a slow reader holds up its own connection alone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from gangline.domain.experiment import Experiment
from gangline.domain.id import parse_allocation_id, trial_id
from gangline.domain.state import State
from gangline.errors import Effect, GanglineError, not_found, unavailable

# From the order to the runner's call.
OPEN_SECONDS = 10.0
# Connections to one task at a time; a browser keeps a few for each tab.
MAX_TUNNELS = 128
# Chunks that wait for a call to take them.
_MOST_WAITING = 4


class Tunnel:
    """One connection. Its user writes and reads; the runner's call carries the bytes. Both may close it."""

    def __init__(self) -> None:
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)
        self._incoming: AsyncIterator[bytes] | None = None
        self._attached: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._closed = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Returns when there is room. Raises ConnectionError once the tunnel is closed."""
        putting = asyncio.ensure_future(self._outgoing.put(data))
        closing = asyncio.ensure_future(self._closed.wait())
        await asyncio.wait((putting, closing), return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if self._closed.is_set():
            putting.cancel()
            raise ConnectionError("the tunnel is closed")

    async def read(self) -> bytes:
        """Returns the next bytes; none at the end."""
        assert self._incoming is not None, "an open tunnel has a call"
        if self._closed.is_set():
            return b""
        reading = asyncio.ensure_future(anext(self._incoming, b""))
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else b""
        except GanglineError:
            return b""
        finally:
            reading.cancel()
            closing.cancel()

    def close(self) -> None:
        self._closed.set()

    async def opened(self) -> str:
        """Returns why the runner could not reach the task; empty if it could."""
        return await self._attached

    def attach(self, incoming: AsyncIterator[bytes], problem: str) -> None:
        self._incoming = incoming
        self.settle(problem)

    def settle(self, problem: str) -> None:
        """Ends the wait for the runner. A tunnel that is settled already stays so."""
        if not self._attached.done():
            self._attached.set_result(problem)

    async def outgoing(self) -> AsyncIterator[bytes]:
        """Yields what is written until the tunnel is closed."""
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            while not self._closed.is_set():
                getting = asyncio.ensure_future(self._outgoing.get())
                await asyncio.wait((getting, closing), return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    return
                data = getting.result()
                if data:
                    yield data
        finally:
            closing.cancel()


@dataclass(slots=True)
class _Offer:
    """A runner that waits for orders."""

    allocation_id: str
    user: str
    # ids of tunnels; None once the offer is replaced
    orders: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    num_open: int = 0
    waiting: set[Tunnel] = field(default_factory=set)  # tunnels whose order the runner has not answered


class TunnelTable:
    """The tunnels of this gateway. A use case has checked who may have one."""

    def __init__(self) -> None:
        self._offers: dict[str, _Offer] = {}
        self._waiting: dict[str, tuple[str, Tunnel]] = {}
        # Set, and replaced by a new one, with each new offer.
        self._offered = asyncio.Event()

    @contextmanager
    def offered(self, allocation_id: str, user: str) -> Iterator[asyncio.Queue[str | None]]:
        """Yields the queue of orders, the ids of tunnels; None when a later offer of the trial replaces this one. user:
        the account of the task's processes."""
        own_trial_id, _ = parse_allocation_id(allocation_id)
        offer = _Offer(allocation_id, user)
        if earlier := self._offers.get(own_trial_id):
            earlier.orders.put_nowait(None)
        self._offers[own_trial_id] = offer
        self._offered.set()
        self._offered = asyncio.Event()
        try:
            yield offer.orders
        finally:
            if self._offers.get(own_trial_id) is offer:
                del self._offers[own_trial_id]
            for tunnel in offer.waiting:
                tunnel.settle("its trial runner has gone")

    def allocation_of(self, tunnel_id: str) -> str:
        """Returns the allocation whose runner has the order for this tunnel. Raises GanglineError
        `tunnel.not_found`."""
        if tunnel_id not in self._waiting:
            raise not_found("tunnel.not_found", "this tunnel is not waited for any more")
        return self._waiting[tunnel_id][0]

    def take(self, tunnel_id: str) -> Tunnel:
        """Returns a tunnel that waits for its runner's call, which `allocation_of` has found."""
        return self._waiting.pop(tunnel_id)[1]

    async def open(self, experiment: Experiment) -> OpenTunnel:
        """Returns a connection, to be used as a context. The caller has checked that the user may have it. Raises
        GanglineError of kind UNAVAILABLE: `task.not_ready`, `task.over`, `task.busy`, `task.unreachable`."""
        offer = self._offer_of(experiment)
        if offer.num_open + len(offer.waiting) >= MAX_TUNNELS:
            raise _unreachable("busy", experiment, f"has {MAX_TUNNELS} open connections, the most; close some")
        tunnel, tunnel_id = Tunnel(), secrets.token_urlsafe(16)
        self._waiting[tunnel_id] = offer.allocation_id, tunnel
        offer.waiting.add(tunnel)
        offer.orders.put_nowait(tunnel_id)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                problem = await tunnel.opened()
        except TimeoutError:
            problem = f"its trial runner did not answer within {OPEN_SECONDS:g} s"
        finally:
            self._waiting.pop(tunnel_id, None)
            offer.waiting.discard(tunnel)
        if problem:
            tunnel.close()
            raise _unreachable("unreachable", experiment, f"cannot be reached: {problem}")
        return OpenTunnel(tunnel, offer)

    def _offer_of(self, experiment: Experiment) -> _Offer:
        offer = self._offers.get(trial_id(experiment.id, 1))
        if offer is not None:
            return offer
        if experiment.state is State.TERMINAL:
            raise _unreachable("over", experiment, f"has ended: {experiment.reason}")
        raise _unreachable("not_ready", experiment, f"is not ready ({experiment.state}); try again in a moment")

    def user_of(self, experiment_id: int) -> str | None:
        """Returns the account of the task's processes; None for a task that is not ready."""
        offer = self._offers.get(trial_id(experiment_id, 1))
        return offer.user if offer is not None else None

    def is_ready(self, experiment_id: int) -> bool:
        return trial_id(experiment_id, 1) in self._offers

    async def wait_ready(self, experiment_id: int, seconds: float) -> bool:
        """Returns whether the task can be reached, as soon as it can, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.is_ready(experiment_id):
                    await self._offered.wait()
        return self.is_ready(experiment_id)


class OpenTunnel:
    """Counts an open tunnel while the context lasts, and closes it at the end."""

    def __init__(self, tunnel: Tunnel, offer: _Offer) -> None:
        self._tunnel = tunnel
        self._offer = offer

    def __enter__(self) -> Tunnel:
        self._offer.num_open += 1
        return self._tunnel

    def __exit__(self, *_: object) -> None:
        self._offer.num_open -= 1
        self._tunnel.close()


class AdmittedTunnel:
    """A tunnel that carries nothing any more once its caller may not have it. admit: raises GanglineError then."""

    def __init__(self, tunnel: Tunnel, admit: Callable[[], object]) -> None:
        self._tunnel = tunnel
        self._admit = admit

    async def read(self) -> bytes:
        """Returns the next bytes; none at the end."""
        data = await self._tunnel.read()
        return data if self._is_admitted() else b""

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError once the tunnel is closed."""
        if not self._is_admitted():
            raise ConnectionError("the caller may not reach the task any more")
        await self._tunnel.write(data)

    def close(self) -> None:
        self._tunnel.close()

    def _is_admitted(self) -> bool:
        try:
            self._admit()
        except GanglineError:
            return False
        return True


def _unreachable(code: str, experiment: Experiment, text: str) -> GanglineError:
    kind = (experiment.task_kind or "experiment").lower()
    return unavailable(f"task.{code}", f"{kind} {experiment.id} {text}", Effect.NONE)
