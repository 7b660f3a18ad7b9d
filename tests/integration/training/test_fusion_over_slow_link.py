"""Tensor fusion tuned by its own clock: real ranks exchange real gradients over a link that is really slow.

The link takes somewhat longer than the backward pass, and half of it where a busy machine makes the pass three times as
long. Several buckets travel beside the backward pass, of which the default's two leave most for its end; one bucket
for each tensor is slower than both. These differences are far above noise, so every machine must find them; a tuner
that measures nothing, or the wrong thing, does not.
"""

from __future__ import annotations

import re
from pathlib import Path

from gangline.v1 import types_pb2
from tests.support.fused_trial import fused_config, over_slow_link
from tests.support.rank import RunningTrial, Trial, run_trial

_ALPHA_SECONDS = 0.008
_BYTES_PER_SECOND = 6e6
_SLOW_LAYERS = 12
_LAYER_SECONDS = 0.012
_STEPS = 75
_NUM_TENSORS = 72
_MODEL_BYTES = 36 * (96 * 96 + 96) * 4


def _run(directory: Path, size: int, records: list[types_pb2.FusionRecord] | None = None) -> RunningTrial:
    config = fused_config(_STEPS, {"auto_tune_tensor_fusion": True})
    code = {"model_def.py": over_slow_link(_ALPHA_SECONDS, _BYTES_PER_SECOND, _LAYER_SECONDS)}
    trial = Trial(code, config, {"steps": _STEPS, "straggles": False}, size, fusion=records or [])
    running, codes = run_trial(directory, trial)
    assert codes == [0] * size, running.output(0)
    return running


def _num_buckets(running: RunningTrial, size: int) -> list[int]:
    """Returns each rank's number of buckets in the last step."""
    bucket_lists = [re.findall(rf"step {_STEPS - 1} buckets (.+)", running.output(rank))[-1] for rank in range(size)]
    return [len(sizes.split(",")) for sizes in bucket_lists]


def _check_record(record: types_pb2.FusionRecord) -> None:
    """Checks the link's cost for all gradients, which is never much less; its division into a fixed part and a rate
    varies more. On a busy machine an exchange also waits for a rank that does not get to run."""
    expected = _ALPHA_SECONDS + _MODEL_BYTES / _BYTES_PER_SECOND
    assert 0.7 * expected < record.alpha_seconds + _MODEL_BYTES / record.bytes_per_second < 20 * expected
    assert 0.3 * _ALPHA_SECONDS < record.alpha_seconds < 50 * _ALPHA_SECONDS
    assert record.tuned_step_seconds > max(_MODEL_BYTES / _BYTES_PER_SECOND, _SLOW_LAYERS * _LAYER_SECONDS)
    # How much faster depends on the machine's other work; the number of buckets shows that the tuner searched.
    assert record.default_step_seconds > record.tuned_step_seconds


def _check_tuned(running: RunningTrial, size: int) -> types_pb2.FusionRecord:
    (num_buckets,) = set(_num_buckets(running, size))
    assert 2 < num_buckets < _NUM_TENSORS / 2
    (record,) = running.runner.of(0, "fusion_record")
    assert isinstance(record, types_pb2.FusionRecord)
    _check_record(record)
    return record


def test_tuner_of_three_ranks_finds_the_faster_buckets(tmp_path: Path) -> None:
    _check_tuned(_run(tmp_path / "tuned", 3), 3)


def test_tuner_finds_the_faster_buckets_and_throws_slower_ones_out(tmp_path: Path) -> None:
    size = 2
    record = _check_tuned(_run(tmp_path / "tuned", size), size)
    # What another trial left: a bucket for each tensor, said to be fast.
    slow = types_pb2.FusionRecord()
    slow.CopyFrom(record)
    slow.bucket_bytes[:] = [1]
    again = _run(tmp_path / "again", size, [slow])
    assert "recalled from trial" in again.output(0)
    assert "fusion: the recalled buckets are slower than the default here; tuning again" in again.output(0)
    # A busy machine may leave it with the default.
    (num_buckets,) = set(_num_buckets(again, size))
    assert 2 <= num_buckets < _NUM_TENSORS / 2
