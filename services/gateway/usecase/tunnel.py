"""Connections to shells and notebooks: byte streams through the calls that their trial runners hold.

A runner dials every gateway, so a gateway never has to reach an agent. It offers its task at a gateway, receives orders
there, and opens one call for each order, which carries one connection. gRPC's flow control bounds what is in transit of
each call, so a slow reader holds up its own connection alone.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gangline.domain.experiment import Experiment
from gangline.domain.id import parse_allocation_id, trial_id
from gangline.domain.state import State, TaskKind
from gangline.domain.user import User
from gangline.domain.view import TaskAccess
from gangline.errors import Effect, GanglineError, conflict, not_found, unauthenticated, unavailable
from services.common import keys
from services.common.access.security import hash_token, is_same_token
from services.common.access.task_token import check_proxy_token, proxy_token, read_proxy_token, shell_seed, task_code
from services.common.server import Principal
from services.gateway.mirror.attempt_fence import why_over
from services.gateway.mirror.auth import check_owner, check_trial, check_user
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.view import Views

# From the order to the runner's call.
OPEN_SECONDS = 10.0
# Connections to one task at a time; a browser keeps a few for each tab.
MAX_TUNNELS = 128
# For so long a browser reaches a task with one address or cookie.
PROXY_SECONDS = 24 * 3600
# Chunks that wait for a call to take them.
_MOST_WAITING = 4
_KINDS = (TaskKind.SHELL, TaskKind.NOTEBOOK)


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


class Tunnels:
    def __init__(self, mirror: Watched, views: Views, cluster_token: str) -> None:
        self._mirror = mirror
        self._views = views
        self._cluster_token = cluster_token
        self._offers: dict[str, _Offer] = {}
        self._waiting: dict[str, tuple[str, Tunnel]] = {}
        # Set, and replaced by a new one, with each new offer.
        self._offered = asyncio.Event()

    async def offer(self, principal: Principal, allocation_id: str, user: str) -> AsyncIterator[tuple[str, str]]:
        """Yields the owner's public key, and then orders, each as a pair of both with one of them empty."""
        own_trial_id, _ = parse_allocation_id(allocation_id)
        check_trial(principal, own_trial_id, allocation_id)
        if over := why_over(self._mirror.state, allocation_id):
            raise conflict("task.over", over)
        await self._views.confirm(trial_id=own_trial_id)
        experiment = self._views.experiment(self._views.trial(own_trial_id).experiment_id)
        offer = _Offer(allocation_id, user)
        if earlier := self._offers.get(own_trial_id):
            earlier.orders.put_nowait(None)
        self._offers[own_trial_id] = offer
        self._offered.set()
        self._offered = asyncio.Event()
        try:
            yield self._public_key(experiment), ""
            while (order := await offer.orders.get()) is not None:
                yield "", order
        finally:
            if self._offers.get(own_trial_id) is offer:
                del self._offers[own_trial_id]
            for tunnel in offer.waiting:
                tunnel.settle("its trial runner has gone")

    def take(self, principal: Principal, tunnel_id: str) -> Tunnel:
        """Returns the tunnel that a runner's call answers. Raises GanglineError `tunnel.not_found`."""
        allocation_id, tunnel = self._waiting.get(tunnel_id, ("", None))
        if tunnel is None:
            raise not_found("tunnel.not_found", "this tunnel is not waited for any more")
        check_trial(principal, parse_allocation_id(allocation_id)[0], allocation_id)
        del self._waiting[tunnel_id]
        return tunnel

    def find(self, principal: Principal, experiment_id: int) -> Experiment:
        """Returns a task that the caller may reach. Raises GanglineError `task.no_tunnel`, `auth.not_owner`,
        `experiment.not_found`."""
        # First, so that no other caller learns which ids exist.
        check_user(principal)
        experiment = self._views.experiment(experiment_id)
        if experiment.task_kind not in _KINDS:
            kind = (experiment.task_kind or "experiment").lower()
            raise not_found(
                "task.no_tunnel", f"{experiment_id} is a {kind}, and only shells and notebooks are reached so"
            )
        check_owner(principal, experiment.owner, f"reach {experiment.task_kind.lower()} {experiment_id}")
        return experiment

    def find_by_code(self, experiment_id: int, code: str) -> Experiment | None:
        """Returns the shell whose id has this code. None for another code, for a task of another kind, and for a shell
        whose owner may not log in any more."""
        if not is_same_token(code, task_code(self._cluster_token, experiment_id)):
            return None
        experiment = self._views.experiment(experiment_id)
        owner = self._mirror.state.users.find(keys.user(experiment.owner))
        if experiment.task_kind is not TaskKind.SHELL or (owner is not None and owner.is_deactivated):
            return None
        return experiment

    async def open(self, experiment: Experiment) -> _Lease:
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
        return _Lease(tunnel, offer)

    def _offer_of(self, experiment: Experiment) -> _Offer:
        offer = self._offers.get(trial_id(experiment.id, 1))
        if offer is not None:
            return offer
        if experiment.state is State.TERMINAL:
            raise _unreachable("over", experiment, f"has ended: {experiment.reason}")
        raise _unreachable("not_ready", experiment, f"is not ready ({experiment.state}); try again in a moment")

    def access(self, principal: Principal, experiment_id: int) -> TaskAccess:
        """Returns how the caller reaches the task. Raises GanglineError as `find` does."""
        experiment = self.find(principal, experiment_id)
        offer = self._offers.get(trial_id(experiment_id, 1))
        key = self._private_key(experiment) if experiment.task_kind is TaskKind.SHELL else ""
        path = self.path_of(principal, experiment_id)
        return TaskAccess(offer is not None, offer.user if offer else "", path, key)

    def is_ready(self, experiment_id: int) -> bool:
        return trial_id(experiment_id, 1) in self._offers

    async def wait_ready(self, experiment_id: int, seconds: float) -> bool:
        """Returns whether the task can be reached, as soon as it can, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.is_ready(experiment_id):
                    await self._offered.wait()
        return self.is_ready(experiment_id)

    def path_of(self, principal: Principal, experiment_id: int) -> str:
        """Returns the path of a task, with a token for the caller's browser; without one for a caller that is no
        user."""
        token = self.token(principal.name, experiment_id)
        return f"/proxy/{experiment_id}/" + (f"?token={token}" if token else "")

    def token(self, user_name: str, experiment_id: int) -> str:
        """Returns the token of a browser; empty for a name that is no user's."""
        user = self._find_user(user_name)
        if user is None:
            return ""
        ends_at = int(time.time()) + PROXY_SECONDS
        return proxy_token(self._cluster_token, user.name, _login_of(user), str(experiment_id), ends_at)

    def identify(self, token: str, experiment_id: int) -> tuple[Principal, float]:
        """Returns the user of a browser's token, and how long it is valid, in seconds. Raises GanglineError
        `auth.proxy`."""
        name, ends_at = read_proxy_token(token)
        user = self._find_user(name) if name else None
        if user is None:
            raise unauthenticated("auth.proxy", "this address needs a token; ask for it: gangline notebook open ID")
        now = time.time()
        check_proxy_token(self._cluster_token, token, _login_of(user), str(experiment_id), now)
        return Principal(kind="user", name=user.name, is_admin=user.is_admin), ends_at - now

    def _find_user(self, name: str) -> User | None:
        """Returns None for a name of no user, or of one who may not log in any more."""
        user = self._mirror.state.users.find(keys.user(name))
        return None if user is None or user.is_deactivated else user

    def code_of(self, principal: Principal, experiment: Experiment) -> str:
        """Returns the code in the id of a task; empty for callers that are neither its owner nor administrators."""
        is_own = principal.is_admin or principal.name == experiment.owner
        return task_code(self._cluster_token, experiment.id) if is_own else ""

    def _private_key(self, experiment: Experiment) -> str:
        key = self._key(experiment)
        return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()

    def _public_key(self, experiment: Experiment) -> str:
        if experiment.task_kind is not TaskKind.SHELL:
            return ""
        return self._key(experiment).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()

    def _key(self, experiment: Experiment) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(shell_seed(self._cluster_token, experiment.owner, experiment.id))


class _Lease:
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


def _login_of(user: User) -> str:
    """Returns a hash of all with which the user logs in, so that a browser's token ends with the user's sessions."""
    return hash_token(f"{user.token_sha256} {user.login_sha256} {user.password_hash} {user.sessions_since}")


def _unreachable(code: str, experiment: Experiment, text: str) -> GanglineError:
    kind = (experiment.task_kind or "experiment").lower()
    return unavailable(f"task.{code}", f"{kind} {experiment.id} {text}", Effect.NONE)
