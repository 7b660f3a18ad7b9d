"""How two ranks exchange gradients: compressed, in buckets of a named size, and only when a step needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.cluster_info import CheckpointInfo
from gangline.pytorch import load_checkpoint
from tests.support.rank import RunningTrial, Trial, run_trial
from tests.support.trial_source import LINEAR, linear_config

# Counts what the ranks exchange: DDP calls a hook once for each bucket that it sends.
_COUNTING = """
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

sent = []
original_init = DistributedDataParallel.__init__


def counting_init(self, *arguments, **options):
    original_init(self, *arguments, **options)
    original_register = self.register_comm_hook

    def counted(state, bucket):
        sent.append(bucket.buffer().numel())
        print("sent", len(sent), sent[-1], flush=True)
        return default_hooks.allreduce_hook(torch.distributed.group.WORLD, bucket)

    original_register(None, counted)


DistributedDataParallel.__init__ = counting_init
"""


def _run(
    directory: Path,
    optimizations: dict[str, object],
    code: str = LINEAR,
    *,
    batches: int = 12,
    latest: CheckpointInfo | None = None,
    strategy: str = "ddp",
) -> RunningTrial:
    config = linear_config({"batches": batches}, optimizations=optimizations, parallelism=strategy)
    trial = Trial({"model_def.py": code}, config, {"global_batch_size": 8}, 2, latest)
    running, codes = run_trial(directory, trial)
    assert codes == [0, 0], running.output(0) + running.output(1)
    return running


@pytest.mark.parametrize(("hook", "tolerance"), [(True, 1e-3), ("bf16", 1e-2)])
def test_half_gradients_have_nearly_the_losses_of_whole_ones(
    tmp_path: Path, hook: bool | str, tolerance: float
) -> None:
    whole = _run(tmp_path / "whole", {}).runner.metric("training", "loss")
    half = _run(tmp_path / "half", {"gradient_compression": hook}).runner.metric("training", "loss")
    assert half == pytest.approx(whole, abs=tolerance)
    assert half != whole


_FP16 = LINEAR.replace("wrap_optimizer(optimizer)", "wrap_optimizer(optimizer, fp16_compression=True)")


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_an_optimizer_asks_for_fp16_as_the_experiment_would(tmp_path: Path, strategy: str) -> None:
    asked = _run(tmp_path / "asked", {}, _FP16, strategy=strategy).runner.metric("training", "loss")
    named = _run(tmp_path / "named", {"gradient_compression": True}, strategy=strategy).runner.metric(
        "training", "loss"
    )
    whole = _run(tmp_path / "whole", {}, strategy=strategy).runner.metric("training", "loss")
    assert asked == named
    assert asked != whole


def test_what_the_experiment_names_counts(tmp_path: Path) -> None:
    named = _run(tmp_path / "named", {"gradient_compression": "bf16"})
    both = _run(tmp_path / "both", {"gradient_compression": "bf16"}, _FP16)
    assert both.runner.metric("training", "loss") == named.runner.metric("training", "loss")
    warning = "wrap_optimizer(fp16_compression=True) has no effect: optimizations.gradient_compression says bf16"
    assert warning in both.output(0)
    assert warning not in named.output(0)


def test_fp16_of_an_optimizer_is_refused_where_gradients_go_in_shards(tmp_path: Path) -> None:
    config = linear_config({"batches": 1}, parallelism="zero3")
    running, codes = run_trial(tmp_path, Trial({"model_def.py": _FP16}, config, {"global_batch_size": 8}, 2))
    assert codes == [1, 1]
    assert running.runner.of(0, "failure")[0].message == (
        "wrap_optimizer(fp16_compression=True): fp16 works with ddp and zero1, but parallelism is zero3, which "
        "exchanges gradients in shards; leave it out, or use ddp"
    )


def test_powersgd_goes_on_with_its_memory(tmp_path: Path) -> None:
    optimizations: dict[str, object] = {"gradient_compression": {"hook": "powersgd", "rank": 1, "start_step": 3}}
    plain = _run(tmp_path / "plain", {}).runner.metric("training", "loss")
    whole = _run(tmp_path / "whole", optimizations).runner.metric("training", "loss")
    # The gradients of the first three steps go as they are, and the loss of a batch shows the steps before it.
    assert {batch: whole[batch] for batch in range(1, 5)} == {batch: plain[batch] for batch in range(1, 5)}
    assert whole[12] != plain[12]
    first = _run(tmp_path / "first", optimizations, batches=6)
    memories = [state["powersgd"][0] for state in _state(first)["rank_state"]]
    assert [memory["iter"] for memory in memories] == [6, 6]
    assert not torch.equal(memories[0]["error_dict"][0], memories[1]["error_dict"][0])
    second = _run(tmp_path / "second", optimizations, batches=7, latest=first.latest_checkpoint())
    (kept,) = _state(second)["rank_state"][0]["powersgd"]
    assert kept["iter"] == 7
    # The first step of a process uses the memory.
    assert not torch.equal(kept["error_dict"][0], memories[0]["error_dict"][0])
    third = _run(tmp_path / "third", optimizations, latest=second.latest_checkpoint())
    assert third.runner.metric("training", "loss")[12] == whole[12]
    assert _state(third)["rank_state"][0]["powersgd"][0]["iter"] == 12


def test_powersgd_of_several_buckets_goes_on_with_its_memory(tmp_path: Path) -> None:
    optimizations: dict[str, object] = {
        "gradient_compression": {"hook": "powersgd", "rank": 1, "start_step": 3},
        "tensor_fusion_threshold": 0,
    }
    whole = _run(tmp_path / "whole", optimizations, batches=40).runner.metric("training", "loss")
    first = _run(tmp_path / "first", optimizations, batches=15)
    (memory,) = _state(first)["rank_state"][0]["powersgd"]
    assert len(memory["layout"]) > 1
    second = _run(tmp_path / "second", optimizations, batches=40, latest=first.latest_checkpoint())
    assert second.runner.metric("training", "loss")[40] == whole[40]


def _state(running: RunningTrial) -> dict[str, Any]:
    return load_checkpoint(running.latest_checkpoint().url)


def _sent(running: RunningTrial) -> list[tuple[int, int]]:
    """Number and elements of each bucket that the first rank sent."""
    lines = [line.split() for line in running.output(0).splitlines() if line.startswith("sent")]
    return [(int(number), int(size)) for _, number, size in lines]


def test_gradients_go_out_once_a_step(tmp_path: Path) -> None:
    every = _run(tmp_path / "every", {}, LINEAR + _COUNTING, batches=4)
    assert _sent(every) == [(1, 81), (2, 81), (3, 81), (4, 81)]
    aggregated = _run(tmp_path / "aggregated", {"aggregation_frequency": 2}, LINEAR + _COUNTING, batches=4)
    assert _sent(aggregated) == [(1, 81), (2, 81)]


def test_named_cap_divides_the_buckets(tmp_path: Path) -> None:
    running = _run(tmp_path, {"tensor_fusion_threshold": 0}, LINEAR + _COUNTING, batches=2)
    sizes = [size for _, size in _sent(running)]
    # torch sends the first step of a wrapper whole, and makes the buckets from what it learned in it.
    assert sizes[0] == 81
    assert sorted(sizes[1:]) == [1, 8, 8, 8, 8, 48]


def test_losses_are_the_chief_s_own_where_they_are_not_averaged(tmp_path: Path) -> None:
    averaged = _run(tmp_path / "averaged", {}, batches=3).runner.metric("training", "loss")
    own = _run(tmp_path / "own", {"average_training_metrics": False}, batches=3).runner.metric("training", "loss")
    assert all(abs(averaged[batch] - own[batch]) > 1e-6 for batch in averaged)


def test_summed_gradients_are_twice_averaged_ones(tmp_path: Path) -> None:
    """With SGD, half the learning rate undoes the sum of two batches' gradients; clipping is off at such sizes."""
    code = LINEAR.replace("lr=0.05", "lr=self.context.get_hparam('rate')").replace(", 1.0)", ", 1000.0)")
    losses = []
    for name, rate, is_average in (("mean", 0.02, True), ("sum", 0.01, False)):
        optimizations: dict[str, object] = {"aggregation_frequency": 2, "average_aggregated_gradients": is_average}
        config = linear_config({"batches": 8}, optimizations=optimizations)
        hparams = {"global_batch_size": 8, "rate": rate}
        running, codes = run_trial(tmp_path / name, Trial({"model_def.py": code}, config, hparams, 2))
        assert codes == [0, 0], running.output(0)
        losses.append(running.runner.metric("training", "loss"))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_unknown_hook_ends_the_trial_before_training(tmp_path: Path) -> None:
    config = linear_config({"batches": 1}, optimizations={"gradient_compression": "quantization"})
    running, codes = run_trial(tmp_path, Trial({"model_def.py": LINEAR}, config, {"global_batch_size": 8}, 2))
    assert codes == [1, 1]
    failure = running.runner.of(0, "failure")[0]
    assert failure.message == (
        "optimizations.gradient_compression: there is no compression 'quantization'; use one of fp16, bf16, powersgd, "
        "or false"
    )
