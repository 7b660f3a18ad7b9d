"""Calls of the gateway to the leading scheduler, and the one way of a user's change through it.

The mirror names the leader. Every call here is idempotent (a request id, or an end that changes nothing twice). So a
call that fails because leadership moves is retried against the next leader until its time limit ends. The final error
says whether any of the tries may have changed something. It keeps one channel, to the newest leader, and changes no
state by itself.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from gangline.config.layer.secret import hide_secrets
from gangline.domain.experiment import Experiment
from gangline.domain.resource import ServiceInstance
from gangline.errors import Effect, ErrorKind, GanglineError, unavailable
from gangline.protocol import rpc, wire
from gangline.protocol.dialer import PLAIN, Dialer
from gangline.v1 import scheduler_pb2_grpc
from services.common.concurrency import first_of
from services.common.leader_probe import NOT_LEADER_CODE
from services.gateway.audit.attempt import Changing
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import LEADER_NOTIFICATION, Watched

if TYPE_CHECKING:
    from gangline.v1.scheduler_pb2_grpc import SchedulerServiceAsyncStub

# Time limit of one try.
TRY_SECONDS = 5.0
# A call waits so long for a leader: longer than a fail-over by lease.
PATIENCE_SECONDS = 12.0
# Pause before the next try at a leader that does not answer.
REDIAL_SECONDS = 0.25
# How long the answer to a change waits for the mirror to show the write.
MIRROR_SECONDS = 5.0
# The error of a leader that cannot write to etcd.
UNWRITABLE_CODE = "state.unwritable"
# Errors that say less than etcd's own problem does, while it has one.
_VAGUE_CODES = frozenset({"rpc.timeout", "rpc.unreachable", "gateway.no_leader", NOT_LEADER_CODE})

log = structlog.get_logger(__name__)


class ChangeRequest(Protocol):
    """The fields that every message of a user's change has."""

    request_id: str
    user: str


def read_experiment(message: Message) -> Experiment:
    """Returns an experiment of the leader's answer, as the gateway may show it."""
    return hide_secrets(wire.from_proto(Experiment, message))


Q = TypeVar("Q")
C = TypeVar("C", bound=ChangeRequest)
A = TypeVar("A")
Choose = Callable[["SchedulerServiceAsyncStub"], "grpc.aio.UnaryUnaryMultiCallable[Q, A]"]


class Leader:
    """Calls the leader. patience_seconds: for how long a change may wait for a leader that answers; None for
    PATIENCE_SECONDS.

    etcd_problem: returns one sentence while etcd is known not to work, else an empty text. dialer: opens the channel.
    """

    def __init__(
        self,
        mirror: Watched,
        cluster_token: str,
        patience_seconds: float | None = None,
        etcd_problem: Callable[[], str] = lambda: "",
        dialer: Dialer = PLAIN,
    ) -> None:
        self._mirror = mirror
        self._metadata = rpc.token_metadata(cluster_token)
        self._patience_seconds = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        self._etcd_problem = etcd_problem
        self._dialer = dialer
        # Of the channel: its address, and the version of the files of TLS.
        self._target = ("", 0)
        self._channel: grpc.aio.Channel | None = None
        # Of the channel. Making one takes longer than a call's own work.
        self._stub: SchedulerServiceAsyncStub | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def change(self, caller: Caller, choose: Choose[C, A], request: C) -> A:
        """Makes a user's change, as in `change(caller, lambda scheduler: scheduler.KillTrial, request)`. Fills in the
        request id and the user. Returns the leader's answer when the caller can read its own write.

        Raises GanglineError `request.no_id`, `request.long_id`, and the errors of `call`.
        """
        request.request_id, request.user = request_id_of(caller), caller.name
        with self.recording(request) as change:
            change.answer = answer = await self.call(choose, request)
            # An answer without a revision belongs to a change that writes nothing to etcd, as the order of a trace.
            await self.settle(getattr(answer, "revision", 0))
        return answer

    def recording(self, request: Any) -> Changing:
        """Returns the context in which a change leaves its records of the audit log."""
        return Changing(self._mirror, request)

    async def settle(self, revision: int) -> None:
        """Waits until the mirror shows this revision. The write is done either way, so a delay is no error."""
        if not await self._mirror.wait_for_revision(revision, MIRROR_SECONDS):
            log.warning("the mirror is behind", revision=revision, mirrored=self._mirror.state.revision)

    async def call(self, choose: Choose[Q, A], request: Q) -> A:
        """Returns the leader's answer, as in `call(lambda scheduler: scheduler.KillTrial, request)`. Retries, also with
        the next leader, as long as the failure may pass. Raises GanglineError."""
        clock = asyncio.get_running_loop().time
        # A caller that arrives long after the last leader went gets the error at once.
        give_up_at = clock() + self._patience_seconds - min(self._patience_seconds, self._mirror.leaderless_seconds())
        effect = Effect.NONE
        with self._mirror.changes.listen(LEADER_NOTIFICATION) as leader_changed:
            while True:
                leader_changed.clear()
                try:
                    # A shorter last try would leave open a result that a leader could still report for certain.
                    return await self._call_while_leading(choose, request, TRY_SECONDS)
                except GanglineError as error:
                    if not _may_pass(error):
                        raise
                    if error.effect is Effect.UNKNOWN:
                        effect = Effect.UNKNOWN
                    left = give_up_at - clock()
                    is_futile = error.code == UNWRITABLE_CODE and bool(self._etcd_problem())
                    if is_futile or left <= 0:
                        raise self._final(error, effect) from error
                # Without a leader only a new one helps; if one does not answer, dialling again may help.
                await leader_changed.wait(min(REDIAL_SECONDS, left) if self._mirror.state.leader else left)

    async def _call_while_leading(self, choose: Choose[Q, A], request: Q, seconds: float) -> A:
        """Calls like `call_once`, but raises at once when another scheduler leads meanwhile: a paused one would not
        answer."""
        asked = self._mirror.state.leader
        answer = await first_of(self.call_once(choose, request, seconds), self._wait_for_other_leader(asked))
        if answer is None:
            raise unavailable("gateway.leader_changed", "another scheduler leads since the call was made")
        return answer

    async def _wait_for_other_leader(self, asked: ServiceInstance | None) -> None:
        with self._mirror.changes.listen(LEADER_NOTIFICATION) as leader_changed:
            while self._mirror.state.leader in (None, asked):
                await leader_changed.wait()
                leader_changed.clear()

    async def call_once(self, choose: Choose[Q, A], request: Q, seconds: float) -> A:
        """Makes one try. For calls that only explain something, a retry would delay what they explain. Raises
        GanglineError."""
        leader = self._mirror.state.leader
        if leader is None:
            raise no_leader()
        stub = self._dial(leader.grpc_address)
        try:
            return await choose(stub)(request, timeout=seconds, metadata=self._metadata)
        except grpc.aio.AioRpcError as failure:
            raise rpc.error_of(failure, f"the leading scheduler at {leader.grpc_address}") from failure

    def _final(self, error: GanglineError, effect: Effect) -> GanglineError:
        """Returns the error of the last try, with the effect of all of them."""
        problem = self._etcd_problem() if error.code in _VAGUE_CODES else ""
        if problem:
            return unavailable("gateway.no_etcd", f"{problem} ({error.message})", effect)
        # That a scheduler did not lead is no conflict with the request: the next leader may accept it.
        kind = ErrorKind.UNAVAILABLE if error.kind is ErrorKind.CONFLICT else error.kind
        return GanglineError(error.code, error.message, kind, effect)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
        await asyncio.gather(*self._closing)

    def _dial(self, address: str) -> SchedulerServiceAsyncStub:
        target = (address, self._dialer.version)
        if self._stub is None or target != self._target:
            if self._channel is not None:
                # Calls that are in progress at the old leader may still be answered.
                closing = asyncio.create_task(self._channel.close(TRY_SECONDS))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            self._channel = self._dialer.open_async(address, rpc.CHANNEL_OPTIONS)
            self._target = target
            self._stub = scheduler_pb2_grpc.SchedulerServiceStub(self._channel)
        return self._stub


def request_id_of(caller: Caller) -> str:
    """Returns the id of the caller's next change. Raises GanglineError `request.no_id` or `request.long_id`."""
    caller.check_request_id()
    return str(uuid.uuid4()) if caller.request_id is None else caller.request_id


def no_leader() -> GanglineError:
    return unavailable(
        "gateway.no_leader",
        "no scheduler leads this cluster, so nothing can be changed now; start a scheduler, or see its log for "
        "why it does not lead (reading still works)",
        Effect.NONE,
    )


def _may_pass(error: GanglineError) -> bool:
    """Returns whether the same call may succeed a moment later: the leader is away, slow, or has just been replaced."""
    if error.kind is ErrorKind.CONFLICT:
        return error.code == NOT_LEADER_CODE
    return error.kind in (ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT)
