"""PURE: experiments, trials and checkpoints. See types.proto."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline.domain.allocation import ExitReport, Timeline
from gangline.domain.state import ExitKind, Outcome, State


@dataclass(frozen=True, slots=True)
class Experiment:
    id: int
    name: str
    owner: str
    config_json: str
    code_sha256: str
    state: State = State.QUEUED
    outcome: Outcome | None = None
    reason: str = ""
    request_id: str = ""
    created_at: float = 0.0
    ended_at: float = 0.0
    stop_kind: ExitKind | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    id: str
    experiment_id: int
    number: int
    hyperparameters_json: str = "{}"
    seed: int = 0
    state: State = State.QUEUED
    outcome: Outcome | None = None
    reason: str = ""
    restarts: int = 0
    attempts: int = 0
    latest_checkpoint_id: str = ""
    batches_completed: int = 0
    validation_json: str = ""
    created_at: float = 0.0
    ended_at: float = 0.0
    timeline: Timeline = field(default_factory=Timeline)
    last_failure: ExitReport | None = None
    infrastructure_failures: int = 0
    closing: Outcome | None = None
    best_validation: float | None = None
    best_validation_batches: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    id: str
    trial_id: str
    experiment_id: int
    batches_completed: int
    url: str
    file_bytes: Mapping[str, int] = field(default_factory=dict)
    metadata_json: str = "{}"
    created_at: float = 0.0
