"""Chooses the strategy that the configuration's `parallelism` names. No other module knows all strategies.

A trial on one rank needs no exchange; its strategy is defined here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar

import torch
from torch import nn

from gangline.config.elastic import slots_conflict, stages_conflict, unknown_strategy
from gangline.config.optimization import Optimizations, compression_conflict
from gangline.config.parallelism import NAMES, STRATEGIES, parse_parallelism
from gangline.errors import invalid
from gangline.pytorch.parallel.divided.fully_sharded import HsdpStrategy, Zero2Strategy, Zero3Strategy
from gangline.pytorch.parallel.shared.strategy import Strategy
from gangline.pytorch.parallel.staged.pipeline import PipelineStrategy
from gangline.pytorch.parallel.whole.ddp import DdpStrategy
from gangline.pytorch.parallel.whole.exchange import Exchange
from gangline.pytorch.parallel.whole.zero1 import Zero1Strategy


class SingleStrategy(Strategy):
    """Trains on one rank, without any exchange."""

    name: ClassVar[str] = "none"
    has_peers: ClassVar[bool] = False

    def prepare_model(self, model: nn.Module) -> nn.Module:
        return model

    def accumulate(self) -> AbstractContextManager[None]:
        return nullcontext()


_RECOMPUTATION = "activation_checkpointing"
_log = logging.getLogger("gangline")


def choose_strategy(
    parallelism: str | Mapping[str, Any] | None,
    size: int,
    device: torch.device,
    optimizations: Optimizations,
    num_machines: int = 1,
    *,
    timeout: timedelta | None = None,
) -> Strategy:
    """Returns the strategy for this trial. parallelism: a strategy's name, or a mapping with `strategy` and its
    options; None means ddp.

    A trial of one slot trains without a strategy, whatever it names, so that a script for many slots can be tried on
    one. timeout: of collectives in the process groups that the strategy makes itself; None for torch's own. Raises
    GanglineError `parallelism.*` where the strategy does not fit the configuration or the number of slots.
    """
    name, options = check_choice(parallelism, size, optimizations)
    # gangline.pytorch.init replaces it first where there are several ranks, see gangline.pytorch.plan.auto.
    assert name != "auto" or size == 1
    if size == 1:
        if name not in ("none", "ddp", "auto"):
            _log.info("parallelism: %s has nothing to divide on one slot", name)
        return SingleStrategy()
    makers: dict[str, Callable[[], Strategy]] = {
        "ddp": lambda: DdpStrategy(device, options, Exchange(optimizations)),
        "zero1": lambda: Zero1Strategy(device, options, Exchange(optimizations)),
        "zero2": lambda: Zero2Strategy(device, timeout=timeout, **options),
        "zero3": lambda: Zero3Strategy(device, timeout=timeout, **options),
        "hsdp": lambda: HsdpStrategy(device, timeout=timeout, size=size, num_machines=num_machines, **options),
        "pipeline": lambda: PipelineStrategy(device, timeout=timeout, size=size, **options),
    }
    return makers[name]()


def check_choice(
    parallelism: str | Mapping[str, Any] | None, size: int, optimizations: Optimizations
) -> tuple[str, dict[str, Any]]:
    """Returns the strategy's name and options. Raises as choose_strategy does; needs no process group."""
    name, options = _read(parallelism)
    conflict = compression_conflict(optimizations.gradient_compression, name)
    if conflict is not None:
        raise invalid("parallelism.compression", f"optimizations.gradient_compression: {conflict}")
    stages = options.get("stages")
    text = slots_conflict(name, size, "the slots of this trial are", stages) if size > 1 else None
    if text is None and size > 1 and STRATEGIES[name].family == "staged":
        text = stages_conflict(parse_parallelism({"strategy": name, **options}), size)
    if text is not None:
        raise invalid("parallelism.slots", f"parallelism: {text}")
    return name, options


def names_auto(parallelism: Any) -> bool:
    """Returns whether a configuration's section leaves the strategy to `auto`. parallelism: as a script may write it,
    not yet checked."""
    name = parallelism.get("strategy") if isinstance(parallelism, Mapping) else parallelism
    return bool(name == "auto")


def recomputation_of(parallelism: str | Mapping[str, Any] | None) -> tuple[str, list[str] | None]:
    """Returns which activations are computed again in the backward pass, and the names of the blocks' classes; see
    gangline.pytorch.parallel.recomputation. parallelism: as choose_strategy has accepted it."""
    if not isinstance(parallelism, Mapping):
        return "none", None
    kind = parallelism.get(_RECOMPUTATION) or "none"
    # A choice by `auto` has put its own word there; a model that is only loaded keeps no activations.
    return "none" if kind == "auto" else kind, parallelism.get("blocks")


def _read(parallelism: str | Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """Returns the strategy's name and the options given for it. Raises GanglineError for an unknown name or option."""
    if not isinstance(parallelism, str | Mapping | None):
        raise invalid(
            "parallelism.unknown",
            f"parallelism: expected a strategy or a mapping with one, found {parallelism!r}; this version has "
            f"{', '.join(NAMES)}",
        )
    written = {"strategy": parallelism} if isinstance(parallelism, str) else dict(parallelism or {})
    options = {key: value for key, value in written.items() if value is not None}
    name = options.pop("strategy", "ddp")
    kind = options.pop(_RECOMPUTATION, "none")
    if kind != "none":
        # Read by wrap_model, see recomputation_of. Its blocks are no option of the strategy then.
        parse_parallelism(written)
        if "blocks" not in STRATEGIES.get(name, STRATEGIES["none"]).options:
            options.pop("blocks", None)
    if name not in NAMES:
        raise invalid("parallelism.unknown", f"parallelism: {unknown_strategy(str(name))}")
    option_names = (*STRATEGIES[name].options, *STRATEGIES[name].script_options)
    unknown = set(options) - set(option_names)
    if name in ("pipeline", "auto"):
        section = parse_parallelism(written)
        options |= {"schedule": section.schedule} if section.schedule else {}
    if unknown:
        words = f"knows {', '.join(option_names)}" if option_names else "has no options"
        raise invalid("parallelism.option", f"parallelism.{min(unknown)}: {name} {words}")
    return name, options
