"""PURE: the form of the snapshot file of `gangline simulate`, one class for each mapping in it.

docs/simulator.md says what each field means. A field without a value, or with null, has its default. Times are seconds
on one clock.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, FiniteFloat, ValidationInfo, field_validator, model_validator

from gangline.config.section import Section, fault, wrong_type
from gangline.domain.state import ReasonCode
from services.scheduler.placement.policy import POLICIES
from services.scheduler.placement.request.snapshot import DEFAULT_MAX_ZERO_SLOT, DEFAULT_PRIORITY, Fitting, PoolConfig

HOLDS = {
    "paused": ReasonCode.PAUSED,
    "search_waiting": ReasonCode.SEARCH_WAITING,
    "no_gateway": ReasonCode.NO_GATEWAY,
}
SWITCHED_OFF = ("draining", "disabled")

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Priority = Annotated[int, Field(ge=1, le=99)]
Positive = Annotated[FiniteFloat, Field(ge=0.0)]
T = TypeVar("T")
# Strict everywhere else, also in what it holds.
Rows = Annotated[tuple[T, ...], Field(strict=False)]
# Fields of TaskEntry that only work with an allocation has.
_OF_RUNNING_WORK = (
    "draining_on", "started_at", "estimated_end", "stopping", "checkpoint_age", "on_call", "full_slots", "trial",
    "grow_at", "growing",
)  # fmt: skip


class ConfigEntry(Section):
    """The pool. None leaves it to the policy whether it preempts, and what passes a request that has to wait."""

    fitting_policy: Fitting = "best"
    allow_heterogeneous_fits: bool = False
    preemption: bool | None = None
    default_priority: Priority = DEFAULT_PRIORITY
    backfill: bool | Literal["on_call"] | None = None
    network_labels: Rows[str] = PoolConfig("").network_labels
    queue_positions: dict[str, FiniteFloat] = Field(default_factory=dict)  # by group

    @field_validator("backfill", mode="before")
    @classmethod
    def _check_backfill(cls, value: Any) -> Any:
        if not isinstance(value, bool) and value != "on_call":
            raise wrong_type("true, false or 'on_call'", value)
        return value


class AgentEntry(Section):
    id: Name
    slots: Count  # enabled, healthy slots
    used_slots: Count = 0  # busy with work outside of the file
    state: Literal["enabled", "draining", "disabled", "away"] = "enabled"
    problem: str | None = None  # why it is not usable; None for its state
    max_zero_slot: Count = DEFAULT_MAX_ZERO_SLOT
    used_zero_slot: Count = 0
    draining_slots: Count = 0
    disabled_slots: Count = 0
    switched_off_slots: Count = 0
    labels: dict[str, str] = Field(default_factory=dict)
    gang_problem: str = ""


class GroupEntry(Section):
    id: Name
    max_slots: Annotated[int, Field(ge=1)] | None = None
    weight: Positive = 1.0
    priority: Priority = DEFAULT_PRIORITY


class QuotaEntry(Section):
    """A quota of a user or a workspace. None for no such limit."""

    id: Name
    name: str = ""  # for reasons; empty for its id
    max_slots: Count | None = None
    slot_hours: Positive | None = None
    used_hours: Positive = 0.0
    renews_at: FiniteFloat = 0.0
    held_elsewhere: Count = 0  # slots that work outside of the file holds


class TaskEntry(Section):
    """A task that waits, or that runs where it has `allocated_on`."""

    id: Name
    slots_needed: Count
    group: str | None = None  # None for one of its own
    priority: Priority | None = None  # None for that of its group
    queue_position: FiniteFloat | None = None  # None for that of its group in the configuration
    preemptible: bool = True
    single_agent: bool = False
    blocklist: Rows[str] = ()
    # Agents of the blocklist that are on it for a limited time, each with a sentence.
    excluded: dict[str, str] = Field(default_factory=dict)
    submitted_at: FiniteFloat = 0.0
    not_before: FiniteFloat = 0.0
    estimated_seconds: Positive = 0.0
    bounded: bool = False
    hold: Literal["", "paused", "search_waiting", "no_gateway"] = ""
    smaller_sizes: Rows[Annotated[int, Field(ge=1)]] = ()
    shrink_at: Positive = 0.0
    kept_slots: Count = 0
    quotas: Rows[str] = ()  # ids of the quotas for which its slots count
    allocated_on: dict[str, Count] | None = None  # slots by agent; an agent's name alone stands for all of its slots
    occupies: bool = False  # whether its slots are busy besides `used_slots`
    draining_on: dict[str, Count] = Field(default_factory=dict)
    started_at: FiniteFloat | None = None  # None for its submission
    estimated_end: FiniteFloat = 0.0
    stopping: bool = False
    checkpoint_age: Positive | None = None
    on_call: bool = False
    full_slots: int | None = None  # the full size of work that runs on fewer slots
    trial: str = ""  # its name in the queue; empty for its id
    grow_at: Positive = 0.0
    growing: bool = False

    @field_validator("allocated_on", mode="before")
    @classmethod
    def _spread(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            return {value: info.data.get("slots_needed", 0)}
        if not isinstance(value, dict):
            raise wrong_type("the name of an agent, or slots by agent", value)
        return value

    @model_validator(mode="after")
    def _check_use(self) -> TaskEntry:
        if self.allocated_on is None:
            for name in _OF_RUNNING_WORK:
                if name in self.model_fields_set:
                    raise fault("unknown_key", "is for work that runs; add allocated_on, or remove it", name)
        elif (held := sum(self.allocated_on.values())) != self.slots_needed:
            raise fault("invalid_value", f"holds {held} slots, not {self.slots_needed}", "allocated_on")
        if self.full_slots is not None and self.full_slots <= self.slots_needed:
            text = f"must be above its {self.slots_needed} slots, found {self.full_slots}"
            raise fault("invalid_value", text, "full_slots")
        return self


class File(Section):
    """The whole file. now: None for the newest submission."""

    policy: str = "priority"
    now: FiniteFloat | None = None
    typical_run_seconds: Positive = 0.0
    config: ConfigEntry = ConfigEntry()
    agents: Rows[AgentEntry] = ()
    groups: Rows[GroupEntry] = ()
    quotas: Rows[QuotaEntry] = ()
    tasks: Rows[TaskEntry] = ()

    @field_validator("policy")
    @classmethod
    def _check_policy(cls, value: str) -> str:
        if value not in POLICIES:
            known = ", ".join(sorted(POLICIES))
            raise fault("invalid_value", f"must be one of {known}, found {value!r}")
        return value
