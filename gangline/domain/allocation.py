"""PURE: a request for slots, the allocation that answers it, and the ends of its members. See types.proto."""

from __future__ import annotations

from dataclasses import dataclass, field

from gangline.domain.state import ExitKind, LogAction, ReasonCode, State


@dataclass(frozen=True, slots=True)
class Timeline:
    """Unix seconds at which each phase of a start ended; 0 for a phase that has not ended."""

    queued_at: float = 0.0
    placed_at: float = 0.0
    accepted_at: float = 0.0
    runner_up_at: float = 0.0
    rendezvous_at: float = 0.0
    ranks_up_at: float = 0.0
    first_step_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    agent_id: str
    node_rank: int
    slot_ids: tuple[str, ...] = ()
    metrics_address: str = ""


@dataclass(frozen=True, slots=True)
class LogHit:
    policy: str
    action: LogAction | None
    rank: int
    line: str


@dataclass(frozen=True, slots=True)
class ExitReport:
    agent_id: str
    kind: ExitKind
    message: str = ""
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    failed_at: float = 0.0
    ended_at: float = 0.0
    last_lines: tuple[str, ...] = ()
    batches_completed: int | None = None
    signature: str = ""
    log_hits: tuple[LogHit, ...] = ()
    is_agent_at_fault: bool = False
    error_code: str = ""
    has_not_begun: bool = False
    suspect_agent_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """A member whose ranks wait for something outside of the trial."""

    node_rank: int
    text: str  # what they wait for, and why
    since_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Allocation:
    id: str
    trial_id: str
    experiment_id: int
    attempt: int
    epoch: int
    pool: str
    members: tuple[Member, ...]
    state: State = State.STARTING
    exits: tuple[ExitReport, ...] = ()
    created_at: float = 0.0
    deadline_at: float = 0.0
    stop_reason: str = ""
    stop_kind: ExitKind | None = None
    timeline: Timeline = field(default_factory=Timeline)
    failure: ExitReport | None = None
    checkpoint_id: str = ""
    is_on_call: bool = False
    full_slots: int = 0
    shrink_reason: str = ""
    grow_at: float = 0.0
    grow_slots: int = 0
    waits: tuple[Wait, ...] = ()

    @property
    def num_slots(self) -> int:
        return sum(len(member.slot_ids) for member in self.members)

    @property
    def size_text(self) -> str:
        """Returns "2 of 4 slots", or "4 slots" at full size."""
        of_full = f" of {self.full_slots}" if self.full_slots else ""
        return f"{self.num_slots}{of_full} slot{'' if max(self.num_slots, self.full_slots) == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class SizeChange:
    """An attempt that started on another number of slots than the one before it."""

    at: float
    slots: int
    full_slots: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A trial avoids an agent on which it could not start, until until_at or until the agent is trusted again."""

    agent_id: str
    reason: str = ""
    at: float = 0.0
    until_at: float = 0.0
    peer_id: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """A trial that waits for slots."""

    trial_id: str
    experiment_id: int
    pool: str
    slots: int
    priority: int = 42
    is_single_agent: bool = False
    blocklist: tuple[str, ...] = ()
    submitted_at: float = 0.0
    not_before_at: float = 0.0
    exclusions: tuple[Exclusion, ...] = ()
    shrink_at: float = 0.0
    kept_slots: int = 0
    needs_gateway: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a request or a running trial waits, or why a trial runs on fewer slots, as data. So the CLI, the
    page and the log print the same sentence."""

    code: ReasonCode
    message: str
    would_start_if: str = ""
    blocking_ids: tuple[str, ...] = ()
    eta_at: float | None = None
    changes_json: str = ""


def shrunk_reason(allocation: Allocation) -> Reason | None:
    """Returns why an allocation runs on fewer slots than asked for; None for one that has all of them."""
    if not allocation.full_slots:
        return None
    what = f"runs on {allocation.size_text}: {allocation.shrink_reason}"
    grows = f"{allocation.full_slots} slots are free for it, and no request with more right waits for them"
    return Reason(ReasonCode.RUNS_SHRUNK, what, grows, eta_at=None)


def waiting_reason(allocation: Allocation) -> Reason | None:
    """Returns what a running allocation waits for: the wait that began first. None where it waits for nothing."""
    first = min(allocation.waits, key=lambda wait: wait.since_at, default=None)
    if first is None:
        return None
    where = f" (node rank {first.node_rank})" if len(allocation.members) > 1 else ""
    return Reason(ReasonCode.STORAGE_AWAY, f"{first.text}{where}", "the storage takes files again")
