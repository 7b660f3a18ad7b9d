"""The folder of a runner's spool, <state>/spool/<allocation id>-<node rank>, and what the drainer finds there.

Owns the folder: it is made and claimed for the first record, and removed at the end if the gateway has taken all
records. Otherwise the drainer delivers them, to the gateways in the target that is written here. The folder lies
outside of the allocation's folder so that it outlives it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import structlog

from gangline.v1 import runner_pb2
from services.common.drainer_process import start_drainer
from services.trial_runner.delivery import drainer, metrics
from services.trial_runner.delivery.spool import Spool

log = structlog.get_logger(__name__)


class SpoolFolder:
    """Makes the spool of one runner. Nothing is on disk before there is a record."""

    def __init__(self, spec: runner_pb2.RunnerSpec, agent_id: str, spools: Path) -> None:
        """spools: the folder of all spools of this agent."""
        self.gateways = list(spec.gateway_addresses)  # addresses, as the drainer will find them
        self._spec = spec
        self._agent_id = agent_id
        self._spools = spools
        self._path = spools / f"{spec.allocation.id}-{spec.node_rank}"
        self._claim: int | None = None
        self._has_folder = False
        self._has_target = False
        self.spool = Spool(self._path, make_folder=self._make, agent_id=agent_id, on_damage=metrics.records_dropped.inc)

    @property
    def spool_id(self) -> str:
        return f"{self._spec.allocation.id}/{self._spec.node_rank}"

    def learn(self, gateways: Sequence[str]) -> bool:
        """Notes the gateways for the drainer. Returns whether they are others than before."""
        if not gateways or list(gateways) == self.gateways:
            return False
        self.gateways = list(gateways)
        if self._has_folder:
            self._save_target()
        return True

    def adopt_orphans(self) -> None:
        """Starts the drainer if there are spools whose runner has gone: killed, or ended while the gateway was away."""
        try:
            if drainer.has_orphans(self._spools):
                start_drainer(self._spools)
        except OSError as error:
            log.error("cannot start the drainer; the next runner here tries again", error=str(error))

    def close(self) -> None:
        """Leaves the records that are still there to the drainer."""
        self.spool.close()
        is_empty = not self.spool.num_waiting
        if not is_empty and not self._has_target:
            # The disk may have room again; without the target the drainer cannot deliver.
            self._save_target()
        if is_empty and self._has_folder:
            shutil.rmtree(self._path, ignore_errors=True)
        if self._claim is not None:
            os.close(self._claim)
        if not is_empty:
            log.warning("records are left to the drainer: the gateway is away", num_records=self.spool.num_waiting)
        self.adopt_orphans()

    def _make(self) -> None:
        """Makes and claims the folder. Raises OSError."""
        if self._has_folder:
            return
        # Ranks of other users pass through the state directory, and the drainer's log is in this folder.
        self._spools.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.mkdir(mode=0o700, exist_ok=True)
        self._claim = drainer.claim(self._path)
        self._has_folder = True
        self._save_target()

    def _save_target(self) -> None:
        try:
            drainer.save_target(
                self._path,
                spool_id=self.spool_id,
                trial_id=self._spec.trial.id,
                addresses=self.gateways,
                token=self._spec.token,
                agent_id=self._agent_id,
            )
            self._has_target = True
        except OSError as error:
            log.error("cannot write down for the drainer where the gateways are", error=str(error))
