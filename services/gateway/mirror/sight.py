"""What a user sees of the cluster's state, and may change in it, by the mirror's records of roles and groups.

`SeenMirror` shows a caller's use cases the mirror without what the caller does not see. So a look-up of it fails as
that of an unknown id does, and lists, counts and searches leave it out, without a check at each of them. A caller who
sees everything gets the mirror's own state. The roles are looked at anew at each access, so a stream ends with the
right to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from gangline.domain.access import Member, Rights, Role, WorkspaceRoles, lacks_role, rights_of
from gangline.domain.allocation import Reason
from gangline.domain.experiment import DEFAULT_WORKSPACE_ID, Checkpoint, Experiment, Project, Workspace
from gangline.domain.named_kind import DEFAULT_PROJECT, DEFAULT_WORKSPACE
from gangline.domain.quota import USER_KIND, QuotaSubject
from gangline.domain.resource import Agent
from services.common import keys
from services.common.server import Principal
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.change_log import ChangeLog
from services.gateway.mirror.cluster_state import ClusterState, RecordTable
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.notification import NotificationBoard

T = TypeVar("T")
# The ids of trials and allocations, and of experiments, in sentences.
_TRIAL = re.compile(r"\b(\d+\.\d+)((?:\.\d+)?)\b")
_EXPERIMENT = re.compile(r"\b([Ee]xperiment) (\d+)\b")
# In place of the id of an allocation that the caller does not see.
UNSEEN_ALLOCATION = "another workspace"
# In place of the reason of a quarantine that names trials that the caller does not see.
UNSEEN_QUARANTINE = "several trials in a row could not start there"


@dataclass(frozen=True, slots=True)
class Sight:
    """What one user sees."""

    name: str
    rights: Rights
    workspace_by_project: Mapping[int, int]  # of all projects
    workspace_ids: frozenset[int] = frozenset()  # those that the user sees
    project_ids: frozenset[int] = frozenset()

    @property
    def sees_all(self) -> bool:
        return self.rights.sees_all

    @property
    def scope(self) -> tuple[int, ...] | None:
        """Returns the projects to which lists are limited; None for no limit."""
        return None if self.sees_all else tuple(sorted(self.project_ids))

    @property
    def key(self) -> Hashable:
        """Returns the same for all who see the same."""
        return None if self.sees_all else (self.scope, tuple(sorted(self.workspace_ids)))

    def sees(self, experiment: Experiment) -> bool:
        return self.sees_all or experiment.home_id in self.project_ids

    def role_in(self, experiment: Experiment) -> Role | None:
        workspace_id = self.workspace_by_project.get(experiment.home_id, DEFAULT_WORKSPACE_ID)
        return self.rights.role_in(workspace_id)


def sight_of(state: ClusterState, principal: Principal) -> Sight:
    """Returns what a user or the cluster's own token sees. It is kept until a role, a group, a user, a workspace or a
    project changes."""
    state = state.whole
    key = (principal.kind, principal.name, principal.is_admin)
    sight = state.sights.get(key)
    if sight is None:
        sight = state.sights[key] = _make_sight(state, principal)
    return sight


def _make_sight(state: ClusterState, principal: Principal) -> Sight:
    projects: list[Project] = list(state.projects.all()) or [DEFAULT_PROJECT]
    workspace_by_project = {DEFAULT_PROJECT.id: DEFAULT_WORKSPACE_ID}
    workspace_by_project |= {project.id: project.workspace_id for project in projects}
    workspaces: dict[int, Workspace] = {DEFAULT_WORKSPACE.id: DEFAULT_WORKSPACE}
    workspaces |= {workspace.id: workspace for workspace in state.workspaces.all()}
    user = state.users.find(keys.user(principal.name)) if principal.kind == "user" else None
    member = Member.of(principal.name, user, state.groups.all())
    if user is None and principal.is_admin:
        member = Member(principal.name, is_admin=True)
    roles = {record.workspace_id: record for record in state.roles.all()}
    # What cannot be read gives no rights: otherwise those of a cluster without roles, or those before the change,
    # would hold.
    for suffix in state.unreadable_suffixes(keys.ROLES):
        workspace_id = int(suffix) if suffix.isdecimal() else -1
        roles[workspace_id] = WorkspaceRoles(workspace_id)
    rights = rights_of(member, roles, workspaces.values())
    workspace_ids = frozenset(id_ for id_ in workspaces if rights.role_in(id_) is not None)
    project_ids = frozenset(id_ for id_, home in workspace_by_project.items() if home in workspace_ids)
    return Sight(principal.name, rights, workspace_by_project, workspace_ids, project_ids)


class SeenTable(RecordTable[T]):
    """The records of a table that a caller sees."""

    def __init__(self, base: RecordTable[T], sees: Callable[[T], bool]) -> None:
        self.prefix = base.prefix
        self._base = base
        self._sees = sees

    def find(self, key: str) -> T | None:
        record = self._base.find(key)
        return record if record is not None and self._sees(record) else None

    def all(self) -> Iterable[T]:
        return [record for record in self._base.all() if self._sees(record)]

    def of(self, group: Hashable) -> Iterable[T]:
        return [record for record in self._base.of(group) if self._sees(record)]

    def __len__(self) -> int:
        return sum(self._sees(record) for record in self._base.all())

    def put(self, key: str, value: bytes) -> tuple[T | None, T]:
        raise AssertionError("only the mirror writes its state")

    def remove(self, key: str) -> T | None:
        raise AssertionError("only the mirror writes its state")


class SeenAgents(SeenTable[Agent]):
    """All agents, each without what it tells of trials that a caller does not see."""

    def __init__(self, base: RecordTable[Agent], sees_trial: Callable[[str], bool]) -> None:
        super().__init__(base, lambda _: True)
        self._sees_trial = sees_trial

    def find(self, key: str) -> Agent | None:
        agent = super().find(key)
        return self._show(agent) if agent is not None else None

    def all(self) -> Iterable[Agent]:
        return [self._show(agent) for agent in super().all()]

    def of(self, group: Hashable) -> Iterable[Agent]:
        return [self._show(agent) for agent in super().of(group)]

    def _show(self, agent: Agent) -> Agent:
        if not agent.failed_starts and not agent.undelivered and not agent.quarantine_reason:
            return agent
        return replace(
            agent,
            failed_starts=tuple(start for start in agent.failed_starts if self._sees_trial(start.trial_id)),
            undelivered=tuple(records for records in agent.undelivered if self._sees_trial(records.trial_id)),
            quarantine_reason=self._show_reason(agent.quarantine_reason),
        )

    def _show_reason(self, reason: str) -> str:
        # The trials come first, and then the failure of the last of them, which may have numbers like their ids.
        trial_ids = [found[1] for found in _TRIAL.finditer(reason.partition(";")[0])]
        is_seen = bool(trial_ids) and all(map(self._sees_trial, trial_ids))
        return reason if is_seen or not reason else UNSEEN_QUARANTINE


class SeenState(ClusterState):
    """The state as a caller sees it, at one revision. Agents, users and services are there for all, agents without what
    they tell of unseen trials."""

    def __init__(self, base: ClusterState, sight: Sight) -> None:
        self.__dict__.update(base.__dict__)
        self._base = base
        self.sight = sight
        sees_some = bool(sight.workspace_ids)
        self.experiments = SeenTable(base.experiments, lambda record: record.home_id in sight.project_ids)
        self.trials = SeenTable(base.trials, lambda record: self._sees(record.experiment_id))
        self.searches = SeenTable(base.searches, lambda record: self._sees(record.experiment_id))
        self.requests = SeenTable(base.requests, lambda record: self._sees(record.experiment_id))
        self.allocations = SeenTable(base.allocations, lambda record: self._sees(record.experiment_id))
        self.checkpoints = SeenTable(base.checkpoints, self._sees_checkpoint)
        self.workspaces = SeenTable(base.workspaces, lambda record: record.id in sight.workspace_ids)
        self.projects = SeenTable(base.projects, lambda record: record.id in sight.project_ids)
        self.models = SeenTable(base.models, lambda record: record.workspace_id in sight.workspace_ids)
        self.model_versions = SeenTable(base.model_versions, lambda record: self._sees_model(record.model_id))
        self.quotas = SeenTable(base.quotas, lambda record: self._sees_subject(record.subject))
        self.slot_use = SeenTable(base.slot_use, lambda record: self._sees_subject(record.subject))
        self.agents = SeenAgents(base.agents, lambda trial_id: self.trials.find(keys.trial(trial_id)) is not None)
        self.templates = SeenTable(base.templates, lambda _: sees_some)
        self.fusion = SeenTable(base.fusion, lambda _: sees_some)

    @property
    def whole(self) -> ClusterState:
        return self._base

    def allocation_id_by_slot_id(self) -> Mapping[str, str]:
        holders = self._base.allocation_id_by_slot_id()
        return {
            slot_id: UNSEEN_ALLOCATION if self.allocations.find(keys.allocation(held)) is None else held
            for slot_id, held in holders.items()
        }

    @property
    def pseudonyms(self) -> Mapping[str, str]:
        """Returns "0.1" and so on: first for trials that hold slots, then for those that wait."""
        return self._pseudonyms

    @cached_property
    def _pseudonyms(self) -> Mapping[str, str]:
        held = sorted(self._base.allocations.all(), key=lambda allocation: (allocation.created_at, allocation.id))
        waiting = sorted(self._base.requests.all(), key=lambda request: (request.submitted_at, request.trial_id))
        live = [(each.trial_id, each.experiment_id) for each in held]
        live += [(each.trial_id, each.experiment_id) for each in waiting]
        unseen = dict.fromkeys(trial_id for trial_id, experiment_id in live if not self._sees(experiment_id))
        return {trial_id: f"0.{number}" for number, trial_id in enumerate(unseen, 1)}

    def hide(self, reason: Reason) -> Reason:
        return replace(
            reason,
            message=self.hide_ids(reason.message),
            would_start_if=self.hide_ids(reason.would_start_if),
            blocking_ids=tuple(self.hide_ids(id_) for id_ in reason.blocking_ids),
            changes_json=self.hide_ids(reason.changes_json),
        )

    def hide_ids(self, text: str) -> str:
        for reason, shown in self._hidden_quarantines.items():
            text = text.replace(reason, shown)
        hidden = _TRIAL.sub(lambda found: self.pseudonyms.get(found[1], found[1]) + found[2], text)
        return _EXPERIMENT.sub(lambda found: found[0] if self._sees(int(found[2])) else f"{found[1]} 0", hidden)

    @cached_property
    def _hidden_quarantines(self) -> Mapping[str, str]:
        """Returns what is shown in place of reasons of quarantines, which the reasons of requests quote."""
        reasons = {agent.id: agent.quarantine_reason for agent in self._base.agents.all() if agent.quarantine_reason}
        shown = {agent.id: agent.quarantine_reason for agent in self.agents.all()}
        hidden = {reason: shown[id_] for id_, reason in reasons.items() if shown[id_] != reason}
        # The longest first, because one may begin with another.
        return dict(sorted(hidden.items(), key=lambda item: -len(item[0])))

    def _sees(self, experiment_id: int) -> bool:
        experiment = self._base.experiments.find(keys.experiment(experiment_id))
        return experiment is not None and experiment.home_id in self.sight.project_ids

    def _sees_subject(self, subject: QuotaSubject) -> bool:
        """Returns whether the caller sees the quota of a subject: its own, and those of the workspaces that it sees."""
        if subject.kind == USER_KIND:
            return subject.key == self.sight.name
        return subject.key.isdecimal() and int(subject.key) in self.sight.workspace_ids

    def _sees_model(self, model_id: int) -> bool:
        model = self._base.models.find(keys.model(model_id))
        return model is not None and model.workspace_id in self.sight.workspace_ids

    def _sees_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Whether the caller sees its experiment, has imported it, or sees a model of which it is a version."""
        if self._sees(checkpoint.experiment_id) or (not checkpoint.trial_id and checkpoint.owner == self.sight.name):
            return True
        return checkpoint.id in self._registered

    @cached_property
    def _registered(self) -> frozenset[str]:
        return frozenset(version.checkpoint_id for version in self.model_versions.all())


@dataclass
class SeenMirror:
    """The mirror as a caller sees it."""

    whole: Watched
    principal: Principal
    _seen: SeenState | None = field(default=None)

    @property
    def state(self) -> ClusterState:
        base = self.whole.state
        sight = sight_of(base, self.principal)
        if sight.sees_all:
            return base
        seen = self._seen
        if seen is None or seen.whole is not base or seen.sight is not sight or seen.revision != base.revision:
            seen = self._seen = SeenState(base, sight)
        return seen

    @property
    def sight(self) -> Sight:
        return sight_of(self.whole.state, self.principal)

    @property
    def changes(self) -> NotificationBoard:
        return self.whole.changes

    @property
    def log(self) -> ChangeLog:
        return self.whole.log

    async def wait_for_revision(self, revision: int, seconds: float) -> bool:
        return await self.whole.wait_for_revision(revision, seconds)

    async def confirm(self, key: str) -> None:
        await self.whole.confirm(key)

    def leaderless_seconds(self) -> float:
        return self.whole.leaderless_seconds()

    def ended_for(self, allocation_id: str) -> float:
        return self.whole.ended_for(allocation_id)


def check_change(mirror: Watched, caller: Caller, experiment: Experiment, action: str) -> None:
    """Admits the owner of an experiment who is an editor of its workspace, and the admins of the workspace. The leader
    decides by the same rule; this is for what the leader does not do, and before long work. Raises GanglineError
    `auth.not_owner`, `auth.no_role`."""
    if not may_change(mirror, caller, experiment):
        caller.check_owner(experiment.owner, action)
        raise lacks_role(caller.name, action, Role.EDITOR, "of this experiment")


def may_change(mirror: Watched, caller: Caller, experiment: Experiment) -> bool:
    role = sight_of(mirror.state, caller.principal).role_in(experiment)
    return role is Role.ADMIN or (role is Role.EDITOR and caller.owns(experiment.owner))


def check_own(mirror: Watched, caller: Caller, experiment: Experiment, action: str) -> None:
    """Admits the owner of a task who is an editor of its workspace, and administrators of the cluster: what runs in a
    shell runs as its owner. Raises GanglineError `auth.not_owner`, `auth.no_role`."""
    caller.check_owner(experiment.owner, action)
    if not may_own(mirror, caller.principal, experiment):
        raise lacks_role(caller.name, action, Role.EDITOR, "of this task")


def may_own(mirror: Watched, principal: Principal, experiment: Experiment) -> bool:
    """Returns whether `check_own` admits this user."""
    role = sight_of(mirror.state, principal).role_in(experiment)
    is_own = principal.is_admin or principal.name == experiment.owner
    return is_own and role is not None and role.includes(Role.EDITOR)
