"""All use cases with their dependencies: those of a user, those of a trial runner, and those that need neither.

`assemble` runs once, called by program.py. Both surfaces then make the use cases of each request for its caller, which
is checked there. A topic has no state of its own, so it is made whenever it is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from services.common.etcd import HealthWatch
from services.common.server import Principal
from services.gateway.audit.trail import AuditTrail
from services.gateway.history.audit_rows import AuditRows
from services.gateway.history.eraser import Eraser
from services.gateway.history.reader import Reader
from services.gateway.history.saved_view import SavedViewStore
from services.gateway.history.usage_recorder import UsageRecorder
from services.gateway.history.writer import Writer
from services.gateway.leader.leader_client import Leader
from services.gateway.leader.submitter import Submitter
from services.gateway.mirror.access_table import Need, check_call
from services.gateway.mirror.auth import Authenticator
from services.gateway.mirror.caller import Caller, Runner
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.notification import NotificationBoard
from services.gateway.mirror.sight import SeenMirror, Sight
from services.gateway.storage.storage import Storage
from services.gateway.table.row_index import RowIndex
from services.gateway.table.table import Tables
from services.gateway.usecase.access import AccessRules
from services.gateway.usecase.agent import Agents
from services.gateway.usecase.audit import AuditReads
from services.gateway.usecase.change import Changes
from services.gateway.usecase.checkpoint import Checkpoints
from services.gateway.usecase.checkpoint_import import CheckpointImports
from services.gateway.usecase.cluster import Clusters
from services.gateway.usecase.code import Code
from services.gateway.usecase.deactivation import Deactivations
from services.gateway.usecase.experiment import Experiments
from services.gateway.usecase.fusion import FusionRecords
from services.gateway.usecase.history import HistoryRecords
from services.gateway.usecase.open.cluster import PublicCluster
from services.gateway.usecase.open.login import Logins
from services.gateway.usecase.open.task import TaskProofs
from services.gateway.usecase.output import Outputs
from services.gateway.usecase.project import Projects
from services.gateway.usecase.queue import JobQueue
from services.gateway.usecase.queue_preview import QueuePreview
from services.gateway.usecase.quota import Quotas
from services.gateway.usecase.registry import Registry
from services.gateway.usecase.removal import Removals
from services.gateway.usecase.runner.code import CodeDelivery
from services.gateway.usecase.runner.ingest import Ingest
from services.gateway.usecase.runner.tunnel_offer import TunnelOffers
from services.gateway.usecase.saved_view import SavedViews
from services.gateway.usecase.shared.delivery import Deliveries
from services.gateway.usecase.shared.following import Following
from services.gateway.usecase.shared.pending import Pending
from services.gateway.usecase.shared.preview_limit import PreviewLimit
from services.gateway.usecase.shared.stored_code import StoredCode
from services.gateway.usecase.shared.task_secret import TaskSecrets
from services.gateway.usecase.shared.tunnel_table import TunnelTable
from services.gateway.usecase.shared.view import Views
from services.gateway.usecase.table import Bulk, TableReads
from services.gateway.usecase.tensorboard import Tensorboard
from services.gateway.usecase.tunnel import Tunnels
from services.gateway.usecase.usage import Usage
from services.gateway.usecase.user import Users


@dataclass(frozen=True, slots=True)
class History:
    """Holds the parts of the history."""

    reader: Reader
    writer: Writer
    eraser: Eraser
    usage_recorder: UsageRecorder
    news: NotificationBoard  # board on which the writer announces an experiment's id when its history has grown
    saved_views: SavedViewStore
    following: Following  # waits for these announcements
    audit: AuditRows


@dataclass(frozen=True, slots=True)
class Shared:
    """What all requests share."""

    mirror: Watched
    leader: Leader
    submitter: Submitter
    history: History
    storage: Storage
    etcd: HealthWatch
    authenticator: Authenticator
    cluster_token: str
    views: Views
    pending: Pending
    stored_code: StoredCode
    deliveries: Deliveries
    tunnels: TunnelTable
    task_secrets: TaskSecrets
    tables: Tables
    previews: PreviewLimit


@dataclass(frozen=True, slots=True)
class UserCases:
    """The use cases of one user's request."""

    caller: Caller
    _shared: Shared
    _mirror: SeenMirror  # what the caller sees

    def with_request_id(self, request_id: str | None) -> UserCases:
        """Returns the same for a request whose id is in its body."""
        return UserCases(replace(self.caller, request_id=request_id), self._shared, self._mirror)

    def sight(self) -> Sight:
        """Returns what the caller sees at this moment."""
        return self._mirror.sight

    def _views(self) -> Views:
        return self._shared.views.seen_in(self._mirror)

    @property
    def experiments(self) -> Experiments:
        shared = self._shared
        return Experiments(
            self.caller,
            self._mirror,
            shared.leader,
            shared.submitter,
            views=self._views(),
            code=self.code,
            following=shared.history.following,
        )

    @property
    def tables(self) -> TableReads:
        return TableReads(self.caller, self._mirror, self._shared.tables)

    @property
    def bulk(self) -> Bulk:
        return Bulk(self.caller, self._mirror, self._shared.tables, self.with_request_id)

    @property
    def changes(self) -> Changes:
        history = self._shared.history
        return Changes(self.caller, self._mirror, self._views(), history.reader, following=history.following)

    @property
    def removals(self) -> Removals:
        return Removals(self.caller, self._mirror, self._shared.leader, self._views())

    @property
    def projects(self) -> Projects:
        return Projects(self.caller, self._mirror, self._shared.leader)

    @property
    def registry(self) -> Registry:
        return Registry(self.caller, self._mirror, self._shared.leader)

    @property
    def records(self) -> HistoryRecords:
        shared, history = self._shared, self._shared.history
        return HistoryRecords(
            self.caller,
            self._mirror,
            self._views(),
            history.reader,
            deliveries=shared.deliveries,
            following=history.following,
        )

    @property
    def queue(self) -> JobQueue:
        shared = self._shared
        reader, views = shared.history.reader, self._views()
        return JobQueue(self.caller, self._mirror, reader, shared.leader, views=views, pending=shared.pending)

    @property
    def queue_preview(self) -> QueuePreview:
        return QueuePreview(self.caller, self._mirror, self._views(), self._shared.leader, self._shared.previews)

    @property
    def agents(self) -> Agents:
        return Agents(self.caller, self._mirror, self._shared.leader)

    @property
    def clusters(self) -> Clusters:
        return Clusters(self.caller, self._shared.mirror, self._shared.etcd)

    @property
    def checkpoints(self) -> Checkpoints:
        shared = self._shared
        return Checkpoints(self.caller, self._mirror, shared.leader, shared.storage, self._views())

    @property
    def checkpoint_imports(self) -> CheckpointImports:
        # The whole: an import of what another user has imported must not take its files away.
        return CheckpointImports(self.caller, self._shared.mirror, self._shared.leader, self._shared.storage)

    @property
    def tensorboard(self) -> Tensorboard:
        return Tensorboard(self.caller, self._mirror, self._shared.storage, self._views())

    @property
    def outputs(self) -> Outputs:
        return Outputs(self.caller, self._shared.storage, self._views())

    @property
    def fusion(self) -> FusionRecords:
        return FusionRecords(self.caller, self._mirror, self._shared.leader)

    @property
    def code(self) -> Code:
        return Code(self.caller, self._mirror, self._shared.stored_code)

    @property
    def usage(self) -> Usage:
        history = self._shared.history
        return Usage(self.caller, self._mirror, history.reader, history.usage_recorder)

    @property
    def users(self) -> Users:
        shared = self._shared
        return Users(
            self.caller,
            self._mirror,
            shared.leader,
            authenticator=shared.authenticator,
            cluster_token=shared.cluster_token,
        )

    @property
    def quotas(self) -> Quotas:
        return Quotas(self.caller, self._mirror, self._shared.leader)

    @property
    def access(self) -> AccessRules:
        return AccessRules(self.caller, self._mirror, self._shared.leader)

    @property
    def deactivations(self) -> Deactivations:
        return Deactivations(self.caller, self._mirror, self._shared.leader, self.users)

    @property
    def saved_views(self) -> SavedViews:
        shared = self._shared
        return SavedViews(self.caller, self._mirror, shared.history.saved_views, shared.authenticator)

    @property
    def audit(self) -> AuditReads:
        return AuditReads(self.caller, self._shared.history.audit)

    @property
    def tunnels(self) -> Tunnels:
        return Tunnels(self.caller, self._mirror, self._views(), self._shared.tunnels, self._shared.task_secrets)


@dataclass(frozen=True, slots=True)
class RunnerCases:
    """The use cases of one call of a trial runner."""

    runner: Runner
    _shared: Shared

    @property
    def ingest(self) -> Ingest:
        return Ingest(self.runner, self._shared.mirror, self._shared.history.writer, self._shared.deliveries)

    @property
    def code(self) -> CodeDelivery:
        return CodeDelivery(self.runner, self._shared.mirror, self._shared.stored_code)

    @property
    def tunnels(self) -> TunnelOffers:
        shared = self._shared
        return TunnelOffers(self.runner, shared.mirror, shared.views, shared.tunnels, shared.task_secrets)


@dataclass(frozen=True, slots=True)
class OpenCases:
    """The use cases that need no user. They have state, so there is one of each."""

    logins: Logins
    cluster: PublicCluster
    task_proofs: TaskProofs


@dataclass(frozen=True, slots=True)
class UseCases:
    open: OpenCases
    tunnels: TunnelTable  # for the proxies, which check each caller several times
    trail: AuditTrail  # for the surfaces, which open an attempt for each changing call
    _shared: Shared

    def of(self, principal: Principal, request_id: str | None = None) -> UserCases:
        """Returns the use cases of a user. request_id: of the change; None lets each change have a new one. Raises
        GanglineError `auth.forbidden`."""
        return UserCases(Caller(principal, request_id), self._shared, SeenMirror(self._shared.mirror, principal))

    def check_call(self, need: Need | None, principal: Principal) -> None:
        """Raises as `access_table.check_call` does."""
        check_call(need, principal, self._shared.mirror.state)

    def of_runner(self, principal: Principal) -> RunnerCases:
        """Returns the use cases of a trial runner. Raises GanglineError `auth.forbidden`."""
        return RunnerCases(Runner(principal), self._shared)


def assemble(
    mirror: Watched,
    leader: Leader,
    submitter: Submitter,
    history: History,
    *,
    storage: Storage,
    etcd: HealthWatch,
    deletion_problem: Callable[[int], str],
    authenticator: Authenticator,
    cluster_token: str,
    trail: AuditTrail,
) -> UseCases:
    """deletion_problem: returns why the deletion of an experiment waits; "" while it makes progress."""
    pending = Pending(leader)
    views = Views(mirror, history.reader, pending, deletion_problem)
    tunnels, task_secrets = TunnelTable(), TaskSecrets(mirror, cluster_token)
    shared = Shared(
        mirror=mirror,
        leader=leader,
        submitter=submitter,
        history=history,
        storage=storage,
        etcd=etcd,
        authenticator=authenticator,
        cluster_token=cluster_token,
        views=views,
        pending=pending,
        stored_code=StoredCode(mirror, storage),
        deliveries=Deliveries(history.news),
        tunnels=tunnels,
        task_secrets=task_secrets,
        previews=PreviewLimit(),
        tables=Tables(RowIndex(mirror), lambda: mirror.state.revision),
    )
    anybody = OpenCases(
        Logins(mirror, authenticator), PublicCluster(mirror, etcd), TaskProofs(mirror, views, task_secrets)
    )
    return UseCases(anybody, tunnels, trail, shared)
