"""The JSON of the HTTP API, declared once: OpenAPI, requests and answers all come from these models.

Names follow Determined's REST API where both have the field (startTime, endTime, username, hparams), otherwise ours in
camel case. Answers are read from the records' attributes; times are RFC 3339, null where the event has not happened.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AliasGenerator, BaseModel, BeforeValidator, ConfigDict, Field, computed_field
from pydantic.alias_generators import to_camel

from gangline.domain import state as domain
from gangline.domain.document import read_document
from gangline.domain.state import AgentState, CheckpointState, ExitKind, LogAction, Outcome, ReasonCode, SlotKind, State
from gangline.errors import Effect

INT64_MAX = 2**63 - 1
# The range that gRPC and the databases accept for an id.
Int64 = Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)]


def _instant(seconds: Any) -> datetime | None:
    """Returns the time; None also for a number that is no time, which earlier versions stored as it was reported."""
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds else None
    except (ValueError, OverflowError, OSError):
        return None


def _document(text: Any) -> Any:
    return read_document(text) if text else None


Instant = Annotated[datetime | None, BeforeValidator(_instant)]
Document = Annotated[Any, BeforeValidator(_document)]


class Answer(BaseModel):
    # JSON has no NaN and no infinities; they become null.
    model_config = ConfigDict(
        from_attributes=True,
        alias_generator=AliasGenerator(serialization_alias=to_camel),
        ser_json_inf_nan="null",
        protected_namespaces=(),
    )


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True)


class Experiment(Answer):
    id: int
    name: str
    username: str = Field(validation_alias="owner")
    config: Document = Field(validation_alias="config_json")
    code_sha256: str = Field(serialization_alias="codeSha256")
    state: State
    outcome: Outcome | None
    reason: str
    start_time: Instant = Field(validation_alias="created_at")
    end_time: Instant = Field(validation_alias="ended_at")
    archived: bool
    is_deleting: bool
    project_id: int = Field(validation_alias="home_id")
    template: str
    labels: list[str]
    notes: str
    forked_from: int


class LogHit(Answer):
    policy: str
    action: LogAction | None
    rank: int
    line: str


class ExitReport(Answer):
    """Describes how a member of an attempt ended. error_code: of the GanglineError that ended the rank, or empty."""

    agent_id: str
    kind: ExitKind
    message: str
    rank: int | None
    exit_code: int | None
    signal: int | None
    failed_at: Instant
    ended_at: Instant
    last_lines: list[str]
    batches_completed: int | None
    error_code: str
    log_hits: list[LogHit]


class Timeline(Answer):
    queued_at: Instant
    placed_at: Instant
    accepted_at: Instant
    runner_up_at: Instant
    rendezvous_at: Instant
    ranks_up_at: Instant
    first_step_at: Instant


class Exclusion(Answer):
    """Names an agent that the trial avoids for a while."""

    agent_id: str
    reason: str
    until: Instant = Field(validation_alias="until_at")


class SizeChange(Answer):
    """Records that an attempt started on another number of slots than the one before it."""

    time: Instant = Field(validation_alias="at")
    slots: int
    full_slots: int
    reason: str


class Trial(Answer):
    id: str
    experiment_id: int
    hparams: Document = Field(validation_alias="hyperparameters_json")
    seed: int
    state: State
    outcome: Outcome | None
    reason: str
    restarts: int
    attempts: int
    latest_checkpoint_id: str
    total_batches_processed: int = Field(validation_alias="batches_completed")
    latest_validation: Document = Field(validation_alias="validation_json")
    metadata: Document = Field(validation_alias="metadata_json")
    strategy_choice: Document = Field(validation_alias="strategy_choice_json")
    searcher_metric_value: float | None = Field(validation_alias="best_validation")
    searcher_metric_batches: int = Field(validation_alias="best_validation_batches")
    length_batches: int | None
    warning: str
    start_time: Instant = Field(validation_alias="created_at")
    end_time: Instant = Field(validation_alias="ended_at")
    timeline: Timeline
    last_failure: ExitReport | None
    excluded_agents: dict[str, str]
    exclusions: list[Exclusion]
    size_changes: list[SizeChange]


class Member(Answer):
    agent_id: str
    node_rank: int
    slot_ids: list[str]


class Allocation(Answer):
    """Describes an attempt. full_slots: slots_per_trial, where it runs on fewer; else 0. grow_time: earliest time of
    its growth."""

    id: str
    trial_id: str
    attempt: int
    pool: str
    members: list[Member]
    state: State
    exits: list[ExitReport]
    start_time: Instant = Field(validation_alias="created_at")
    stop_reason: str
    is_on_call: bool
    full_slots: int
    shrink_reason: str
    grow_time: Instant = Field(validation_alias="grow_at")
    timeline: Timeline


class Reason(Answer):
    code: ReasonCode
    message: str
    would_start_if: str
    blocking_ids: list[str]
    eta_at: Instant
    changes: Document = Field(validation_alias="changes_json")


class Progress(Answer):
    batches_completed: int
    batches_total: int
    samples_per_second: float


class Metrics(Answer):
    """Holds the numbers of a report."""

    group: str
    batches_completed: int
    metrics: dict[str, float]


class Report(Metrics):
    """Holds a whole report. values: its metrics that are no numbers, by name; null without any."""

    values: Document = Field(validation_alias="values_json")


class Newest(Answer):
    progress: Progress | None
    training: Metrics | None
    validation: Metrics | None


class TrialView(Answer):
    """Joins a trial with its newest progress and metrics. reason: why it waits. checkpoint_batches: those trained at
    its latest checkpoint. batches_at_risk: those since then. warning: of missing logs and metrics; else
    empty."""

    trial: Trial
    allocation: Allocation | None
    reason: Reason | None
    newest: Newest
    warning: str = ""
    checkpoint_batches: int | None
    batches_at_risk: int


class Search(Answer):
    """Describes a search. num_wanted: trials that the searcher has asked for so far, of num_planned."""

    seed: int
    num_wanted: int
    num_planned: int
    is_shut_down: bool


class ExperimentView(Answer):
    """Joins an experiment with its trials. reason: why no further trial starts. search: null for older versions."""

    experiment: Experiment
    trials: list[TrialView]
    search: Search | None
    reason: Reason | None


class ExperimentList(Answer):
    experiments: list[Experiment]


class ExperimentAnswer(Answer):
    experiment: Experiment
    warnings: list[str] = []


class TrialAnswer(Answer):
    trial: Trial


class SearchRung(Answer):
    """A rung of a bracket. length: in the preview's unit. The others: how many trials reach the rung."""

    length: int
    min_trials: int
    expected_trials: int
    max_trials: int


class SearchBracket(Answer):
    num_trials: int
    max_concurrent_trials: int
    rungs: list[SearchRung]


class SearchPreview(Answer):
    """Previews a search. hparams: of the first trials. max_concurrent_trials: 0 for no limit. brackets: of a search by
    successive halving. The totals: the lengths of all trials together in `unit`, 0 where they are unknown."""

    searcher: str
    seed: int
    num_trials: int
    max_concurrent_trials: int
    hparams: list[Document] = Field(validation_alias="hyperparameters_json")
    unit: str
    brackets: list[SearchBracket]
    min_total: int
    expected_total: int
    max_total: int
    slots_per_trial: int
    pace_trial_id: str
    seconds_per_unit: float


class TrialList(Answer):
    trials: list[TrialView]


class Request(Answer):
    pool: str
    slots: int
    priority: int
    submitted_at: Instant


class Task(Answer):
    """Describes a task. allocation: the slots that it holds. request and reason: what it waits for, and why.
    shrunk_reason: why it runs on fewer slots than it asked for.

    queue_place: from 1 within its pool; 0 when it does not wait or is paused. priority: of its experiment, else of its
    pool; null when it holds slots and no scheduler has reported the pool's yet. progress: its newest report.
    """

    trial: Trial
    experiment_name: str
    allocation: Allocation | None
    request: Request | None
    reason: Reason | None
    shrunk_reason: Reason | None
    queue_place: int
    priority: int | None
    weight: float
    owner: str
    progress: Progress | None


class TaskList(Answer):
    tasks: list[Task]


class Availability(Answer):
    """States whether new work may start there. enabled and draining are the fields that Determined has for it."""

    availability: domain.Availability

    @computed_field
    def enabled(self) -> bool:
        return self.availability is domain.Availability.ENABLED

    @computed_field
    def draining(self) -> bool:
        return self.availability is domain.Availability.DRAINING


class Slot(Availability):
    id: str
    kind: SlotKind
    uuid: str
    model: str
    memory_bytes: int
    is_healthy: bool
    problem: str


class NetworkInterface(Answer):
    name: str
    address: str
    prefix_length: int
    speed_mbit: int


class Agent(Availability):
    """absent_slots: slots that it no longer has, but that an operator disabled or drained when it had them. problem:
    why the agent itself cannot start work now. exposure: what a trial there can read of the cluster, and why."""

    id: str
    pool: str
    state: AgentState
    slots: list[Slot]
    absent_slots: list[Slot]
    interfaces: list[NetworkInterface]
    labels: dict[str, str]
    version: str
    hostname: str
    registered_time: Instant = Field(validation_alias="registered_at")
    lost_time: Instant = Field(validation_alias="lost_at")
    problem: str
    quarantine_reason: str
    quarantined_until: Instant = Field(validation_alias="quarantined_until_at")
    exposure: str


class AgentView(Answer):
    """Joins an agent with its allocations. allocation_id_by_slot_id: free slots are absent."""

    agent: Agent
    allocation_id_by_slot_id: dict[str, str]


class AgentList(Answer):
    agents: list[AgentView]


class Checkpoint(Answer):
    id: str
    trial_id: str
    experiment_id: int
    total_batches: int = Field(validation_alias="batches_completed")
    url: str
    resources: dict[str, int] = Field(validation_alias="file_bytes")
    metadata: Document = Field(validation_alias="metadata_json")
    report_time: Instant = Field(validation_alias="created_at")
    state: CheckpointState
    imported_as: str


class CheckpointAnswer(Answer):
    checkpoint: Checkpoint


class CheckpointList(Answer):
    checkpoints: list[Checkpoint]


class DeleteCheckpoints(Body):
    checkpoint_uuids: list[str]


class ServiceInstance(Answer):
    id: str
    kind: str
    grpc_address: str
    http_address: str
    metrics_address: str
    start_time: Instant = Field(validation_alias="started_at")


class Cluster(Answer):
    id: str
    schema_version: int


class EtcdHealth(Answer):
    """Describes etcd. problem: one sentence while etcd is away. since: when that began, or when it last ended."""

    is_available: bool
    num_members: int
    num_answering: int
    problem: str
    since: Instant


class ClusterView(Answer):
    """Describes the cluster. leader: null when no scheduler leads."""

    # Null as long as no scheduler has made an id for it.
    cluster: Annotated[Cluster | None, BeforeValidator(lambda cluster: cluster if cluster and cluster.id else None)]
    version: str
    leader: ServiceInstance | None
    services: list[ServiceInstance]
    num_agents: int
    num_slots: int
    num_slots_used: int
    num_pending: int
    etcd: EtcdHealth


class CreateExperiment(Body):
    """Creates an experiment. config: the YAML as text, or the same as a JSON object. The code is either code_archive (a
    gzipped tar in base64) or code_sha256 of one that was uploaded before. request_id: the same on a retry; generated
    when absent. The header Idempotency-Key has the same meaning. template: whose settings the configuration overrides.
    project_id: in place of the names in the configuration. activate: false creates it PAUSED."""

    config: str | dict[str, Any]
    code_archive: str | None = None
    code_sha256: str | None = Field(default=None, alias="codeSha256")
    request_id: str | None = None
    template: str | None = None
    project_id: Int64 | None = None
    activate: bool = True


class PreviewSearch(Body):
    """Asks for a preview. config: the YAML as text, or the same as a JSON object. limit: most trials whose hparams are
    shown."""

    config: str | dict[str, Any]
    limit: int = Field(default=20, ge=0, le=INT64_MAX)


class CodeAnswer(Answer):
    code_sha256: str = Field(serialization_alias="codeSha256")


class Problem(BaseModel):
    """Describes an error as RFC 9457 does, with our stable code. effect: of a call that was to change something: none,
    or unknown when it may have been done or may still be done. requestId: in the latter case the id to send again, so
    that nothing is done twice."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    effect: Effect | None = None
    requestId: str | None = None  # noqa: N815  the API's names are in camel case
