"""Delivers the code of an experiment to its trial runners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gangline.domain.id import experiment_id_of, parse_allocation_id
from gangline.errors import ErrorKind, GanglineError
from services.common import keys
from services.gateway.mirror.attempt_fence import why_over
from services.gateway.mirror.caller import Runner
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.shared.stored_code import StoredCode, check_sha256

# How far a runner may be ahead of the mirror.
MIRROR_SECONDS = 5.0


class CodeDelivery:
    def __init__(self, runner: Runner, mirror: Watched, stored: StoredCode) -> None:
        self._runner = runner
        self._mirror = mirror
        self._stored = stored

    async def fetch(self, code_sha256: str) -> AsyncIterator[bytes]:
        """Yields the code of a trial runner's own experiment."""
        check_sha256(code_sha256)
        await self._check_own(code_sha256)
        async for chunk in self._stored.chunks(code_sha256):
            yield chunk

    async def _check_own(self, code_sha256: str) -> None:
        principal, allocation_id = self._runner.principal, self._runner.allocation_id
        if principal.kind == "cluster":
            return
        if allocation_id and await self._has_code(allocation_id, code_sha256):
            reason = why_over(self._mirror.state, allocation_id)
            if reason:
                raise GanglineError("auth.attempt_over", f"no code is handed out: {reason}", ErrorKind.FORBIDDEN)
            return
        raise GanglineError(
            "auth.forbidden",
            f"{principal.kind} {principal.name} may not fetch the code {code_sha256}; runners fetch their trial's only",
            ErrorKind.FORBIDDEN,
        )

    async def _has_code(self, allocation_id: str, code_sha256: str) -> bool:
        """Returns whether the allocation's experiment has this code. Waits for the mirror, because a runner that
        started within milliseconds may ask before its experiment, or its new code, is mirrored."""
        experiment_id = experiment_id_of(parse_allocation_id(allocation_id)[0])
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MIRROR_SECONDS
        with self._mirror.changes.listen(experiment_id) as changed:
            while True:
                changed.clear()
                experiment = self._mirror.state.experiments.find(keys.experiment(experiment_id))
                if experiment is not None and experiment.code_sha256 == code_sha256:
                    return True
                if not await changed.wait(max(0.0, deadline - loop.time())):
                    return False
