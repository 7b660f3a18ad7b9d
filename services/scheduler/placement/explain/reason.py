"""PURE: why requests do not start now, in numbers, with the changes and the time that would start them.

A reason is computed from the room that a plan leaves, so it holds for the plan that it comes with. Requests of one
shape that wait for the same cause share the sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from gangline.domain.allocation import Reason
from gangline.domain.id import describe_allocations, describe_trial
from gangline.domain.quota import format_hours
from gangline.domain.state import ReasonCode
from services.scheduler.placement.capacity.capability import is_over_several
from services.scheduler.placement.capacity.elastic import SOON_SECONDS
from services.scheduler.placement.capacity.feasibility import can_hold, describe_agents, never_fits
from services.scheduler.placement.capacity.ledger import Ledger
from services.scheduler.placement.capacity.promise import Cause, Waiting
from services.scheduler.placement.capacity.room import Bin
from services.scheduler.placement.explain.counterfactual import Counterfactual
from services.scheduler.placement.explain.forecast import Forecast
from services.scheduler.placement.request.assignment import Lazy, PoolPlan
from services.scheduler.placement.request.snapshot import AgentRoom, Limit, PendingRequest, Shape
from services.scheduler.placement.request.snapshot_change import (
    Change,
    EnableAgents,
    EndWork,
    MoveToFront,
    describe_changes,
)

_Sentence = tuple[ReasonCode, str]
# Causes that fewer slots may remove.
_SHRINKABLE = ("unhealthy", "never", "behind", "full")


def close(ledger: Ledger) -> PoolPlan:
    """Turns the ledger into a plan: every request in it is assigned or has a reason."""
    explanation = PlanExplanation(ledger)
    reasons = Lazy(lambda: explanation.all[0])
    changes = Lazy(lambda: explanation.all[1])
    requests = {request.trial_id: request for request in ledger.view.requests} if ledger.shrunk else {}
    assignments = tuple(
        replace(
            assignment,
            shrink_reason=explanation.why_smaller(requests[assignment.trial_id], ledger.shrunk[assignment.trial_id]),
        )
        if assignment.trial_id in ledger.shrunk
        else assignment
        for assignment in ledger.promises.assignments
    )
    return PoolPlan(
        assignments,
        tuple(ledger.promises.preemptions),
        reasons,
        changes,
        ledger.reserved.reservation,
        ledger.look_at,
        dict(ledger.quota.promised),
    )


class PlanExplanation:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._reserved = ledger.reserved
        self._counterfactual = Counterfactual(ledger)
        # Requests of one shape and cause share a sentence, unless it names the request itself.
        self._sentences: dict[tuple[Cause, Shape], _Sentence] = {}
        self._would: dict[tuple[object, ...], str] = {}
        self._tell: dict[Cause, Callable[[PendingRequest], _Sentence]] = {
            "held": self._held,
            "backoff": self._backoff,
            "never": self._never,
            "unhealthy": self._unhealthy,
            "quota": self._quota,
            "claim": self._claim,
            "behind": self._behind,
            "full": self._full,
        }

    @cached_property
    def all(self) -> tuple[dict[str, Reason], dict[str, tuple[Change, ...]]]:
        """Returns reasons and changes, both by trial id."""
        forecast = Forecast(self._ledger, self._counterfactual.opening)
        reasons: dict[str, Reason] = {}
        changes: dict[str, tuple[Change, ...]] = {}
        for waiting in self._ledger.waiting():
            trial_id = waiting.request.trial_id
            needed = self._counterfactual.of(waiting)
            code, message = self._sentence(waiting)
            reasons[trial_id] = Reason(
                code,
                message + self._smaller(waiting),
                self._describe(needed),
                self._blocking(waiting, needed),
                forecast.eta(waiting),
            )
            changes[trial_id] = needed
        return reasons, changes

    def why_smaller(self, request: PendingRequest, cause: Cause) -> str:
        """Returns why this request starts on fewer slots."""
        if cause in ("unhealthy", "never"):
            return self._tell[cause](request)[1]
        return f"{_needs(request)}, and these are neither free nor expected within {SOON_SECONDS:.0f} s"

    def _smaller(self, waiting: Waiting) -> str:
        """Returns the end of the sentence, which names the sizes on which the request may start instead."""
        request = waiting.request
        if not request.smaller_sizes or request.shrink_at <= 0 or waiting.cause not in _SHRINKABLE:
            return ""
        sizes = " or ".join(str(size) for size in request.smaller_sizes)
        seconds = request.shrink_at - self._ledger.now
        when = f"from {seconds:.0f} s on" if seconds > 0 else "now"
        return f"; {when} it may start on {sizes} slots instead"

    @cached_property
    def _rooms(self) -> list[Bin]:
        """Returns the running allocations of each group."""
        return sorted(self._ledger.room.bins, key=lambda bin_: (-bin_.free, bin_.agent.id))

    @cached_property
    def _holders(self) -> dict[str, tuple[str, ...]]:
        """Returns the allocations with slots that each group runs."""
        holders: dict[str, list[str]] = {}
        for work in self._ledger.view.running:
            if work.slots:
                holders.setdefault(work.group, []).append(work.allocation_id)
        return {group: tuple(allocation_ids) for group, allocation_ids in holders.items()}

    def _sentence(self, waiting: Waiting) -> _Sentence:
        """Returns the sentence of a request. A sentence that names the request itself is not shared."""
        if waiting.cause in ("held", "backoff", "quota", "claim") or self._reserved.is_holder(waiting.request):
            return self._tell[waiting.cause](waiting.request)
        key = waiting.cause, waiting.request.shape
        if key not in self._sentences:
            self._sentences[key] = self._tell[waiting.cause](waiting.request)
        return self._sentences[key]

    def _describe(self, changes: tuple[Change, ...]) -> str:
        key = tuple(MoveToFront if isinstance(change, MoveToFront) else change for change in changes)
        if key not in self._would:
            self._would[key] = describe_changes(changes) or "the next cycle plans it"
        return self._would[key]

    def _blocking(self, waiting: Waiting, changes: Sequence[Change]) -> tuple[str, ...]:
        if waiting.cause == "claim":
            return self._ledger.promises.claims[waiting.request.trial_id]
        if waiting.cause == "quota":
            request, quota = waiting.request, self._ledger.quota
            is_capped = quota.used[request.group] + request.slots > quota.cap_of(request.group)
            return self._holders.get(request.group, ()) if is_capped else self._ending(changes)
        reservation = self._reserved.reservation
        if waiting.cause == "behind" and reservation is not None:
            return (reservation.trial_id,)
        if self._reserved.is_holder(waiting.request) and self._reserved.waited_for:
            return self._reserved.waited_for
        return self._ending(changes)

    def _ending(self, changes: Sequence[Change]) -> tuple[str, ...]:
        for change in changes:
            match change:
                case EndWork(allocation_ids):
                    return allocation_ids
                case EnableAgents(agent_ids):
                    return agent_ids
        return ()

    def _held(self, request: PendingRequest) -> _Sentence:
        if request.hold == ReasonCode.PAUSED:
            return ReasonCode.PAUSED, "its experiment is paused"
        if request.hold == ReasonCode.NO_GATEWAY:
            return ReasonCode.NO_GATEWAY, "waits for a gateway, from which it fetches its code: none is registered"
        return ReasonCode.SEARCH_WAITING, "its search runs as many trials as it may"

    def _backoff(self, request: PendingRequest) -> _Sentence:
        seconds = request.not_before_at - self._ledger.now
        return ReasonCode.BACKOFF_AFTER_FAILURE, f"waits {seconds:.1f} s more after a failure"

    def _never(self, request: PendingRequest) -> _Sentence:
        agents, config = self._ledger.view.agents, self._ledger.view.config
        if not agents:
            return ReasonCode.NO_MATCHING_POOL, f"pool {config.name!r} has no agents yet"
        allowed = _allowed(request, agents)
        if not allowed:
            return ReasonCode.NEVER_FITS, f"all {len(agents)} agents of pool {config.name!r} are on its blocklist"
        sizes = [agent.slots for agent in allowed]
        sentence = never_fits(
            request.slots, config.name, sizes, request.is_single_agent, config.allow_heterogeneous_fits
        )
        return ReasonCode.NEVER_FITS, sentence or _needs(request)

    def _unhealthy(self, request: PendingRequest) -> _Sentence:
        agents: Sequence[AgentRoom] = self._ledger.view.agents
        if not is_over_several(request, agents):
            # One agent holds it, so no network between agents matters.
            agents = [replace(agent, gang_problem="") for agent in agents]
        allowed, excluded = _allowed(request, agents), dict(request.excluded)
        switched_off = [agent for agent in allowed if agent.switched_off or agent.switched_off_slots]
        restored = [
            agent.slots + agent.switched_off_slots
            for agent in allowed
            if (agent.is_usable or agent.switched_off) and not agent.gang_problem
        ]
        is_mixed = self._ledger.view.config.allow_heterogeneous_fits
        if switched_off and can_hold(request.slots, restored, request.is_single_agent, is_mixed):
            return ReasonCode.AGENTS_DISABLED, f"{_needs_for_good(request)}; {_switched_off_text(switched_off)}"
        usable = [agent.slots for agent in allowed if agent.is_usable and not agent.gang_problem]
        away = [f"{agent.id} ({excluded[agent.id]})" for agent in agents if agent.id in excluded]
        away += [_absence(agent) for agent in allowed if not agent.is_usable or agent.gang_problem or agent.disabled]
        named = ", ".join(away[:4]) + (f" and {len(away) - 4} more" if len(away) > 4 else "")
        if not usable:
            return ReasonCode.AGENTS_UNHEALTHY, f"{_needs_for_good(request)}; only {named} could hold it"
        lack_text = f"the agents that are well, {describe_agents(usable)}, cannot hold it without {named}"
        return ReasonCode.AGENTS_UNHEALTHY, f"{_needs_for_good(request)}; {lack_text}"

    def _quota(self, request: PendingRequest) -> _Sentence:
        quota = self._ledger.quota
        limit = quota.breached(request.limits, request.slots)
        cap, used = quota.cap_of(request.group), quota.used[request.group]
        if limit is not None and used + request.slots <= cap:
            return ReasonCode.QUOTA_EXCEEDED, f"{_needs(request)}; {self._limit_text(limit, request)}"
        what = f"{_needs(request)}; {request.group} holds or was promised {used} of its max_slots {cap:g}"
        return ReasonCode.QUOTA_EXCEEDED, what

    def _limit_text(self, limit: Limit, request: PendingRequest) -> str:
        if limit.slot_hours is not None and limit.is_spent:
            used, hours = format_hours(limit.used_hours), format_hours(limit.slot_hours)
            return f"{limit.name} has used {used} of {hours} slot-hours of this month"
        max_slots = limit.max_slots or 0
        if request.slots > max_slots:
            return f"{limit.name} may have {max_slots} at a time"
        return f"{limit.name} has or was promised {self._ledger.quota.held[limit.id]} of {max_slots} slots"

    def _claim(self, request: PendingRequest) -> _Sentence:
        stopping = self._ledger.promises.claims[request.trial_id]
        return (
            ReasonCode.WAITING_FOR_PREEMPTION,
            f"{_needs(request)}; waits for {describe_allocations(stopping)} to stop",
        )

    def _behind(self, request: PendingRequest) -> _Sentence:
        reservation = self._reserved.reservation
        if reservation is None:
            return ReasonCode.BEHIND_RESERVATION, f"{_needs(request)}; the pool starts nobody before who is ahead of it"
        seconds = reservation.at - self._ledger.now
        slots_text = ", ".join(f"{agent}: {slots}" for agent, slots in sorted(reservation.slots_by_agent.items())[:4])
        num_kept = sum(reservation.slots_by_agent.values())
        kept = f"{num_kept} slots ({slots_text}) are kept for {describe_trial(reservation.trial_id)}"
        others = self._reserved.spare.slots_by_agent.keys() - reservation.slots_by_agent.keys()
        sooner = ", as are all others that would let it start sooner" if others else ""
        what = f"{_needs(request)}; {kept}, which is expected to start in {seconds:.0f} s{sooner}"
        return ReasonCode.BEHIND_RESERVATION, what

    def _full(self, request: PendingRequest) -> _Sentence:
        name = self._ledger.view.config.name
        if request.slots == 0:
            return ReasonCode.NO_CAPACITY, f"needs an auxiliary place; all are taken in pool {name!r}"
        left = [bin_ for bin_ in self._rooms if bin_.agent.id not in request.blocklist]
        free, total = sum(bin_.free for bin_ in left), sum(bin_.capacity for bin_ in left)
        if free < request.slots:
            free_text = f"{free} of {total} are free in pool {name!r}"
            return ReasonCode.NO_CAPACITY, f"{_needs(request)}; {free_text}{self._stoppable(request)}"
        rooms = ", ".join(f"{bin_.agent.id}: {bin_.free} of {bin_.capacity}" for bin_ in left[:4])
        spread = f"{free} are free, but spread over agents ({rooms}){self._stoppable(request)}"
        return ReasonCode.FRAGMENTED, f"{_needs(request)} on one agent or on whole idle ones; {spread}"

    def _stoppable(self, request: PendingRequest) -> str:
        slots = sum(work.slots for work in self._reserved.stoppable) if self._reserved.is_holder(request) else 0
        return f"; {slots} more will be freed for it as soon as that is enough" if slots else ""


def _allowed(request: PendingRequest, agents: Sequence[AgentRoom]) -> list[AgentRoom]:
    return [agent for agent in agents if agent.id not in request.blocklist]


def _absence(agent: AgentRoom) -> str:
    if not agent.is_usable:
        return f"{agent.id} ({agent.problem or 'away'})"
    if agent.gang_problem:
        return f"{agent.id} ({agent.gang_problem})"
    return f"{agent.id} ({agent.disabled} of {agent.slots + agent.disabled} slots disabled)"


_MOST_NAMED = 4
_WORDS_BY_SETTING = {"draining": "is being drained", "disabled": "is disabled"}


def _switched_off_text(agents: Sequence[AgentRoom]) -> str:
    """Names the agents that an administrator has switched off, and the commands that enable them."""
    named = agents[:_MOST_NAMED]
    texts = [_setting_of(agent) for agent in named]
    more = f" and {len(agents) - len(named)} more agents" if len(agents) > len(named) else ""
    commands = [f"gangline agent enable {agent.id}" for agent in named if agent.switched_off]
    commands += [f"gangline slot enable {agent.id}/SLOT" for agent in named if not agent.switched_off]
    return f"{', '.join(texts)}{more}; enable {'it' if len(agents) == 1 else 'them'} with: {', '.join(commands)}"


def _setting_of(agent: AgentRoom) -> str:
    if agent.switched_off:
        return f"{agent.id} {_WORDS_BY_SETTING[agent.switched_off]} by an administrator"
    slots = f"{agent.switched_off_slots} of {agent.slots + agent.disabled} slots"
    return f"{agent.id} has {slots} drained or disabled by an administrator"


def _needs(request: PendingRequest) -> str:
    slots = f"{request.slots} slot{'' if request.slots == 1 else 's'}" if request.slots else "an auxiliary place"
    needs = f"needs {slots} on a single agent" if request.is_single_agent else f"needs {slots}"
    excluded = dict(request.excluded)
    avoided = [f"{id_} ({excluded[id_]})" if id_ in excluded else id_ for id_ in request.blocklist]
    return f"{needs}, but not on {', '.join(avoided)}" if avoided else needs


def _needs_for_good(request: PendingRequest) -> str:
    """Names the request without the agents that it avoids for a limited time, because the sentence lists these
    elsewhere."""
    return _needs(replace(request, blocklist=tuple(sorted(request.blocked_for_good)), excluded=()))
