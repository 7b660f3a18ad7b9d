"""The JSON of the HTTP API, declared once: OpenAPI, requests and answers all come from these models.

Names follow Determined's REST API where both have the field (startTime, endTime, username, hparams), otherwise ours in
camel case. Answers are read from the records' attributes; times are RFC 3339, null where the event has not happened.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, computed_field
from pydantic.alias_generators import to_camel

from gangline.domain import allocation, experiment, history, resource, search, state, task, usage, view
from gangline.errors import Effect, invalid
from services.gateway.http.answer import Answer, Document
from services.gateway.http.description import Described

INT64_MAX = 2**63 - 1
# The range that gRPC and the databases accept for an id.
Int64 = Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)]


# By the name of a request body.
BODY_EXAMPLES: dict[str, Any] = {}


class Body(Described):
    """The base of request bodies. A body that a route takes as a whole names its example, which the OpenAPI document
    shows: `class UserBody(Body, example={...})`."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True)

    def __init_subclass__(cls, *, example: Any = None) -> None:
        if example is not None:
            assert cls.__name__ not in BODY_EXAMPLES
            BODY_EXAMPLES[cls.__name__] = example


def label_change(labels: list[str] | None, added: list[str], removed: list[str]) -> dict[str, Any]:
    """Returns the fields of a record's change that concern labels. labels: all of them; None leaves those that are
    neither added nor removed. Raises GanglineError `request.labels`."""
    if labels is not None and (added or removed):
        raise invalid("request.labels", "give either labels, which replaces all, or addLabels and removeLabels")
    return {
        "add_labels": tuple(added if labels is None else labels),
        "remove_labels": tuple(removed),
        "replaces_labels": labels is not None,
    }


class Experiment(
    Answer,
    record=experiment.Experiment,
    shows="id name username config code_sha256 state outcome reason start_time end_time archived is_deleting "
    "project_id=home_id template labels notes forked_from",
): ...


class LogHit(Answer, record=allocation.LogHit): ...


class ExitReport(
    Answer,
    record=allocation.ExitReport,
    shows="agent_id kind message rank exit_code signal failed_at ended_at last_lines batches_completed error_code "
    "log_hits",
):
    """Describes how a member of an attempt ended."""


class Timeline(Answer, record=allocation.Timeline):
    """Times at which the phases of a start ended for the whole gang."""


class Exclusion(Answer, record=allocation.Exclusion, shows="agent_id reason until"):
    """Names an agent that the trial avoids for a while."""


class SizeChange(Answer, record=allocation.SizeChange, shows="time=at slots full_slots reason"): ...


class EndedAttempt(
    Answer,
    record=usage.AttemptUsage,
    shows="attempt pool cpu_slots gpu_slots start_time=started_at end_time=ended_at timeline ending",
):
    """Describes an attempt that has ended."""


class Trial(
    Answer,
    record=experiment.Trial,
    shows="id experiment_id hparams seed state outcome reason restarts attempts latest_checkpoint_id "
    "total_batches_processed=batches_completed latest_validation=validation_json metadata strategy_choice "
    "searcher_metric_value=best_validation searcher_metric_batches=best_validation_batches length_batches warning "
    "start_time end_time timeline last_failure excluded_agents exclusions size_changes "
    "ended_attempts=attempt_usages",
): ...


class Member(Answer, record=allocation.Member, shows="agent_id node_rank slot_ids"): ...


class Allocation(
    Answer,
    record=allocation.Allocation,
    shows="id trial_id attempt pool members state exits start_time stop_reason is_on_call full_slots shrink_reason "
    "grow_time timeline",
):
    """Describes an attempt."""


class Reason(Answer, record=allocation.Reason): ...


class Progress(Answer, record=history.ProgressPoint): ...


class Metrics(Answer, record=history.MetricsPoint, shows="group batches_completed metrics"):
    """Holds the numbers of a report."""


class Report(Metrics):
    """Holds a whole report."""

    values: Document = Field(validation_alias="values_json")


class Newest(Answer, record=history.Newest, shows="progress training validation"):
    """Holds the newest history of a trial; null for each part that it has not reported."""


class TrialView(
    Answer, record=view.TrialView, shows="trial allocation reason newest warning checkpoint_batches batches_at_risk"
):
    warning: str = ""


class Search(Answer, record=search.Search, shows="seed num_wanted num_planned is_shut_down"):
    """Describes a search."""


class ExperimentView(Answer, record=view.ExperimentView): ...


class ExperimentList(Answer):
    experiments: list[Experiment]


class ExperimentAnswer(Answer):
    experiment: Experiment
    warnings: list[str] = Field(default=[])  # about the configuration


class TrialAnswer(Answer):
    trial: Trial


class SearchRung(Answer, record=search.SearchRung): ...


class SearchBracket(Answer, record=search.SearchBracket): ...


class SearchPreview(
    Answer,
    record=search.SearchPreview,
    shows="searcher seed num_trials max_concurrent_trials hparams unit brackets min_total expected_total max_total "
    "slots_per_trial pace_trial_id seconds_per_unit",
): ...


class TrialList(Answer):
    trials: list[TrialView]


class Request(Answer, record=allocation.Request, shows="pool slots priority submitted_at"): ...


class Task(
    Answer,
    record=task.Task,
    shows="trial experiment_name allocation request reason shrunk_reason queue_place priority weight owner progress",
): ...


class TaskList(Answer):
    tasks: list[Task]


class Availability(Answer):
    """States whether new work may start there. enabled and draining are the fields that Determined has for it."""

    availability: state.Availability

    @computed_field
    def enabled(self) -> bool:
        return self.availability is state.Availability.ENABLED

    @computed_field
    def draining(self) -> bool:
        return self.availability is state.Availability.DRAINING


class Slot(Availability, record=resource.Slot, shows="id kind uuid model memory_bytes is_healthy problem"): ...


class NetworkInterface(Answer, record=resource.NetworkInterface): ...


class Agent(
    Availability,
    record=resource.Agent,
    shows="id pool state slots absent_slots interfaces labels version hostname registered_time lost_time problem "
    "quarantine_reason quarantined_until exposure",
): ...


class AgentView(Answer, record=view.AgentView): ...


class AgentList(Answer):
    agents: list[AgentView]


class Checkpoint(
    Answer,
    record=experiment.Checkpoint,
    shows="id trial_id experiment_id total_batches=batches_completed url resources=file_bytes metadata "
    "report_time=created_at state imported_as",
): ...


class CheckpointAnswer(Answer):
    checkpoint: Checkpoint


class CheckpointList(Answer):
    checkpoints: list[Checkpoint]


class ServiceInstance(
    Answer,
    record=resource.ServiceInstance,
    shows="id kind grpc_address http_address metrics_address start_time=started_at",
): ...


class Cluster(Answer, record=resource.Cluster, shows="id schema_version"): ...


class EtcdHealth(Answer, record=resource.EtcdHealth): ...


class ClusterView(Answer, record=view.ClusterView):
    """Describes the cluster."""

    # null until a scheduler has led for the first time
    cluster: Annotated[Cluster | None, BeforeValidator(lambda cluster: cluster if cluster and cluster.id else None)]
    etcd: EtcdHealth  # health as this gateway sees it


class DeleteCheckpoints(Body, example={"checkpointUuids": ["2b1b6f4e-0d0a-4c1c-9a55-9f0c0a8f1d11"]}):
    checkpoint_uuids: list[str]


class CreateExperiment(
    Body,
    example={
        "config": "name: digits\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n",
        "codeSha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "requestId": "create-digits-1",
    },
):
    """Creates an experiment. The code is given as one of codeArchive and codeSha256."""

    config: str | dict[str, Any]  # YAML as text, or the same as a JSON object
    code_archive: str | None = None  # gzipped tar, in base64
    code_sha256: str | None = None  # code that was uploaded before
    # the same on a retry; generated if absent. The header Idempotency-Key has the same meaning.
    request_id: str | None = None
    template: str | None = None  # template whose settings the configuration overrides
    project_id: Int64 | None = None  # project in place of the names in the configuration
    activate: bool = True  # false creates it PAUSED
    forked_from: Int64 | None = None  # experiment whose configuration and code it begins with, for the record


class PreviewSearch(
    Body,
    example={
        "config": "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n",
        "limit": 5,
    },
):
    """Asks for a preview."""

    config: str | dict[str, Any]  # YAML as text, or the same as a JSON object
    limit: int = Field(default=20, ge=0, le=INT64_MAX)  # most trials whose hyperparameters are shown


class CodeAnswer(Answer):
    code_sha256: str


class Problem(Described):
    """Describes an error as RFC 9457 does, with our stable code."""

    type: str
    title: str
    status: int
    detail: str
    code: str  # stable code of the error
    # effect of a call that was to change something: none, or unknown if it may have been done or may still be done
    effect: Effect | None = None
    # id to send again if the effect is unknown, so that nothing is done twice
    requestId: str | None = None  # noqa: N815  the API's names are in camel case
