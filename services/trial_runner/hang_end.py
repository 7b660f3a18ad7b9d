"""The end of a gang that hangs: the stacks of this machine's ranks go to the trial's log, then the ranks end.

Every member does this once, whether its watchdog has found the hang or the gang has reported it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gangline.domain.state import LogLevel
from gangline.launch.child import descendants
from services.trial_runner.attempt_events import AttemptEvents
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.gang.gang_plan import Place
from services.trial_runner.gang.outcome import FailureRecord, describe_failure
from services.trial_runner.ranks.log_pump import LAST_LINES
from services.trial_runner.ranks.rank_group import RankGroup
from services.trial_runner.watchdog.beats import Beats
from services.trial_runner.watchdog.hang_rule import describe_place
from services.trial_runner.watchdog.stacks import dump_stacks


class HangEnd:
    def __init__(self, place: Place, beats: Beats, recorder: Recorder, events: AttemptEvents) -> None:
        self._place = place
        self._beats = beats
        self._recorder = recorder
        self._events = events
        self._ending: asyncio.Task[None] | None = None

    def on_hang(self, failure: FailureRecord) -> None:
        """Begins the end. failure: names the rank that is furthest behind."""
        if self._events.rank_group is not None and self._ending is None:
            self._ending = asyncio.create_task(self._end(failure, self._events.rank_group))

    async def wait(self) -> None:
        """Returns when the end, if there was one, is recorded."""
        if self._ending is not None:
            await self._ending

    async def _end(self, failure: FailureRecord, rank_group: RankGroup) -> None:
        self._recorder.note(f"the gang hangs: {describe_failure(failure)}", LogLevel.ERROR)
        files = self._beats.living_files(rank_group.living)
        nursery = rank_group.nursery
        stacks_by_rank = await dump_stacks(files, descendants(nursery.pid), nursery.pid_of)
        for rank, stacks in stacks_by_rank.items():
            self._recorder.record_stacks(rank, describe_place(files[rank].read()), stacks.problem, stacks.lines)
        if failure.rank not in self._place.slot_ranks:
            self._events.on_peer_failure(failure)
            return
        lines = stacks_by_rank[failure.rank].main_thread[-LAST_LINES:] if failure.rank in stacks_by_rank else ()
        self._events.on_own_hang(replace(failure, details="\n".join(lines)))
