"""Each wrong number, name or model of a pipeline is refused with one line: what is wrong, the numbers, and a way out.

A row has the earliest place at which the mistake can be known: the submit, or the model's wrapping on a rank. A rank
that runs without a submit says the same sentence as the submit.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gangline.config import parse_config
from gangline.config.optimization import Optimizations
from gangline.domain.state import ExitKind
from gangline.errors import GanglineError
from gangline.launch.failure import describe
from gangline.pytorch.parallel.choice import check_choice
from gangline.pytorch.parallel.shared.ownership import check_initialised
from gangline.pytorch.parallel.staged.unit import divide_units, find_units
from gangline.pytorch.trial.backward import check_loss
from tests.support.pipeline_models import Chain

_TEMPLATE = """
entrypoint: model:Trial
searcher: {{name: single, metric: loss, max_length: {{batches: 1}}}}
resources: {{slots_per_trial: {slots}, min_slots_per_trial: {fewest}}}
hyperparameters: {{global_batch_size: {batch}}}
parallelism: {{{options}}}
"""
_SCHEDULES = "use GPipe, 1F1B, Interleaved1F1B, ZBVZeroBubble"
_LIST = "parameters, time, or a list of modules, as in [blocks.4, blocks.8]"

# Options of parallelism with a strategy, slots, records, and the message from the key on.
_ROWS: list[tuple[str, int, int, str]] = [
    (
        "stages: 3",
        8,
        64,
        ": pipeline trains each replica on 3 slots, but resources.slots_per_trial is 8, no multiple of that; use 9 "
        "slots, or stages: 2",
    ),
    (
        "stages: 16",
        8,
        64,
        ": pipeline trains each replica on 16 slots, but resources.slots_per_trial is 8, no multiple of that; use 16 "
        "slots, or stages: 8",
    ),
    (
        "schedule: 1F1B",
        1,
        64,
        ": pipeline divides the state of a trial over its slots, but resources.slots_per_trial is 1; use none, or at "
        "least 2 slots",
    ),
    ("stages: 0", 8, 64, ".stages: must be at least 1, found 0"),
    ("stages: -1", 8, 64, ".stages: must be at least 1, found -1"),
    ("stages: 1", 8, 64, ".stages: a pipeline has at least 2 stages; use ddp for 1"),
    ("stages: true", 8, 64, ".stages: expected an integer, found the boolean true"),
    ("stages: '2'", 8, 64, ".stages: expected an integer, found the string '2'"),
    ("microbatches: 0", 2, 64, ".microbatches: must be at least 1, found 0"),
    (
        "microbatches: 4",
        2,
        2,
        ": a replica's batch of 2 records cannot be cut into 4 equal microbatches; use 2, or a global_batch_size with "
        "a multiple of 4 records for each replica",
    ),
    (
        "stages: 2, microbatches: 3",
        4,
        32,
        ": a replica's batch of 16 records cannot be cut into 3 equal microbatches; use 2, or a global_batch_size "
        "with a multiple of 3 records for each replica",
    ),
    (
        "microbatches: 2",
        4,
        64,
        ": 1F1B needs at least as many microbatches as stages, but there are 2 for 4 stages; use 4 for the 64 records "
        "of a replica's batch, or schedule: GPipe",
    ),
    (
        "stages: 4, microbatches: 2",
        4,
        64,
        ".microbatches: 1F1B needs at least as many microbatches as stages, but there are 2 for 4 stages; use at "
        "least 4, a number that divides a replica's batch, or schedule: GPipe",
    ),
    (
        "schedule: Interleaved1F1B, microbatches: 6",
        4,
        36,
        ": Interleaved1F1B needs a multiple of its 4 stages, but there are 6 microbatches; use 4 for the 36 records of "
        "a replica's batch, or schedule: 1F1B",
    ),
    (
        "schedule: Interleaved1F1B",
        2,
        9,
        ": a replica's 9 records cannot be cut into the 2 microbatches that Interleaved1F1B needs; use a "
        "global_batch_size with a multiple of 2 records for each replica, or schedule: GPipe",
    ),
    ("schedule: 1F1", 2, 64, f".schedule: there is no schedule '1F1'; did you mean 1F1B? {_SCHEDULES}"),
    ("schedule: zbv", 2, 64, f".schedule: there is no schedule 'zbv'; did you mean ZBVZeroBubble? {_SCHEDULES}"),
    ("schedule: ''", 2, 64, f".schedule: there is no schedule ''; {_SCHEDULES}"),
    ("split: params", 2, 64, f".split: there is no split 'params'; did you mean parameters? use {_LIST}"),
    ("split: layers.2", 2, 64, ".split: expected parameters, time or a list; for one module write [layers.2]"),
    (
        "split: []",
        2,
        64,
        ": split names 0 modules, but 2 stages with 1F1B are 2 parts; name the module with which the second part "
        "begins",
    ),
    (
        "stages: 2, schedule: Interleaved1F1B, split: [a]",
        2,
        64,
        ".split: split names 1 module, but 2 stages with Interleaved1F1B are 4 parts; name the 3 modules with which "
        "the second and each later part begin",
    ),
    ("split: [a, a]", 3, 66, ".split[1]: 'a' is there twice; each part begins with another module"),
    (
        "split: ['']",
        2,
        64,
        ".split[0]: an empty name; name the module with which the part begins, as in blocks.4",
    ),
    (
        "split: [3]",
        2,
        64,
        ".split[0]: expected a module's name as a string, such as 'blocks.4' or '4', found the integer 3",
    ),
    (
        "split: {blocks: 4}",
        2,
        64,
        ".split: expected parameters, time, or a list of modules as [blocks.4, blocks.8], found a mapping",
    ),
    ("stage: 2", 2, 64, ".stage: unknown key; did you mean stages?"),
    ("micro_batches: 2", 2, 64, ".micro_batches: unknown key; did you mean microbatches?"),
    (
        "stages: 2, replicas: zero3",
        4,
        64,
        ".replicas: there is no strategy of replicas 'zero3'; did you mean zero2? use ddp, zero2",
    ),
    (
        "activation_checkpointing: auto",
        2,
        64,
        ".activation_checkpointing: auto belongs to the strategy auto, but the strategy is pipeline; use none, blocks "
        "or full",
    ),
    (
        "strategy: zero2, replicas: zero2",
        2,
        64,
        ".replicas: belongs to pipeline, but the strategy is zero2",
    ),
    (
        "strategy: hsdp",
        6 + 1,
        64,
        ": hsdp needs an even number of slots, at least 4, because it makes equal copies of a divided trial, but "
        "resources.slots_per_trial is 7; use zero3, or 8 slots",
    ),
]
_IDS = [f"{options}, {slots} slots, {batch} records" for options, slots, batch, _ in _ROWS]


def _written(options: str) -> str:
    return options if options.startswith("strategy") else f"strategy: pipeline, {options}"


def _submit(options: str, slots: int, batch: int, fewest: int | None = None) -> GanglineError:
    text = _TEMPLATE.format(options=_written(options), slots=slots, batch=batch, fewest=fewest or slots)
    with pytest.raises(GanglineError) as caught:
        parse_config(text)
    return caught.value


@pytest.mark.parametrize(("options", "slots", "batch", "message"), _ROWS, ids=_IDS)
def test_wrong_options_are_refused_at_submit(options: str, slots: int, batch: int, message: str) -> None:
    error = _submit(options, slots, batch)
    assert str(error).replace(" (line 6)", "") == f"parallelism{message}"
    assert error.code in ("config.invalid_value", "config.wrong_type", "config.unknown_key")


def test_a_smaller_size_keeps_whole_replicas() -> None:
    assert str(_submit("stages: 4", 8, 64, fewest=6)) == (
        "resources.min_slots_per_trial (line 4): with 6 there is no smaller size for 8 slots_per_trial and the "
        "strategy pipeline: a smaller size divides slots_per_trial, and the strategy can use it; use at most 4, or "
        "change slots_per_trial"
    )


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ({"stages": 3}, 8),
        ({"stages": 0}, 8),
        ({"stages": True}, 8),
        ({"microbatches": 2}, 4),
        ({"stages": 4, "microbatches": 2}, 4),
        ({"schedule": "Interleaved1F1B", "microbatches": 6}, 4),
        ({"schedule": "1F1"}, 2),
        ({"split": "params"}, 2),
        ({"split": []}, 2),
        ({"split": ["a", "a"]}, 3),
        ({"split": [""]}, 2),
        ({"split": [3]}, 2),
        ({"stages": 2, "replicas": "zero3"}, 4),
    ],
    ids=str,
)
def test_a_rank_without_a_submit_says_the_same(options: dict[str, Any], slots: int) -> None:
    section = {"strategy": "pipeline", **options}
    words = ", ".join(f"{key}: {value!r}" for key, value in options.items()).replace("True", "true")
    submitted = str(_submit(words, slots, 24)).replace(" (line 6)", "")
    with pytest.raises(GanglineError) as caught:
        check_choice(section, slots, Optimizations())
    told = str(caught.value).replace("the slots of this trial are", "resources.slots_per_trial is")
    if "microbatches" in options:
        # The submit knows the batch, so its way out is a number that divides it.
        told, submitted = told.partition("; use ")[0], submitted.partition("; use ")[0]
    assert told == submitted
    assert describe(caught.value).kind is ExitKind.CONFIGURATION_ERROR


class _Lazy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LazyLinear(6), nn.Linear(6, 3))


def _split(stages: int, split: list[str] | None = None, schedule: str = "1F1B") -> None:
    model = Chain()
    divide_units(model, find_units(model), stages, split, schedule)


_UNITS = "the units are stem, blocks.0, blocks.1, blocks.2, blocks.3, head"


@pytest.mark.parametrize(
    ("mistake", "code", "message"),
    [
        (
            lambda: _split(7),
            "parallelism.stages",
            f"pipeline cannot divide Chain, which has 6 units, but 7 stages with 1F1B are 7 parts; use at most 6 "
            f"stages, a number that divides the slots; {_UNITS}",
        ),
        (
            lambda: _split(4, schedule="Interleaved1F1B"),
            "parallelism.stages",
            "pipeline cannot divide Chain, which has 6 units, but 4 stages with Interleaved1F1B are 8 parts; use at "
            f"most 3 stages, a number that divides the slots; {_UNITS}",
        ),
        (
            lambda: divide_units(nn.ReLU(), find_units(Chain())[:3], 2, None, "ZBVZeroBubble"),
            "parallelism.stages",
            "pipeline cannot divide ReLU, which has 3 units, but 2 stages with ZBVZeroBubble are 4 parts; use "
            "schedule: 1F1B with 2 stages; the units are stem, blocks.0, blocks.1",
        ),
        (
            lambda: _split(2, ["block.1"]),
            "parallelism.split",
            "parallelism.split: there is no unit 'block.1'; did you mean blocks.1 or blocks.3? the units are stem, "
            "blocks.0, blocks.1, blocks.2, blocks.3, head",
        ),
        (
            lambda: _split(3, ["blocks.2", "blocks.1"]),
            "parallelism.split",
            "parallelism.split: blocks.1 is not after the beginning of the part before it; give the model's order",
        ),
        (
            lambda: _split(2, ["stem"]),
            "parallelism.split",
            "parallelism.split: stem is not after the beginning of the part before it; give the model's order",
        ),
        # The number of parts is known here only where `auto` has chosen the stages.
        (
            lambda: _split(4, ["blocks.2"]),
            "parallelism.split",
            "parallelism: split names 1 module, but 4 stages with 1F1B are 4 parts; name the 3 modules with which the "
            "second and each later part begin",
        ),
        (
            lambda: find_units(nn.Linear(6, 3)),
            "parallelism.model",
            "pipeline cannot cut Linear, which is one unit: it has no nn.ModuleList and no nn.Sequential of at least "
            "two modules; put its repeated layers into one, or use ddp or a zero strategy",
        ),
        (
            lambda: check_initialised(_Lazy()),
            "parallelism.lazy_model",
            "0.weight and 1 more of _Lazy have no shape before a first pass, as lazy modules leave it open, so ranks "
            "cannot share them; run a batch through the model before context.wrap_model, as in "
            "model(torch.zeros(2, 3, 32, 32)) under torch.no_grad()",
        ),
        (
            lambda: check_loss(torch.zeros(2, 3, requires_grad=True), None),
            "pytorch.loss",
            "context.backward got a loss of shape [2, 3] where it needs one number; pass its mean, as in "
            "context.backward(loss.mean())",
        ),
    ],
)
def test_wrong_models_are_refused_by_ranks(mistake: Any, code: str, message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        mistake()
    assert (caught.value.code, str(caught.value)) == (code, message)
    assert describe(caught.value).kind is ExitKind.CONFIGURATION_ERROR
