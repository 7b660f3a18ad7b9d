"""Asking whether the trial should stop in order: the preempt part of the Core API.

Owns the three ways in which ranks may ask. A script that is told True saves a checkpoint and ends; the trial then
waits for new slots and goes on from there.
"""

from __future__ import annotations

from enum import Enum

from gangline.core.beat import Beat, NoBeat
from gangline.core.distributed import DistributedContext
from gangline.core.link import Link
from gangline.errors import invalid


class PreemptMode(Enum):
    """WorkersAskChief: all ranks ask in step and get the chief's answer. ChiefOnly: only the chief asks.
    WorkersAskMaster: every rank asks by itself, and ranks may get different answers at the same time."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """May be asked after every batch; it costs one broadcast with WorkersAskChief, nothing otherwise."""

    def __init__(
        self,
        distributed: DistributedContext,
        link: Link,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
        beat: Beat | None = None,
    ) -> None:
        self._distributed = distributed
        self._link = link
        self._mode = preempt_mode
        self._beat = beat or NoBeat()

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """True once this trial is asked to give its slots back.

        auto_ack: take True for a promise to stop; without it, call acknowledge_preemption_signal() when stopping.
        """
        # Before ranks wait for one another in it, so that the one that does not come is told from those that wait.
        self._beat.touch()
        should = self._is_asked()
        if should and auto_ack:
            self.acknowledge_preemption_signal()
        return should

    def acknowledge_preemption_signal(self) -> None:
        """Says that this rank ends because it was asked to, so that the trial counts as preempted, not as completed."""
        self._link.send_stopping()

    def _is_asked(self) -> bool:
        own = self._link.preemption is not None
        if self._mode is PreemptMode.WorkersAskMaster:
            return own
        if self._mode is PreemptMode.WorkersAskChief:
            return bool(self._distributed.broadcast(own))
        if not self._distributed.is_chief:
            raise invalid(
                "core.chief_only",
                f"rank {self._distributed.rank} calls should_preempt(), but PreemptMode.ChiefOnly lets only rank 0 ask",
            )
        return own
