"""The calls of the SDK that concern the cluster and its files: agents, usage, checkpoints, TensorBoard, tensor fusion.

`gangline.client.session.Client` adds the calls for experiments and trials. scripts/generate_async_client.py writes
async_cluster_calls.py from this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from gangline.client import call_message
from gangline.client.call_message import new_request_id
from gangline.client.connection import Connection, in_thread, in_thread_to_its_end
from gangline.client.record import ImportedCheckpoint, OnProgress, ignore_progress
from gangline.client.transfer.checkpoint_folder import ImportMessages, read_checkpoint_folder
from gangline.client.transfer.download import GrowingFolder, ReceivedFolder, list_sizes
from gangline.domain.experiment import Checkpoint, Experiment, RetentionChange
from gangline.domain.fusion import FusionRecord
from gangline.domain.resource import Agent
from gangline.domain.state import Availability, CheckpointState, UsageGroup
from gangline.domain.usage import UsageReport
from gangline.domain.view import AgentView, ClusterView
from gangline.errors import GanglineError
from gangline.login import Login, find_login, find_retry_seconds
from gangline.protocol.wire import enum_number, from_proto
from gangline.v1 import gateway_pb2 as pb


class ClusterCalls:
    """The connection of a client, and its calls for the cluster."""

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        *,
        call_seconds: float = 60,
        retry_seconds: float | None = None,
        on_progress: OnProgress = ignore_progress,
        ca_file: str | None = None,
    ) -> None:
        self._on_progress = on_progress
        self.login: Login = find_login(address, token, ca_file)
        seconds = find_retry_seconds() if retry_seconds is None else retry_seconds
        self._connection = Connection(self.login, call_seconds, seconds)
        self._stub = self._connection.stub

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. It may be called twice; no other call works afterwards."""
        self._connection.close()

    def get_snapshot(self, pool: str = "") -> str:
        """Returns the planner's present input, as JSON that `gangline simulate` reads. pool: empty for the only one."""
        request = pb.GatewayServiceGetSnapshotRequest(pool=pool)
        return self._connection.call(self._stub.GetSnapshot, request).snapshot_json

    def list_agents(self) -> list[AgentView]:
        """Returns the agents with their slots and what runs there."""
        answer = self._connection.call(self._stub.ListAgents, pb.ListAgentsRequest())
        return [from_proto(AgentView, message) for message in answer.agents]

    def enable_agent(self, agent_id: str, slot_ids: Sequence[str] = (), request_id: str | None = None) -> Agent:
        """Lets new work start on it again. slot_ids: limits the change to these of its slots. This and the next two
        methods are for administrators."""
        return self._set(agent_id, slot_ids, Availability.ENABLED, request_id)

    def drain_agent(self, agent_id: str, slot_ids: Sequence[str] = (), request_id: str | None = None) -> Agent:
        """Lets its work run to the end; no new work starts there."""
        return self._set(agent_id, slot_ids, Availability.DRAINING, request_id)

    def disable_agent(self, agent_id: str, slot_ids: Sequence[str] = (), request_id: str | None = None) -> Agent:
        """Stops its work, which checkpoints and waits for other slots; no new work starts there."""
        return self._set(agent_id, slot_ids, Availability.DISABLED, request_id)

    def list_checkpoints(self, experiment_id: int = 0, checkpoint_id: str = "") -> list[Checkpoint]:
        """Returns checkpoints. experiment_id: 0 for all experiments. checkpoint_id: only this one, if it exists."""
        request = pb.ListCheckpointsRequest(experiment_id=experiment_id, checkpoint_id=checkpoint_id)
        answer = self._connection.call(self._stub.ListCheckpoints, request)
        # A gateway of an older version answers with all of them.
        wanted = (message for message in answer.checkpoints if checkpoint_id in ("", message.id))
        return [from_proto(Checkpoint, message) for message in wanted]

    def change_retention(
        self,
        experiment_id: int,
        *,
        save_experiment_best: int | None = None,
        save_trial_best: int | None = None,
        save_trial_latest: int | None = None,
        log_retention_days: int | None = None,
        metric_retention_days: int | None = None,
        request_id: str | None = None,
    ) -> Experiment:
        """Changes what an experiment keeps, also after its end; a value of None stays. save_*: numbers of checkpoints;
        those that the new policy does not keep are deleted, and `preview_retention` lists them before. *_days: after
        the end of a trial; -1 keeps for ever. For the owner of the experiment and administrators.

        Raises GanglineError `retention.*`, `auth.not_owner`, `experiment.not_found`.
        """
        change = RetentionChange(
            save_experiment_best, save_trial_best, save_trial_latest, log_retention_days, metric_retention_days
        )
        request = call_message.of_retention(experiment_id, change, request_id)
        return from_proto(Experiment, self._connection.call(self._stub.UpdateExperiment, request).experiment)

    def preview_retention(
        self,
        experiment_id: int,
        *,
        save_experiment_best: int | None = None,
        save_trial_best: int | None = None,
        save_trial_latest: int | None = None,
    ) -> list[Checkpoint]:
        """Returns the checkpoints that such a change would delete now, by trial and age. It changes nothing."""
        change = RetentionChange(save_experiment_best, save_trial_best, save_trial_latest)
        request = call_message.of_retention_preview(experiment_id, change)
        answer = self._connection.call(self._stub.PreviewRetention, request)
        return [from_proto(Checkpoint, message) for message in answer.checkpoints]

    def download_checkpoint(self, checkpoint_id: str, folder: Path) -> int:
        """Writes its files into a folder that is new or empty; returns their bytes."""
        target = ReceivedFolder(folder, partial(self._on_progress, "download"))
        request = pb.DownloadCheckpointRequest(checkpoint_id=checkpoint_id)
        with target:
            for message in self._connection.stream_once(self._stub.DownloadCheckpoint, request):
                in_thread_to_its_end(target.write, message)
        return target.num_bytes

    def download_output(self, trial_id: str, folder: str | Path) -> int:
        """Writes what the processes of a trial wrote into $GANGLINE_OUTPUT_DIR into a folder that is new or empty;
        returns the bytes. Raises GanglineError `output.none`, `trial.not_found` and `download.exists`."""
        target = ReceivedFolder(Path(folder), partial(self._on_progress, "download"))
        request = pb.DownloadOutputRequest(trial_id=trial_id)
        with target:
            for message in self._connection.stream_once(self._stub.DownloadOutput, request):
                in_thread_to_its_end(target.write, message)
        return target.num_bytes

    def download_tensorboard(self, experiment_id: int, folder: Path, trial_id: str = "") -> int:
        """Brings a folder up to date with the TensorBoard files of an experiment or of one of its trials. Returns the
        number of bytes that were fetched. The folder may have the files of an earlier call, to which it appends.

        Raises GanglineError `experiment.not_found`, `trial.not_found`.
        """
        request = pb.DownloadTensorboardRequest(
            experiment_id=experiment_id, trial_id=trial_id, num_bytes_by_path=list_sizes(folder)
        )
        with GrowingFolder(folder) as target:
            for message in self._connection.stream_once(self._stub.DownloadTensorboard, request):
                in_thread_to_its_end(target.write, message)
        return target.num_bytes

    def import_checkpoint(
        self, folder: str | Path, name: str = "", request_id: str | None = None
    ) -> ImportedCheckpoint:
        """Imports the folder of a checkpoint that another cluster, Determined, or a script with the Core API wrote. It
        belongs to no trial. Its id is a digest of its content, so the same folder is imported once.

        name: under which it is listed; the folder's own by default. Raises GanglineError `checkpoint.not_one`,
        `checkpoint.corrupt`, `checkpoint.path`, `checkpoint.import`, `checkpoint.deleting` and `storage.full`.
        """
        files = in_thread(read_checkpoint_folder, Path(folder), name)
        for existing in self.list_checkpoints(checkpoint_id=files.checkpoint_id):
            if existing.state is CheckpointState.COMPLETED:
                return ImportedCheckpoint(existing, is_new=False)
        messages = ImportMessages(files, request_id or new_request_id(), partial(self._on_progress, "upload"))
        try:
            answer = self._connection.call(self._stub.ImportCheckpoint, messages, seconds=messages.seconds)
        except GanglineError as error:
            raise messages.failure or error from error
        return ImportedCheckpoint(from_proto(Checkpoint, answer.checkpoint), is_new=answer.is_new)

    def delete_checkpoints(self, checkpoint_ids: Sequence[str], request_id: str | None = None) -> list[Checkpoint]:
        """Deletes all of them or none. Returns their present records; their files are deleted soon after.

        Raises GanglineError `checkpoint.needed` for one from which a trial would resume.
        """
        request = pb.DeleteCheckpointsRequest(request_id=request_id or new_request_id(), checkpoint_ids=checkpoint_ids)
        answer = self._connection.call(self._stub.DeleteCheckpoints, request)
        return [from_proto(Checkpoint, message) for message in answer.checkpoints]

    def list_fusion(self) -> list[FusionRecord]:
        """Returns the results of tuning tensor fusion, newest first."""
        answer = self._connection.call(self._stub.ListFusion, pb.ListFusionRequest())
        return [from_proto(FusionRecord, message) for message in answer.records]

    def forget_fusion(self, key: str, request_id: str | None = None) -> bool:
        """Makes the next trial of this kind tune anew. Returns False when there was no record under this key."""
        request = pb.GatewayServiceForgetFusionRequest(request_id=request_id or new_request_id(), key=key)
        return self._connection.call(self._stub.ForgetFusion, request).is_forgotten

    def get_usage(self, since: float, until: float = 0.0, by: UsageGroup = UsageGroup.OWNER) -> UsageReport:
        """Returns the slots that were held in a period, added up by owner, pool or experiment, the largest first.
        since, until: Unix seconds; 0 is now. What still runs counts until now.

        Raises GanglineError `usage.period`.
        """
        request = pb.GetUsageRequest(since=since, until=until)
        request.by = enum_number(by)  # type: ignore[assignment]  # an enum's number is what protobuf takes
        return from_proto(UsageReport, self._connection.call(self._stub.GetUsage, request).report)

    def get_cluster(self) -> ClusterView:
        """Returns the cluster: its leader, its services, the health of etcd, and the numbers of its slots."""
        return from_proto(ClusterView, self._connection.call(self._stub.GetCluster, pb.GetClusterRequest()))

    def _set(self, agent_id: str, slot_ids: Sequence[str], availability: Availability, request_id: str | None) -> Agent:
        request = call_message.of_agent(agent_id, slot_ids, availability, request_id)
        return from_proto(Agent, self._connection.call(self._stub.UpdateAgent, request).agent)
