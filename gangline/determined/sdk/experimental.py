"""`determined.experimental`: Determined's SDK with its names and signatures, over the client of Gangline.

`Determined` is the client; gangline.determined.sdk.experimental_client has the same calls as functions. A trial's id is
a number here, as in `det.get_cluster_info()`. Calls that Gangline does not have are refused by name. Nothing of a rank
imports this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gangline.client import Client
from gangline.determined.sdk.experiment_state import (
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    ExperimentSortBy,
    ExperimentState,
    LogLevel,
    OrderBy,
    TrialSortBy,
    TrialState,
    experiment_state,
)
from gangline.determined.sdk.sdk_object import (
    Checkpoint,
    CheckpointTrainingMetadata,
    Experiment,
    Trial,
    TrialMetrics,
    refuse,
)
from gangline.domain.id import trial_id_of
from gangline.lacking import Lacking


class Determined(Lacking):
    """Determined's client. master: the address of a gateway's gRPC server, as "gpu1:8081". password: the user's token.

    None for both takes the login of `gangline login`. The other arguments have no effect: the token names the user, and
    connections have no certificates.
    """

    lacks: ClassVar[tuple[str, ...]] = (
        "create_model",
        "create_user",
        "create_workspace",
        "delete_workspace",
        "get_model",
        "get_model_by_id",
        "get_model_labels",
        "get_models",
        "get_oauth2_scim_clients",
        "get_session_username",
        "get_user_by_id",
        "get_user_by_name",
        "get_workspace",
        "list_models",
        "list_users",
        "list_workspaces",
        "logout",
        "whoami",
    )

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
    ) -> None:
        self._client = Client(master, password)

    def create_experiment(
        self,
        config: str | Path | Mapping[str, Any],
        model_dir: str | Path,
        includes: Iterable[str | Path] | None = None,
        parent_id: int | None = None,
        project_id: int | None = None,
        template: str | None = None,
    ) -> Experiment:
        """config: a file's name, or a mapping."""
        refuse("create_experiment", includes=includes, parent_id=parent_id, project_id=project_id, template=template)
        source = Path(config) if isinstance(config, str) else config
        return Experiment(self._client.create_experiment(source, model_dir), self._client)

    def get_experiment(self, experiment_id: int) -> Experiment:
        return Experiment(self._client.experiment(experiment_id), self._client)

    def list_experiments(
        self,
        sort_by: ExperimentSortBy | None = None,
        order_by: OrderBy | None = None,
        experiment_ids: Sequence[int] | None = None,
        labels: Sequence[str] | None = None,
        users: Sequence[str] | None = None,
        states: Sequence[ExperimentState] | None = None,
        name: str | None = None,
        project_id: int | None = None,
    ) -> list[Experiment]:
        """Returns the experiments that match all arguments. name: a part of the name."""
        refuse("list_experiments", project_id=project_id)
        chosen = [
            experiment
            for own in self._client.experiments(archived=None)
            if _is_in(own.id, experiment_ids) and _is_in(own.owner, users) and (not name or name in own.name)
            if _is_in((experiment := Experiment(own, self._client)).state, states)
            if not labels or experiment.labels.issuperset(labels)
        ]
        key = _EXPERIMENT_KEYS[sort_by or ExperimentSortBy.ID]
        return sorted(chosen, key=lambda experiment: key(experiment._own), reverse=order_by is OrderBy.DESC)

    def get_trial(self, trial_id: int) -> Trial:
        return Trial(self._client.trial(trial_id_of(trial_id)), self._client)

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        return Checkpoint(self._client.checkpoint(uuid), self._client)

    def iter_trials_metrics(self, trial_ids: Sequence[int], group: str) -> Iterator[TrialMetrics]:
        for number in trial_ids:
            yield from self.get_trial(number).iter_metrics(group)

    def stream_trials_metrics(self, trial_ids: Sequence[int], group: str) -> Iterator[TrialMetrics]:
        return self.iter_trials_metrics(trial_ids, group)

    def stream_trials_training_metrics(self, trial_ids: Sequence[int]) -> Iterator[TrialMetrics]:
        return self.iter_trials_metrics(trial_ids, "training")

    def stream_trials_validation_metrics(self, trial_ids: Sequence[int]) -> Iterator[TrialMetrics]:
        return self.iter_trials_metrics(trial_ids, "validation")


_EXPERIMENT_KEYS: Mapping[ExperimentSortBy, Any] = {
    ExperimentSortBy.ID: lambda own: own.id,
    ExperimentSortBy.NAME: lambda own: (own.name, own.id),
    ExperimentSortBy.OWNER: lambda own: (own.owner, own.id),
    ExperimentSortBy.START_TIME: lambda own: own.record.created_at,
    ExperimentSortBy.END_TIME: lambda own: own.record.ended_at,
    ExperimentSortBy.STATE: lambda own: (experiment_state(own.record).value, own.id),
}


def _is_in(value: object, wanted: Sequence[object] | None) -> bool:
    return not wanted or value in wanted


__all__ = [
    "Checkpoint",
    "CheckpointSortBy",
    "CheckpointState",
    "CheckpointTrainingMetadata",
    "Determined",
    "DownloadMode",
    "Experiment",
    "ExperimentSortBy",
    "ExperimentState",
    "LogLevel",
    "OrderBy",
    "Trial",
    "TrialMetrics",
    "TrialSortBy",
    "TrialState",
]
