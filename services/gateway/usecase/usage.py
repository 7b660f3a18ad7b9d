"""Reports the slots that were held in a period, by owner, pool, experiment, project or workspace."""

from __future__ import annotations

import time
from dataclasses import replace

from gangline.domain.named_kind import DEFAULT_PROJECT, DEFAULT_WORKSPACE
from gangline.domain.state import UsageGroup
from gangline.domain.usage import AllocationUsage, UsageReport, add_up, entry_of, usage_of
from gangline.errors import invalid
from gangline.when import check_period
from services.common import keys
from services.gateway.history.reader import Reader
from services.gateway.history.usage_recorder import UsageRecorder
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.sight import sight_of

# Allocations that have ended within this time are compared with the live ones by their ids, because one may end while
# the report is made. It exceeds the difference between the clocks of leader and gateway.
RECENT_SECONDS = 600.0
# The key of experiments whose project is not known any more.
DELETED = "(deleted experiments)"
# The key of what the caller does not see, and of deleted experiments where the caller does not see everything.
UNSEEN = "(other workspaces)"
# The key of experiments that have no label, or are deleted.
NO_LABEL = "(no label)"


class Usage:
    def __init__(self, caller: Caller, mirror: Watched, reader: Reader, recorder: UsageRecorder) -> None:
        self._caller = caller
        self._mirror = mirror
        self._reader = reader
        self._recorder = recorder

    async def report(self, since: float, until: float, by: UsageGroup | None) -> UsageReport:
        """Adds up the period. until: 0 for now. by: None for a group that this version does not know.

        Raises GanglineError `usage.by`, `usage.period`, `history.*`.
        """
        if by is None:
            raise invalid("usage.by", f"usage is added up by {', '.join(UsageGroup)}; name one of them")
        now = time.time()
        until = until or now
        check_period(since, until, now)
        # Invariant: read before the ended ones are stored, so each allocation is among the live or the stored ones.
        # Usage outlives experiments, but not their projects, so these are looked up by the experiment's present record.
        is_of_home = by in (UsageGroup.PROJECT, UsageGroup.WORKSPACE)
        # Owners are told by the experiments that the caller sees.
        is_of_seen = by is UsageGroup.OWNER and not self._sees_all
        stored_by = UsageGroup.EXPERIMENT if is_of_home or is_of_seen else by
        record_by_id = {record.allocation_id: record for record in self._live(now)}
        await self._recorder.record()
        entries, recent = await self._reader.usage(since, until, stored_by, now - RECENT_SECONDS)
        record_by_id |= {record.allocation_id: record for record in recent}
        parts = (entry_of(record, stored_by, since, until) for record in record_by_id.values())
        all_entries = [*entries, *(part for part in parts if part is not None)]
        if is_of_home or is_of_seen:
            all_entries = [replace(entry, key=self._home_of(entry.key, by)) for entry in all_entries]
        elif stored_by is UsageGroup.EXPERIMENT and not self._sees_all:
            all_entries = [replace(entry, key=self._seen_id(entry.key)) for entry in all_entries]
        return UsageReport(since, until, by, add_up(all_entries))

    async def report_by_label(self, since: float, until: float) -> dict[str, float]:
        """Returns slot-seconds by label, and those without a label under NO_LABEL. An experiment with several labels
        counts for each of them, by the labels that it has now. Raises as `report` does."""
        report = await self.report(since, until, UsageGroup.EXPERIMENT)
        seconds_by_label: dict[str, float] = {}
        for entry in report.entries:
            if entry.key == UNSEEN:
                seconds_by_label[UNSEEN] = entry.slot_seconds
                continue
            experiment = self._mirror.state.experiments.find(keys.experiment(int(entry.key)))
            for label in (experiment.labels if experiment is not None else ()) or (NO_LABEL,):
                seconds_by_label[label] = seconds_by_label.get(label, 0.0) + entry.slot_seconds
        return seconds_by_label

    def _home_of(self, experiment_id: str, by: UsageGroup) -> str:
        """Returns the name of the workspace, or of it and the project, that holds the experiment now."""
        state = self._mirror.state
        experiment = state.experiments.find(keys.experiment(int(experiment_id)))
        if experiment is None:
            return DELETED if self._sees_all else UNSEEN
        if by is UsageGroup.OWNER:
            return experiment.owner
        project = state.projects.find(keys.project(experiment.home_id)) or DEFAULT_PROJECT
        workspace = state.workspaces.find(keys.workspace(project.workspace_id)) or DEFAULT_WORKSPACE
        return workspace.name if by is UsageGroup.WORKSPACE else f"{workspace.name}/{project.name}"

    @property
    def _sees_all(self) -> bool:
        return sight_of(self._mirror.state, self._caller.principal).sees_all

    def _seen_id(self, experiment_id: str) -> str:
        seen = self._mirror.state.experiments.find(keys.experiment(int(experiment_id)))
        return experiment_id if seen is not None else UNSEEN

    def _live(self, now: float) -> list[AllocationUsage]:
        state = self._mirror.state.whole
        records: list[AllocationUsage] = []
        for allocation in state.allocations.all():
            experiment = state.experiments.find(keys.experiment(allocation.experiment_id))
            owner = experiment.owner if experiment is not None else ""
            usage = usage_of(allocation, now)
            records.append(AllocationUsage(allocation.id, allocation.experiment_id, owner, usage))
        return records
