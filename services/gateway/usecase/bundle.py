"""All use cases, with their dependencies. Built once by program.py; both surfaces keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.common.etcd import HealthWatch
from services.gateway.history.eraser import Eraser
from services.gateway.history.reader import Reader
from services.gateway.history.usage_recorder import UsageRecorder
from services.gateway.history.writer import Writer
from services.gateway.leader.leader_client import Leader
from services.gateway.leader.submitter import Submitter
from services.gateway.mirror.mirror import Watched
from services.gateway.mirror.notification import NotificationBoard
from services.gateway.storage.storage import Storage
from services.gateway.usecase.agent import Agents
from services.gateway.usecase.checkpoint import Checkpoints
from services.gateway.usecase.checkpoint_import import CheckpointImports
from services.gateway.usecase.cluster import Clusters
from services.gateway.usecase.code import Code
from services.gateway.usecase.experiment import Experiments
from services.gateway.usecase.following import Following
from services.gateway.usecase.fusion import Fusion
from services.gateway.usecase.history import Records
from services.gateway.usecase.ingest import Ingest
from services.gateway.usecase.output import Outputs
from services.gateway.usecase.pending import Pending
from services.gateway.usecase.project import Projects
from services.gateway.usecase.queue import Queue
from services.gateway.usecase.removal import Removals
from services.gateway.usecase.tensorboard import Tensorboard
from services.gateway.usecase.tunnel import Tunnels
from services.gateway.usecase.usage import Usage
from services.gateway.usecase.user import Users
from services.gateway.usecase.view import Views


@dataclass(frozen=True, slots=True)
class History:
    """Holds the parts of the history."""

    reader: Reader
    writer: Writer
    eraser: Eraser
    usage_recorder: UsageRecorder
    news: NotificationBoard  # board on which the writer announces an experiment's id when its history has grown
    following: Following  # waits for these announcements


@dataclass(frozen=True, slots=True)
class UseCases:
    experiments: Experiments
    removals: Removals
    projects: Projects
    records: Records
    queue: Queue
    agents: Agents
    clusters: Clusters
    checkpoints: Checkpoints
    checkpoint_imports: CheckpointImports
    tensorboard: Tensorboard
    outputs: Outputs
    fusion: Fusion
    code: Code
    ingest: Ingest
    usage: Usage
    users: Users
    tunnels: Tunnels


def assemble(
    mirror: Watched,
    leader: Leader,
    submitter: Submitter,
    history: History,
    *,
    storage: Storage,
    etcd: HealthWatch,
    deletion_problem: Callable[[int], str],
    cluster_token: str,
) -> UseCases:
    """deletion_problem: returns why the deletion of an experiment waits; "" while it makes progress."""
    pending = Pending(leader)
    views = Views(mirror, history.reader, pending, deletion_problem)
    code = Code(mirror, storage)
    ingest = Ingest(history.writer, history.news, mirror)
    return UseCases(
        experiments=Experiments(mirror, leader, submitter, views, code, following=history.following),
        removals=Removals(mirror, leader, views),
        projects=Projects(mirror, leader),
        records=Records(mirror, views, history.reader, ingest, history.following),
        queue=Queue(mirror, history.reader, leader, views, pending),
        agents=Agents(mirror, leader),
        clusters=Clusters(mirror, etcd),
        checkpoints=Checkpoints(mirror, leader, storage, views),
        checkpoint_imports=CheckpointImports(mirror, leader, storage),
        tensorboard=Tensorboard(mirror, storage, views),
        outputs=Outputs(storage, views),
        fusion=Fusion(mirror, leader),
        code=code,
        ingest=ingest,
        usage=Usage(mirror, history.reader, history.usage_recorder),
        users=Users(mirror, leader, cluster_token),
        tunnels=Tunnels(mirror, views, cluster_token),
    )
