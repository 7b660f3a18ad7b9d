"""The report that an attempt runs: the phases of its start, and the address of this runner's metrics.

Owns the timeline of the start. The runner notes each phase here, and sends the report again after each of them.
"""

from __future__ import annotations

import time
from dataclasses import replace

import structlog

from gangline.domain.allocation import Timeline
from gangline.protocol.wire import prepare, to_proto
from gangline.v1 import runner_pb2
from services.common.state_folder import SharedFolder
from services.trial_runner.delivery import metrics
from services.trial_runner.delivery.reporter import Reporter

prepare(Timeline)
_log = structlog.get_logger(__name__)


class RunningReport:
    def __init__(self, spec: runner_pb2.RunnerSpec, agent_id: str, folder: SharedFolder, reporter: Reporter) -> None:
        self._spec = spec
        self._folder = folder
        self._agent_id = agent_id
        self._reporter = reporter
        self._timeline = Timeline(runner_up_at=time.time())
        self._metrics_address = ""

    @property
    def is_due(self) -> bool:
        """Whether the ranks were up, and no report has named the metrics yet."""
        return not self._metrics_address and self.is_up

    @property
    def is_up(self) -> bool:
        return bool(self._timeline.ranks_up_at)

    def note_up(self, rendezvous_at: float, ranks_up_at: float) -> None:
        self._timeline = replace(self._timeline, rendezvous_at=rendezvous_at, ranks_up_at=ranks_up_at)

    def on_first_step(self, at: float) -> None:
        self._timeline = replace(self._timeline, first_step_at=at)
        self.send()

    def serve_metrics(self) -> None:
        """Serves the metrics of this runner, and writes their address for the agent, which checks it. The report names
        it for leaders of earlier versions."""
        spec = self._spec
        self._metrics_address = metrics.serve(
            next(iter(spec.scheduler_addresses), ""),
            allocation_id=spec.allocation.id,
            trial_id=spec.trial.id,
            experiment_id=str(spec.trial.experiment_id),
            agent_id=self._agent_id,
            node_rank=str(spec.node_rank),
        )
        try:
            self._folder.write_metrics_address(self._metrics_address)
        except OSError as error:
            _log.warning("the metrics of this runner stay unpublished", error=str(error))
        self.send()

    def send(self) -> None:
        timeline = self._timeline
        report = runner_pb2.RunningReport(timeline=to_proto(timeline), metrics_address=self._metrics_address)
        self._reporter.add(runner_pb2.TrialReport(running=report))
        metrics.observe_phases(
            timeline.runner_up_at,
            rendezvous=timeline.rendezvous_at,
            ranks_up=timeline.ranks_up_at,
            first_step=timeline.first_step_at,
        )
