"""What a trial runner does for the tunnels to its task: it offers the task, and answers orders."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gangline.domain.id import parse_allocation_id
from gangline.errors import conflict
from services.gateway.mirror.attempt_fence import why_over
from services.gateway.mirror.caller import Runner
from services.gateway.mirror.mirror import Watched
from services.gateway.usecase.shared.task_secret import TaskSecrets
from services.gateway.usecase.shared.tunnel_table import Tunnel, TunnelTable
from services.gateway.usecase.shared.view import Views


class TunnelOffers:
    def __init__(self, runner: Runner, mirror: Watched, views: Views, table: TunnelTable, secrets: TaskSecrets) -> None:
        self._runner = runner
        self._mirror = mirror
        self._views = views
        self._table = table
        self._secrets = secrets

    async def offer(self, allocation_id: str, user: str) -> AsyncIterator[tuple[str, str]]:
        """Yields the owner's public key, and then orders, each as a pair of both with one of them empty."""
        trial_id, _ = parse_allocation_id(allocation_id)
        self._runner.check_trial(trial_id, allocation_id)
        if over := why_over(self._mirror.state, allocation_id):
            raise conflict("task.over", over)
        await self._views.confirm(trial_id=trial_id)
        experiment = self._views.experiment(self._views.trial(trial_id).experiment_id)
        with self._table.offered(allocation_id, user) as orders:
            yield self._secrets.public_key(experiment), ""
            while (order := await orders.get()) is not None:
                yield "", order

    def take(self, tunnel_id: str) -> Tunnel:
        """Returns the tunnel that a runner's call answers. Raises GanglineError `tunnel.not_found`."""
        allocation_id = self._table.allocation_of(tunnel_id)
        self._runner.check_trial(parse_allocation_id(allocation_id)[0], allocation_id)
        return self._table.take(tunnel_id)
