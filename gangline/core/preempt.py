"""Answers whether the trial should stop in order: the preempt part of the Core API.

Owns the three ways in which ranks may ask. A script that gets True saves a checkpoint and ends. The trial then waits
for new slots and resumes from that checkpoint.
"""

from __future__ import annotations

from enum import Enum

from gangline.core.beat import Beat, NoBeat
from gangline.core.distributed import DistributedContext
from gangline.core.link import Link
from gangline.errors import invalid


class PreemptMode(Enum):
    """WorkersAskChief: all ranks ask in step and get the chief's answer.
    ChiefOnly: only the chief asks.
    WorkersAskMaster: every rank asks by itself, and ranks may get different answers at the same time."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Reports a preemption to a script, which may ask after every batch. A question costs one broadcast with
    WorkersAskChief, and nothing in the other modes."""

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
        """Returns True once this trial is asked to give its slots back.

        auto_ack: takes an answer of True as a promise to stop. Without it, call acknowledge_preemption_signal() when
        stopping.
        """
        # Before the broadcast in which ranks wait for one another: a rank that does not arrive can then be told from
        # those that wait.
        self._beat.touch()
        should = self._is_asked()
        if should and auto_ack:
            self.acknowledge_preemption_signal()
        return should

    def acknowledge_preemption_signal(self) -> None:
        """Reports that this rank ends because it was asked to. The trial then counts as preempted, not as completed."""
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
