"""All that the ranks send and print: each message and line goes to the parts that take it.

Owns which part takes what, and in which order. `delivery/relay.py` passes on what training reports, `rank_group.py`
handles how a rank ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gangline.v1 import rank_pb2
from services.trial_runner.announcement import Announcement
from services.trial_runner.attempt_events import AttemptEvents
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.delivery.relay import Relay
from services.trial_runner.delivery.running_report import RunningReport
from services.trial_runner.fusion_records import FusionRelay
from services.trial_runner.gang.gang_plan import Place
from services.trial_runner.output import Output
from services.trial_runner.ranks.log_policy import LogPolicyMatcher
from services.trial_runner.ranks.rank_link import RankLinkServer
from services.trial_runner.ranks.startup_hook import HOOK_RANK
from services.trial_runner.ranks.worker_line import split_by_worker
from services.trial_runner.trial_facts import TrialFacts


@dataclass(frozen=True, slots=True)
class RankMessages:
    """Takes the messages of this machine's ranks between `start` and `close`."""

    link: RankLinkServer
    relay: Relay
    fusion: FusionRelay
    trial_facts: TrialFacts
    output: Output
    running: RunningReport
    announcement: Announcement
    events: AttemptEvents

    async def start(self) -> None:
        await self.link.start(self._on_message)

    async def close(self) -> None:
        """Called only when the ranks have gone."""
        await self.fusion.close()
        await self.trial_facts.close()
        await self.link.close()
        self.relay.tell_rest()

    def _on_message(self, rank: int, message: rank_pb2.RankMessage) -> None:
        rank_group = self.events.rank_group
        if rank_group is not None and self.running.is_up:
            self.announcement.make()
        self.relay.on_message(rank, message)
        self.fusion.on_message(rank, message)
        self.trial_facts.on_message(rank, message)
        self.output.on_message(message)
        if rank_group is not None:
            rank_group.on_message(rank, message)


@dataclass(frozen=True, slots=True)
class RankLines:
    """Takes the lines that the ranks and the startup hook print."""

    place: Place
    recorder: Recorder
    log_policy: LogPolicyMatcher

    def on_lines(self, rank: int, stream: str, lines: Sequence[str]) -> None:
        # The log has ranks only, so the startup hook's lines are those of the machine's first rank.
        rank = self.place.first_rank if rank == HOOK_RANK else rank
        for worker, part in split_by_worker(lines, rank) if self.place.runs_once else [(rank, lines)]:
            self.recorder.record_lines(worker, stream, part)
            self.log_policy.search(worker, part)
