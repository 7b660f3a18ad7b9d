"""PURE: a random training program as data, its text, and the smaller programs that may show the same fault.

A program is a model, what is done to it before and after it is wrapped, an optimizer, a schedule, and the batches at
which something changes. `benchmarks.random_program.build` knows what each name means.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# A name and a number, whose meaning the name decides: the number of a block, or a seed.
Step = tuple[str, int]

GLOBAL_BATCH = 16
# State that depends on the records, so that it differs from replica to replica.
IN_RECORDS = frozenset({"RunningMean", "AssignedMean", "BatchNorm"})
# State that a checkpoint does not have.
UNSAVED = frozenset(
    {
        "UnsavedCounter", "CounterAttribute", "CounterTensor", "CounterList", "CounterObject", "CounterLater", "Memory",
        "Alternating", "Dropped", "OwnGenerator", "OwnRandom", "OwnNumpy", "Hooked", "InnerHooked", "SharedCounter",
        "SharedGenerator",
    }
)  # fmt: skip
# Draws in training from the generators of the process.
DRAWING = frozenset({"Dropout", "Noise", "PythonNoise", "NumpyNoise"})
OTHERS = frozenset(
    {
        "Plain", "CounterBuffer", "AssignedCounter", "LateCounter", "InnerCounter", "SpectralNorm", "OldSpectralNorm",
        "WeightNorm", "PreHooked", "BackwardHooked", "Recurrent", "Checkpointed", "Table", "Frozen", "InnerGradient",
        "ScalarGain", "SharedBuffer", "SharedLayer",
    }
)  # fmt: skip
ALL_BLOCKS = IN_RECORDS | UNSAVED | DRAWING | OTHERS


@dataclass(frozen=True, slots=True)
class Program:
    """A random training program."""

    seed: int
    ranks: int = 2
    parallelism: dict[str, Any] = dataclasses.field(default_factory=lambda: {"strategy": "ddp"})
    recomputation: str = "none"
    form: str = "list"
    blocks: tuple[str, ...] = ("Plain",) * 4
    own: tuple[str, ...] = ()  # state of the model itself, beside its blocks
    before: tuple[Step, ...] = ()  # steps before wrap_model
    after: tuple[Step, ...] = ()  # steps behind wrap_model
    last: tuple[Step, ...] = ()  # steps behind the optimizer
    events: tuple[tuple[int, Step], ...] = ()  # steps at the beginning of an epoch, by its number
    optimizer: str = "sgd"
    is_grouped: bool = False
    has_two: bool = False
    scheduler: str = "none"
    clip: str = "none"
    aggregation: int = 1
    epoch: int = 2
    is_ragged: bool = False
    batches: int = 4
    period: int = 2  # batches between validations
    saved: int = 0  # batches before a checkpoint from which a new trial goes on; 0 for none

    @property
    def strategy(self) -> str:
        return str(self.parallelism["strategy"])

    @property
    def replicas(self) -> int:
        """Ranks, or groups of ranks, that train on records of their own."""
        return (
            self.ranks // int(self.parallelism.get("stages", self.ranks)) if self.strategy == "pipeline" else self.ranks
        )

    @property
    def microbatches(self) -> int:
        return int(self.parallelism.get("microbatches", 1))

    @property
    def draws(self) -> bool:
        """Whether training draws from the generators of the process."""
        return bool(DRAWING.intersection(self.blocks)) or "noise" in self.own

    @property
    def section(self) -> dict[str, Any]:
        """The configuration's section `parallelism`."""
        return {**self.parallelism, "activation_checkpointing": self.recomputation}

    def records_of(self, batch: int) -> int:
        """Records of a batch over all replicas; the last one of an epoch may have half of them."""
        is_short = self.is_ragged and (batch + 1) % self.epoch == 0
        return GLOBAL_BATCH // 2 if is_short else GLOBAL_BATCH


def to_json(program: Program) -> str:
    """Returns the program without what is as in the simplest one."""
    plain = Program(program.seed)
    values = {field.name: getattr(program, field.name) for field in dataclasses.fields(program)}
    return json.dumps(
        {name: value for name, value in values.items() if value != getattr(plain, name)} | {"seed": program.seed}
    )


def from_json(text: str) -> Program:
    values = {name: _as_tuples(value) if isinstance(value, list) else value for name, value in json.loads(text).items()}
    return Program(**values)


def describe(program: Program) -> str:
    """Returns the program as lines of text, in the order in which it runs."""
    lines = [
        f"parallelism: {json.dumps(program.section)} on {program.ranks} rank(s)",
        f"model ({program.form}): {', '.join(program.blocks)}"
        + "".join(f", {name} of its own" for name in program.own),
        f"before wrap_model: {_text(program.before)}",
        f"behind wrap_model: {_text(program.after)}",
        f"optimizer {program.optimizer}{' in groups' * program.is_grouped}{' and a second one' * program.has_two}, "
        f"scheduler {program.scheduler}, clip {program.clip}, {program.aggregation} batch(es) a step",
        f"behind the optimizer: {_text(program.last)}",
        f"{program.batches} batches, {program.epoch} an epoch{', the last one short' * program.is_ragged}, validation "
        f"after each {program.period}" + (f", from a checkpoint after {program.saved}" if program.saved else ""),
        *(f"at epoch {epoch}: {_text([step])}" for epoch, step in program.events),
    ]
    return "\n".join(lines)


def smaller(program: Program) -> Iterator[Program]:
    """Yields programs that have less, the largest steps first."""
    change = dataclasses.replace
    for name in ("before", "after", "last", "events", "own"):
        value = getattr(program, name)
        if value:
            yield change(program, **{name: ()})
        for place in range(len(value)) if len(value) > 1 else ():
            yield change(program, **{name: (*value[:place], *value[place + 1 :])})
    simple: dict[str, Any] = {
        "has_two": False, "is_grouped": False, "scheduler": "none", "clip": "none", "aggregation": 1, "saved": 0,
        "is_ragged": False, "optimizer": "sgd", "form": "list", "recomputation": "none", "batches": 2, "period": 9,
    }  # fmt: skip
    for name, value in simple.items():
        if getattr(program, name) != value:
            yield change(program, **{name: value})
    for place, kind in enumerate(program.blocks):
        if kind != "Plain":
            yield change(program, blocks=(*program.blocks[:place], "Plain", *program.blocks[place + 1 :]))


def _text(steps: Any) -> str:
    return ", ".join(f"{name}({number})" for name, number in steps) or "nothing"


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
