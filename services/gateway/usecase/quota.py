"""Quotas of users and workspaces: shows them with their use, and forwards changes to the leader."""

from __future__ import annotations

import time

from gangline.domain.named_kind import DEFAULT_PROJECT, DEFAULT_WORKSPACE
from gangline.domain.quota import (
    USER_KIND,
    Quota,
    QuotaChange,
    QuotaSubject,
    QuotaView,
    check_quota_change,
    check_quota_kind,
    counted_month,
    ended_seconds,
    month_start,
    no_quota,
    subjects_in,
)
from gangline.protocol import wire
from gangline.v1 import quota_pb2
from services.common import keys
from services.gateway.audit.attempt import current_attempt
from services.gateway.leader.leader_client import Leader
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.mirror import Watched

SECONDS_PER_HOUR = 3600.0


class Quotas:
    def __init__(self, caller: Caller, mirror: Watched, leader: Leader) -> None:
        self._caller = caller
        self._mirror = mirror
        self._leader = leader

    def list_quotas(self) -> list[QuotaView]:
        """Returns the quotas with their use, by kind and name. Administrators see all; a user sees the own one, and
        those of the workspaces that it sees."""
        quotas = [quota for quota in self._mirror.state.quotas.all() if self._may_see(quota.subject)]
        views = self._views(quotas, time.time()) if quotas else []
        return sorted(views, key=lambda view: (view.subject.kind, view.name))

    def find(self, kind: str, name: str) -> QuotaView:
        """Raises GanglineError `quota.kind` or `quota.not_found`, also for a quota that the caller may not see."""
        check_quota_kind(kind)
        for view in self.list_quotas():
            if (view.subject.kind, view.name) == (kind, name):
                return view
        raise no_quota(kind, name)

    async def set(self, kind: str, name: str, change: QuotaChange) -> QuotaView:
        """Sets limits. Raises GanglineError `auth.not_admin`, `quota.*`, `user.not_found`, `workspace.not_found`."""
        _name_object(kind, name)
        self._caller.check_admin("set quotas")
        check_quota_kind(kind)
        check_quota_change(change)
        request = quota_pb2.SchedulerServiceSetQuotaRequest(
            kind=kind, name=name, change=wire.to_proto(change), is_admin=self._caller.is_admin
        )
        answer = await self._leader.change(self._caller, lambda scheduler: scheduler.SetQuota, request)
        [view] = self._views([wire.from_proto(Quota, answer.quota)], time.time())
        return view

    async def remove(self, kind: str, name: str) -> None:
        """Removes both limits. Raises GanglineError `auth.not_admin`, `quota.kind`, `user.not_found`,
        `workspace.not_found`."""
        _name_object(kind, name)
        self._caller.check_admin("remove quotas")
        check_quota_kind(kind)
        request = quota_pb2.SchedulerServiceRemoveQuotaRequest(kind=kind, name=name, is_admin=self._caller.is_admin)
        await self._leader.change(self._caller, lambda scheduler: scheduler.RemoveQuota, request)

    def _may_see(self, subject: QuotaSubject) -> bool:
        return self._caller.is_admin or subject.kind != USER_KIND or subject.key == self._caller.name

    def _views(self, quotas: list[Quota], now: float) -> list[QuotaView]:
        """Returns the quotas with what their subjects hold and have used, from one pass over the live allocations: also
        over those that the caller does not see, because they count."""
        uses = {quota.id: self._mirror.state.whole.slot_use.find(keys.slot_use(quota.id)) for quota in quotas}
        months = {quota.id: counted_month(uses[quota.id], now) for quota in quotas}
        starts = {quota.id: month_start(months[quota.id]) for quota in quotas}
        held: dict[str, int] = dict.fromkeys(uses, 0)
        seconds = {quota.id: ended_seconds(uses[quota.id], months[quota.id]) for quota in quotas}
        for allocation in self._mirror.state.whole.allocations.all():
            slots = allocation.num_slots
            for subject_id in self._subject_ids(allocation.experiment_id):
                if slots and subject_id in held:
                    held[subject_id] += slots
                    seconds[subject_id] += slots * max(0.0, now - max(allocation.created_at, starts[subject_id]))
        return [
            QuotaView(
                quota.subject,
                self._name_of(quota.subject),
                quota.max_slots,
                quota.slot_hours,
                held[quota.id],
                months[quota.id],
                seconds[quota.id] / SECONDS_PER_HOUR,
                quota.changed_at,
                quota.changed_by,
            )
            for quota in quotas
        ]

    def _subject_ids(self, experiment_id: int) -> tuple[str, ...]:
        state = self._mirror.state.whole
        experiment = state.experiments.find(keys.experiment(experiment_id))
        if experiment is None:
            return ()
        project = state.projects.find(keys.project(experiment.home_id)) or DEFAULT_PROJECT
        return tuple(subject.id for subject in subjects_in(experiment.owner, project.workspace_id))

    def _name_of(self, subject: QuotaSubject) -> str:
        if subject.kind == USER_KIND:
            return subject.key
        workspace_id = int(subject.key)
        workspace = self._mirror.state.whole.workspaces.find(keys.workspace(workspace_id))
        if workspace is None and workspace_id == DEFAULT_WORKSPACE.id:
            workspace = DEFAULT_WORKSPACE
        return workspace.name if workspace is not None else subject.key


def _name_object(kind: str, name: str) -> None:
    """Names the quota for the record of a call that is refused before it reaches the leader."""
    attempt = current_attempt()
    if attempt is not None:
        attempt.name_object("quota", f"{kind}/{name}")
