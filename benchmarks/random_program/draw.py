"""Chooses a random program by its seed. Leaves out what docs/parallelism.md says is not noticed, or depends on
the number of slots: such programs have no right numbers to compare with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from benchmarks.random_program.program import (
    ALL_BLOCKS,
    DRAWING,
    UNSAVED,
    Program,
    Step,
)

# How often each strategy is chosen, its ranks and its section.
_STRATEGIES: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (3, 1, {"strategy": "none"}),
    (4, 2, {"strategy": "ddp"}),
    (1, 4, {"strategy": "ddp"}),
    (1, 2, {"strategy": "ddp", "find_unused_parameters": True}),
    (3, 2, {"strategy": "zero1"}),
    (3, 2, {"strategy": "zero2"}),
    (4, 2, {"strategy": "zero3"}),
    (1, 4, {"strategy": "zero3"}),
    (3, 4, {"strategy": "hsdp"}),
    (5, 2, {"strategy": "pipeline", "stages": 2, "schedule": "1F1B"}),
    (3, 2, {"strategy": "pipeline", "stages": 2, "schedule": "GPipe"}),
    (3, 2, {"strategy": "pipeline", "stages": 2, "schedule": "Interleaved1F1B"}),
    (3, 2, {"strategy": "pipeline", "stages": 2, "schedule": "ZBVZeroBubble"}),
    (2, 4, {"strategy": "pipeline", "stages": 2, "schedule": "1F1B"}),
    (1, 4, {"strategy": "pipeline", "stages": 2, "schedule": "GPipe", "replicas": "zero2"}),
    (1, 4, {"strategy": "pipeline", "stages": 2, "schedule": "ZBVZeroBubble", "replicas": "zero2"}),
    (1, 4, {"strategy": "pipeline", "stages": 2, "schedule": "Interleaved1F1B"}),
    (1, 4, {"strategy": "pipeline", "stages": 4, "schedule": "1F1B"}),
)
_INITIALISING = ("xavier", "uniform", "normal", "trunc_normal", "orthogonal", "sparse", "eye", "apply", "reset")
_DRAWS = ("draw", "draw_order", "draw_python", "draw_numpy")
_BEFORE = (
    *_INITIALISING,
    *_DRAWS,
    "seed",
    "draw_whole",
    "freeze",
    "load",
    "hook_parameter",
    "hook_block",
    "gain",
    "tie",
)
_AFTER = (
    *_INITIALISING, *_DRAWS, "seed", "draw_whole", "jitter", "halve", "clamp", "normalise", "copy_block", "freeze",
    "thaw", "load", "load_block", "fill_buffers", "gain", "hook_parameter", "hook_block", "look", "look_training",
)  # fmt: skip
_EVENTS = (
    "freeze", "thaw", "halve", "clamp", "jitter", "own_jitter", "own_scale", "load", "load_block", "fill_buffers",
    "gain", "rate", "normalise", "copy_block",
)  # fmt: skip
# Steps for the whole model; other steps choose a block or, with -1, the whole model.
_OF_BLOCKS = frozenset({"gain", "load_block", "copy_block", "tie", "draw", "draw_order", "draw_python", "draw_numpy"})
_SEEDED = frozenset({"seed", "load", "look", "look_training"})
# Events that draw from the streams of training. Ranks of several replicas have streams of their own, so such a trial
# must end with a line where they would drift apart.
_OWN_DRAWS = frozenset({"own_jitter", "own_scale"})
_FORMS = ("sequential", "list", "list", "skip", "lists", "nested", "mapping", "inline")
_OWN = ("counter", "attribute", "late", "memory", "generator", "noise", "table")
_OPTIMIZERS = (
    "sgd", "sgd", "momentum", "decay", "adam", "adamw", "for each", "rmsprop", "adagrad", "adadelta", "adamax", "nadam",
    "radam", "asgd", "adafactor",
)  # fmt: skip
_SCHEDULERS = ("step", "exponential", "cosine", "one cycle", "function", "sequence")


def draw_program(seed: int) -> Program:
    """Returns the program of a seed."""
    rng = random.Random(seed)
    weights = [weight for weight, _, _ in _STRATEGIES]
    (_, ranks, parallelism) = rng.choices(_STRATEGIES, weights)[0]
    is_pipeline = parallelism["strategy"] == "pipeline"
    replicas = ranks // parallelism.get("stages", ranks) if is_pipeline else ranks
    is_ragged = rng.random() < 0.25
    if is_pipeline:
        parallelism = {**parallelism, "microbatches": 2 if replicas > 1 and is_ragged else 4}
        if parallelism["stages"] == 4:
            is_ragged = False
    recomputation = _recomputation(rng, parallelism)
    form = rng.choice(_FORMS)
    kinds = _kinds_for(parallelism, replicas)
    blocks = _blocks(rng, kinds)
    own = tuple(name for name in _OWN if form != "sequential" and rng.random() < 0.08)
    draws = bool(DRAWING.intersection(blocks)) or "noise" in own
    if draws and is_pipeline and parallelism["schedule"] != "ZBVZeroBubble":
        # Compared with the same pipeline without recomputation.
        recomputation = "blocks" if recomputation == "none" else recomputation
    elif draws and is_pipeline:
        blocks = tuple("Plain" if kind in DRAWING else kind for kind in blocks)
        own = tuple(name for name in own if name != "noise")
        draws = False
    aggregation = 2 if rng.random() < 0.15 else 1
    batches = rng.choice((3, 4, 5, 6) if aggregation == 1 else (4, 6))
    period = rng.choice((1, 2, 3, 9) if aggregation == 1 else (2, 9))
    events = () if draws else _events(rng, len(blocks))
    if parallelism["strategy"] in ("zero2", "zero3", "hsdp"):
        # Not noticed: each part is multiplied by a number of its rank.
        events = tuple(event for event in events if event[1][0] != "own_scale")
    before, after = _steps(rng, _BEFORE, 0.4, len(blocks)), _steps(rng, _AFTER, 0.6, len(blocks))
    last = _steps(rng, (*_AFTER, "rate"), 0.25, len(blocks))
    has_hooks = any(name == "hook_block" for name, _ in (*before, *after, *last))
    keeps = not (UNSAVED.intersection(blocks) or own or draws or events or has_hooks)
    return Program(
        seed,
        ranks,
        parallelism,
        recomputation,
        form,
        blocks,
        own,
        before,
        after,
        last,
        events,
        rng.choice(_OPTIMIZERS),
        rng.random() < 0.2,
        rng.random() < 0.15,
        rng.choice(_SCHEDULERS) if rng.random() < 0.5 else "none",
        rng.choice(("none", "none", "norm", "value")),
        aggregation,
        rng.choice((1, 2, 3)),
        is_ragged,
        batches,
        period,
        2 if keeps and rng.random() < 0.15 else 0,
    )


def _recomputation(rng: random.Random, parallelism: dict[str, Any]) -> str:
    if parallelism.get("schedule") == "ZBVZeroBubble":
        return "none"
    if parallelism["strategy"] == "none":
        return rng.choice(("blocks", "full"))
    return rng.choice(("none", "none", "blocks", "full"))


def _kinds_for(parallelism: dict[str, Any], replicas: int) -> list[str]:
    """Returns the kinds of blocks whose numbers are known in advance."""
    out: set[str] = set()
    if replicas > 1 and parallelism["strategy"] in ("ddp", "zero1"):
        # DistributedDataParallel sends the first rank's buffers before each forward pass.
        out |= {"RunningMean", "AssignedMean"}
    if parallelism["strategy"] == "pipeline":
        out |= {"BackwardHooked", "PythonNoise", "NumpyNoise"}
        if parallelism["schedule"] in ("ZBVZeroBubble", "Interleaved1F1B"):
            out |= {"OldSpectralNorm"}
    return sorted(ALL_BLOCKS - out)


def _blocks(rng: random.Random, kinds: Sequence[str]) -> tuple[str, ...]:
    """Mostly one or two kinds beside plain blocks, as repeated blocks of one class are what models have."""
    count = rng.choice((4, 4, 5, 6))
    chosen = [*rng.sample(kinds, rng.choice((1, 2))), "Plain"]
    if rng.random() < 0.3:
        return (chosen[0],) * count
    return tuple(rng.choice(chosen) for _ in range(count))


def _events(rng: random.Random, num_blocks: int) -> tuple[tuple[int, Step], ...]:
    return tuple((rng.randint(0, 2), step) for step in _steps(rng, _EVENTS, 0.35, num_blocks))


def _steps(rng: random.Random, names: Sequence[str], share: float, num_blocks: int) -> tuple[Step, ...]:
    if rng.random() > share:
        return ()
    return tuple(_step(rng, rng.choice(names), num_blocks) for _ in range(rng.choice((1, 1, 2, 3))))


def _step(rng: random.Random, name: str, num_blocks: int) -> Step:
    if name in _SEEDED:
        return name, rng.randint(0, 5)
    if name in _OF_BLOCKS or rng.random() < 0.5:
        return name, rng.randrange(num_blocks)
    return name, -1
