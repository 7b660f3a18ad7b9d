"""PURE: the section `optimizations`: how gradients are summed, exchanged and rounded. The check at submit and the ranks
read it with the same models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from gangline.config.complaint import complaints_of, join_path
from gangline.config.parallelism import STRATEGIES, is_sharded
from gangline.config.section import WRITTEN, Section, fault, wrong_type
from gangline.errors import invalid

HOOKS = ("fp16", "bf16", "powersgd")


class Compression(Section):
    """The compression of gradients for their exchange. hook: None sends them uncompressed.

    rank, start_step: powersgd only; the rank of its matrices, and how many steps at the start run uncompressed.
    """

    hook: Literal["fp16", "bf16", "powersgd"] | None = None
    rank: int = Field(default=4, ge=1)
    start_step: int = Field(default=1000, ge=2)

    @model_validator(mode="before")
    @classmethod
    def _accept_word(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return {"hook": "fp16" if value else None}
        if isinstance(value, str):
            value = {"hook": value}
        if not isinstance(value, Mapping):
            raise wrong_type(f"true, false or one of {', '.join(HOOKS)}", value)
        hook = value.get("hook")
        if hook is not None and hook not in HOOKS:
            raise fault("unknown_hook", f"there is no compression {hook!r}; use one of {', '.join(HOOKS)}, or false")
        return value


class Optimizations(Section):
    """aggregation_frequency: batches whose gradients are summed before one optimizer step.

    mixed_precision: fp16 or bf16 run forward passes under torch.autocast; of the old levels O0 is off, the others are
    fp16. tensor_fusion_threshold: the cap of DDP's buckets in MB; None leaves it to torch or to the tuning.
    tensor_fusion_cycle_time is in milliseconds. nonfinite_loss: whether training stops when a reported loss is no
    finite number.
    """

    aggregation_frequency: int = Field(default=1, ge=1)
    average_aggregated_gradients: bool = True
    average_training_metrics: bool = True
    gradient_compression: Compression = Compression()
    mixed_precision: Literal["O0", "O1", "O2", "O3", "fp16", "bf16"] = "O0"
    tensor_fusion_threshold: int | None = Field(default=None, ge=0)
    tensor_fusion_cycle_time: int = Field(default=1, ge=0)
    auto_tune_tensor_fusion: bool = False
    grad_updates_size_file: str | None = None
    nonfinite_loss: Literal["stop", "ignore"] = "stop"

    @property
    def autocast_type(self) -> str | None:
        """Returns fp16 or bf16, or None for full precision."""
        return {"O0": None, "bf16": "bf16"}.get(self.mixed_precision, "fp16")


def parse_optimizations(values: Any) -> Optimizations:
    """Parses the section that a script passes, or that a rank finds in its configuration; None gives all defaults.

    Raises GanglineError `config.*` with the key's path.
    """
    try:
        return Optimizations.model_validate({} if values is None else values, context=WRITTEN)
    except ValidationError as failure:
        first = complaints_of(failure, values)[0]
        place = join_path(("optimizations", *first.path))
        raise invalid(f"config.{first.code}", f"{place}: {first.text}") from failure


def compression_conflict(compression: Compression, strategy: str) -> str | None:
    """Returns why gradients cannot be compressed with this strategy; None when they can."""
    row = STRATEGIES.get(strategy)
    if compression.hook is None or row is None or row.family not in ("sharded", "staged"):
        return None
    how = "exchanges gradients in shards" if is_sharded(strategy) else "exchanges gradients after its last microbatch"
    return (
        f"{compression.hook} works with ddp and zero1, but parallelism is {strategy}, which {how}; leave it out, or "
        "use ddp"
    )
