"""PURE: the order to trace a running trial, and the place of its trace.

A user gives the order. The leading scheduler keeps it until the trial's runner has it, and the chief's trainer carries
it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline.errors import invalid

# A trace grows by megabytes a batch, and TensorBoard takes minutes to draw more.
MOST_BATCHES = 50


@dataclass(frozen=True, slots=True)
class TraceOrder:
    """An order to trace."""

    trial_id: str
    allocation_id: str  # attempt that is traced
    batches: int  # number of batches to trace
    tensorboard_url: str  # folder of the trial's TensorBoard files, to which the trace is written


def check_batches(batches: int) -> None:
    """Raises GanglineError `trace.batches` for a number of batches out of range."""
    if not 1 <= batches <= MOST_BATCHES:
        raise invalid("trace.batches", f"a trace has 1 to {MOST_BATCHES} batches, not {batches}")


def tensorboard_url_of(storage_url: str, trial_id: str) -> str:
    """Returns the folder of a trial's TensorBoard files. trial_id: empty off the cluster."""
    place = f"{storage_url.rstrip('/')}/tensorboard"
    return f"{place}/{trial_id}" if trial_id else place
