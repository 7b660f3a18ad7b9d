"""Decides what has become of a random program: right, refused in one line, or one of three faults."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from benchmarks.random_program.outcome import Outcome
from benchmarks.warm_gang import Answer

# Relative to a number, or to 1 where it is smaller. Double precision leaves 1e-13 a step.
TOLERANCE = 1e-8


class Kind(StrEnum):
    """UNFIT: plain PyTorch itself refuses the program, or its loss is not finite, so there are no numbers to compare
    with. The last three are faults."""

    EQUAL = "equal"
    REFUSED = "refused"
    UNFIT = "unfit"
    ERROR = "torch's error"
    HANG = "hang"
    SILENT = "silent difference"


FAULTS = (Kind.ERROR, Kind.HANG, Kind.SILENT)


@dataclass(frozen=True, slots=True)
class Verdict:
    """text: the line of a refusal, the traceback of an error, or what differs."""

    kind: Kind
    text: str = ""

    @property
    def is_fault(self) -> bool:
        return self.kind in FAULTS


def judge(
    answers: Sequence[Answer], reference: Outcome | None, *, is_exact: bool = False, tolerance: float = TOLERANCE
) -> Verdict:
    """answers: of all ranks, the first one first. reference: None where plain PyTorch has refused the program."""
    refusal = next((answer.text for answer in answers if answer.kind == "refused"), None)
    if refusal is not None:
        lines = refusal.splitlines()
        return Verdict(Kind.REFUSED if len(lines) == 1 else Kind.ERROR, refusal)
    if reference is None or not all(map(math.isfinite, reference.losses)):
        return Verdict(Kind.UNFIT)
    error = next((answer.text for answer in answers if answer.kind == "error"), None)
    if error is not None:
        return Verdict(Kind.ERROR, error)
    if any(answer.kind == "hang" for answer in answers):
        return Verdict(Kind.HANG, f"{sum(answer.kind == 'hang' for answer in answers)} rank(s) have not answered")
    for answer in answers:
        difference = describe_difference(answer.value, reference, 0.0 if is_exact else tolerance)
        if difference:
            return Verdict(Kind.SILENT, difference)
    return Verdict(Kind.EQUAL)


def describe_difference(outcome: Outcome, reference: Outcome, tolerance: float) -> str:
    """Returns what differs by more than the tolerance, with the largest differences; empty for nothing."""
    names = outcome.state.keys() ^ reference.state.keys()
    if names:
        return f"names of the state: {', '.join(sorted(names))}"
    found = []
    for name, ours, theirs in (
        ("losses", outcome.losses, reference.losses),
        ("validations", outcome.validations, reference.validations),
        ("learning rates", outcome.rates, reference.rates),
    ):
        if len(ours) != len(theirs):
            found.append(f"{len(ours)} {name} instead of {len(theirs)}")
            continue
        amount = _largest(zip(ours, theirs, strict=True))
        if not amount <= tolerance:
            found.append(f"{name} {amount:.1e} ({_row(ours)} instead of {_row(theirs)})")
    amounts = {name: _distance(outcome.state[name], value) for name, value in reference.state.items()}
    wrong = {name: amount for name, amount in amounts.items() if not amount <= tolerance}
    if wrong:
        worst = sorted(wrong, key=lambda name: -wrong[name])[:6]
        found.append(
            f"{len(wrong)} of {len(amounts)} tensors: " + ", ".join(f"{name} {wrong[name]:.1e}" for name in worst)
        )
    return "; ".join(found)


def largest_difference(outcome: Outcome, reference: Outcome) -> float:
    """Returns the largest difference of losses, validations and tensors of the state, which have the same names."""
    numbers = zip([*outcome.losses, *outcome.validations], [*reference.losses, *reference.validations], strict=True)
    return max(_largest(numbers), *(_distance(outcome.state[name], value) for name, value in reference.state.items()))


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    if ours.shape != theirs.shape:
        return math.inf
    if not ours.numel():
        return 0.0
    ours, theirs = ours.double(), theirs.double()
    amount = float(((ours - theirs).abs() / theirs.abs().clamp(min=1.0)).max())
    return math.inf if math.isnan(amount) else amount


def _largest(pairs: Iterable[tuple[float, float]]) -> float:
    amounts = [abs(a - b) / max(1.0, abs(b)) for a, b in pairs]
    return math.inf if any(map(math.isnan, amounts)) else max(amounts, default=0.0)


def _row(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.6g}" for number in numbers)
