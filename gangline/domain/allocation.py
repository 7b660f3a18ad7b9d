"""PURE: a request for slots, the allocation that answers it, and the ends of its members. See types.proto."""

from __future__ import annotations

from dataclasses import dataclass, field

from gangline.domain.state import ExitKind, LogAction, ReasonCode, State


@dataclass(frozen=True, slots=True)
class Timeline:
    """Unix seconds at which each phase of a start ended; 0 for a phase that has not ended."""

    queued_at: float = 0.0  # when the request began to wait
    placed_at: float = 0.0  # when the trial got its slots
    accepted_at: float = 0.0  # when the last agent had accepted
    runner_up_at: float = 0.0  # when the trial runners had started
    rendezvous_at: float = 0.0  # when the trial runners had found one another
    ranks_up_at: float = 0.0  # when the ranks had started
    first_step_at: float = 0.0  # when the ranks had made their first step


@dataclass(frozen=True, slots=True)
class Member:
    agent_id: str
    node_rank: int  # place of the agent in the gang, from 0
    slot_ids: tuple[str, ...] = ()  # slots of this agent
    metrics_address: str = ""


@dataclass(frozen=True, slots=True)
class LogHit:
    policy: str  # name of the policy, else its pattern
    action: LogAction | None  # None for an action of a later version
    rank: int  # rank that printed the line
    line: str  # first line that matched


@dataclass(frozen=True, slots=True)
class ExitReport:
    agent_id: str  # agent of the member
    kind: ExitKind
    message: str = ""  # one line for a reader
    rank: int | None = None  # global rank that failed first on this member; None if none did
    exit_code: int | None = None  # exit status of that rank; None if it had none
    signal: int | None = None  # signal that ended that rank; None if none did
    failed_at: float = 0.0  # when the failure was first seen on this member; 0 without a failure
    ended_at: float = 0.0
    last_lines: tuple[str, ...] = ()  # last lines that the rank printed
    batches_completed: int | None = None  # batches that the rank had completed; None if not known
    signature: str = ""
    log_hits: tuple[LogHit, ...] = ()  # log policies whose patterns matched on this member, each with its first line
    is_agent_at_fault: bool = False
    error_code: str = ""  # stable code of the GanglineError that ended the rank; empty for other failures
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
    id: str  # "<trial id>.<attempt>", such as "7.1.2"
    trial_id: str
    experiment_id: int
    attempt: int  # counts the trial's allocations, from 1
    epoch: int
    pool: str
    members: tuple[Member, ...]
    state: State = State.STARTING
    exits: tuple[ExitReport, ...] = ()  # one for each member that has ended
    created_at: float = 0.0  # when the trial got its slots
    deadline_at: float = 0.0
    stop_reason: str = ""  # why it is STOPPING; empty otherwise
    stop_kind: ExitKind | None = None
    timeline: Timeline = field(default_factory=Timeline)
    failure: ExitReport | None = None
    checkpoint_id: str = ""
    # whether it has passed a request that waits, and may be stopped for requests ahead of it in the queue
    is_on_call: bool = False
    full_slots: int = 0  # slots_per_trial if it runs on fewer slots; 0 if it has all of them
    shrink_reason: str = ""  # why it has fewer slots; empty otherwise
    grow_at: float = 0.0  # from when it may be stopped to start again on all of its slots; 0 if it has them
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

    at: float  # when the attempt started
    slots: int  # slots on which it started
    full_slots: int  # slots_per_trial
    reason: str = ""  # why the size changed


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A trial avoids an agent on which it could not start, until until_at or until the agent is trusted again."""

    agent_id: str
    reason: str = ""  # why the trial avoids the agent
    at: float = 0.0
    until_at: float = 0.0  # end of the exclusion
    peer_id: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """A trial that waits for slots."""

    trial_id: str
    experiment_id: int
    pool: str
    slots: int  # slots for which it waits
    priority: int = 42  # 1 (most urgent) to 99
    is_single_agent: bool = False
    blocklist: tuple[str, ...] = ()
    submitted_at: float = 0.0  # when it began to wait
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
    message: str  # one sentence for a reader
    would_start_if: str = ""  # change that lets it start; empty if none is known
    blocking_ids: tuple[str, ...] = ()  # allocations, trials and agents for which it waits
    eta_at: float | None = None  # estimated time of its start; None if not known
    changes_json: str = ""  # the same as would_start_if, as a list that a simulation can apply; empty without any


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
