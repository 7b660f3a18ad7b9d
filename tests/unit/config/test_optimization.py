"""The section `optimizations`: its short forms, the levels of old files, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.config import ExperimentConfig, parse_config
from gangline.config.optimization import parse_optimizations
from gangline.errors import GanglineError

_MINIMAL = "entrypoint: m:T\nsearcher: {name: single, metric: loss, max_length: 1}\n"


@pytest.mark.parametrize(
    ("written", "hook", "rank"),
    [
        (False, None, 4),
        (True, "fp16", 4),
        ("bf16", "bf16", 4),
        ("powersgd", "powersgd", 4),
        ({"hook": "powersgd", "rank": 2}, "powersgd", 2),
    ],
)
def test_compression_has_short_forms(written: Any, hook: str | None, rank: int) -> None:
    compression = parse_optimizations({"gradient_compression": written}).gradient_compression
    assert (compression.hook, compression.rank) == (hook, rank)


@pytest.mark.parametrize(
    ("level", "autocast_type"),
    [("O0", None), ("O1", "fp16"), ("O2", "fp16"), ("O3", "fp16"), ("fp16", "fp16"), ("bf16", "bf16")],
)
def test_precision_by_name_and_by_old_level(level: str, autocast_type: str | None) -> None:
    assert parse_optimizations({"mixed_precision": level}).autocast_type == autocast_type


def test_stored_configuration_is_read_back() -> None:
    config, _ = parse_config(_MINIMAL + "optimizations: {gradient_compression: true, tensor_fusion_threshold: 8}\n")
    assert ExperimentConfig.model_validate_json(config.model_dump_json()) == config
    assert parse_optimizations(config.model_dump()["optimizations"]) == config.optimizations


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"gradient_compression": "topk"},
            "optimizations.gradient_compression: there is no compression 'topk'; use one of fp16, bf16, powersgd, "
            "or false",
        ),
        (
            {"gradient_compression": {"hook": "powersgd", "start_step": 1}},
            "optimizations.gradient_compression.start_step: must be at least 2, found 1",
        ),
        (
            {"gradient_compression": 3},
            "optimizations.gradient_compression: expected true, false or one of fp16, bf16, powersgd, found the "
            "integer 3",
        ),
        ({"aggregation_frequency": 0}, "optimizations.aggregation_frequency: must be at least 1, found 0"),
        (
            {"gradient_compresion": True},
            "optimizations.gradient_compresion: unknown key; did you mean gradient_compression?",
        ),
        ("O1", "optimizations: expected a mapping, found the string 'O1'"),
    ],
)
def test_refused(values: Any, message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_optimizations(values)
    assert caught.value.message == message


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "hsdp"])
def test_compression_needs_whole_gradients(strategy: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_config(_MINIMAL + f"optimizations: {{gradient_compression: fp16}}\nparallelism: {strategy}\n")
    assert caught.value.code == "config.invalid_value"
    assert caught.value.message == (
        f"optimizations.gradient_compression (line 3): fp16 works with ddp and zero1, but parallelism is {strategy}, "
        "which exchanges gradients in shards; leave it out, or use ddp"
    )
