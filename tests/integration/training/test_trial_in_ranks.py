"""A trial class in real ranks: the same losses on any number of ranks, checkpoints that go on exactly, preemption."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.cluster_info import CheckpointInfo
from tests.support.rank import RunningTrial, Trial, run_trial, start_trial
from tests.support.trial_source import LINEAR, linear_config

_HPARAMS = {"global_batch_size": 8}


def _trial(max_length: object, size: int = 1, latest: CheckpointInfo | None = None, **more: object) -> Trial:
    hparams = {**_HPARAMS, **(more.pop("hparams", None) or {})}  # type: ignore[dict-item]  # tests pass dictionaries
    config = linear_config(max_length, **more)
    return Trial({"model_def.py": LINEAR}, config, hparams, size, latest)


def _records(running: RunningTrial, rank: int) -> list[list[int]]:
    lines = [line.split(maxsplit=3) for line in running.output(rank).splitlines() if line.startswith("records")]
    return [ast.literal_eval(line[3]) for line in lines]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_two_ranks_have_the_losses_of_one_process(tmp_path: Path, optimizer: str) -> None:
    hparams = {"optimizer": optimizer}
    alone, codes_of_one = run_trial(tmp_path / "one", _trial({"batches": 20}, hparams=hparams))
    two, codes_of_two = run_trial(tmp_path / "two", _trial({"batches": 20}, size=2, hparams=hparams))
    assert (codes_of_one, codes_of_two) == ([0], [0, 0])
    losses = alone.runner.metric("training", "loss")
    assert len(losses) == 20
    assert two.runner.metric("training", "loss") == pytest.approx(losses, abs=1e-5)
    errors = alone.runner.metric("validation", "error")
    assert list(errors) == [20]
    assert two.runner.metric("validation", "error") == pytest.approx(errors, abs=1e-5)
    assert sum(losses[batch] for batch in range(16, 21)) < sum(losses[batch] for batch in range(1, 6))


@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
def test_divided_trial_has_the_losses_of_a_whole_one(tmp_path: Path, strategy: str) -> None:
    """With torch's own clipping, as trials have it."""
    losses = []
    for place, more in (("one", {}), ("two", {"size": 2, "parallelism": strategy})):
        trial = _trial({"batches": 8}, **more)  # type: ignore[arg-type]  # what _trial names
        trial.code["model_def.py"] = LINEAR.replace(" + noise * self.model[0].weight.sum()", "")
        running, codes = run_trial(tmp_path / place, trial)
        assert set(codes) == {0}, running.output(0)
        losses.append({**running.runner.metric("training", "loss"), 0: running.runner.metric("validation", "error")[8]})
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_use_of_a_part_of_the_parameters_is_explained(tmp_path: Path) -> None:
    """The trial adds a weight to its loss, outside of the model's forward pass."""
    running, codes = run_trial(tmp_path, _trial({"batches": 2}, size=2, parallelism="zero3"))
    assert codes == [1, 1]
    message = running.runner.of(0, "failure")[0].message
    assert message.startswith("context.backward got a loss that uses parameters of which each rank has a part")


def test_ranks_train_on_different_records_of_the_same_batches(tmp_path: Path) -> None:
    alone, _ = run_trial(tmp_path / "one", _trial({"epochs": 2}))
    two, _ = run_trial(tmp_path / "two", _trial({"epochs": 2}, size=2))
    together = [left + right for left, right in zip(_records(two, 0), _records(two, 1), strict=True)]
    assert together == _records(alone, 0)
    first_epoch = [record for batch in together[:12] for record in batch]
    assert len(set(first_epoch)) == 96


def test_aggregated_batches_have_the_losses_of_larger_ones(tmp_path: Path) -> None:
    """Four records a batch, two batches a step, equal eight records a batch: seen at the steps' validation."""
    whole, _ = run_trial(tmp_path / "whole", _trial({"batches": 6}, min_validation_period={"batches": 1}))
    aggregated, _ = run_trial(
        tmp_path / "aggregated",
        _trial(
            {"batches": 12},
            size=2,
            hparams={"global_batch_size": 4},
            min_validation_period={"batches": 2},
            optimizations={"aggregation_frequency": 2},
        ),
    )
    expected = whole.runner.metric("validation", "error")
    errors = aggregated.runner.metric("validation", "error")
    # The learning rate falls every fifth batch, so the two part after the third step.
    assert [errors[2], errors[4], errors[6]] == pytest.approx([expected[1], expected[2], expected[3]], abs=1e-5)


@pytest.mark.parametrize(("size_before", "size_after"), [(1, 1), (2, 2), (2, 1)])
def test_resumed_trial_continues_the_same_losses(tmp_path: Path, size_before: int, size_after: int) -> None:
    whole, _ = run_trial(tmp_path / "whole", _trial({"batches": 20}, size_before, hparams={"optimizer": "adamw"}))
    first, _ = run_trial(tmp_path / "first", _trial({"batches": 9}, size_before, hparams={"optimizer": "adamw"}))
    latest = first.latest_checkpoint()
    assert latest.batches_completed == 9
    second, codes = run_trial(
        tmp_path / "second", _trial({"batches": 20}, size_after, latest, hparams={"optimizer": "adamw"})
    )
    assert codes == [0] * size_after
    losses = whole.runner.metric("training", "loss")
    resumed = second.runner.metric("training", "loss")
    assert list(resumed) == list(range(10, 21))
    assert resumed == pytest.approx({batch: losses[batch] for batch in resumed}, abs=1e-6)
    if size_before == size_after:
        assert _records(second, 0) == _records(whole, 0)[9:]


def test_resumed_trial_draws_the_same_random_numbers(tmp_path: Path) -> None:
    whole, _ = run_trial(tmp_path / "whole", _trial({"batches": 12}, 2, hparams={"noise": 0.1}))
    first, _ = run_trial(tmp_path / "first", _trial({"batches": 5}, 2, hparams={"noise": 0.1}))
    second, _ = run_trial(
        tmp_path / "second", _trial({"batches": 12}, 2, first.latest_checkpoint(), hparams={"noise": 0.1})
    )
    losses = whole.runner.metric("training", "loss")
    resumed = second.runner.metric("training", "loss")
    assert resumed == pytest.approx({batch: losses[batch] for batch in range(6, 13)}, abs=1e-6)


def test_checkpoint_loads_in_a_bare_python(tmp_path: Path) -> None:
    """With nothing but PyTorch, although two ranks wrote it, each its share."""
    running, _ = run_trial(tmp_path / "trial", _trial({"batches": 3}, size=2))
    checkpoint = running.checkpoints()[-1]
    shares = {f"tensors/__{rank}_0.distcp" for rank in (0, 1)}
    assert dict(checkpoint.file_bytes).keys() == {
        *shares, "tensors/.metadata", "trainer.pth", "rank_0.pth", "rank_1.pth"
    }  # fmt: skip
    program = (
        "import sys, torch\n"
        "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save\n"
        "assert not any(name.startswith('gangline') for name in sys.modules)\n"
        f"dcp_to_torch_save('{checkpoint.url}/tensors', '{tmp_path}/model.pth')\n"
        f"state = torch.load('{tmp_path}/model.pth', weights_only=True)\n"
        "net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GroupNorm(2, 8), torch.nn.Tanh(), "
        "torch.nn.Linear(8, 1))\n"
        "net.load_state_dict(state['models_state_dict'][0])\n"
        "print(sorted(state))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    assert "optimizers_state_dict" in done.stdout


@pytest.mark.parametrize("frequency", [1, 50])
def test_preempted_trial_saves_and_says_so(tmp_path: Path, frequency: int) -> None:
    trial = _trial({"batches": 1_000_000}, size=2, optimizations={"aggregation_frequency": frequency})
    with start_trial(tmp_path, trial) as running:
        running.runner.wait_for(lambda: bool(running.runner.of(1, "first_step")), "the first step of rank 1")
        running.runner.preempt("somebody more urgent")
        assert running.wait() == [0, 0]
        finished = [running.runner.of(rank, "finished")[0] for rank in (0, 1)]
    assert all(running.runner.of(rank, "stopping") for rank in (0, 1))
    batches = running.checkpoints()[-1].batches_completed
    assert 0 < batches == finished[0].batches_completed
    assert batches % frequency == 0
    assert not running.runner.metric("validation", "error")


def test_finished_trial_says_how_far_it_came(tmp_path: Path) -> None:
    running, codes = run_trial(tmp_path, _trial({"records": 40}, size=2))
    assert codes == [0, 0]
    finished = running.runner.of(1, "finished")[0]
    assert finished.batches_completed == 5
    assert not running.runner.of(1, "stopping")
    progress = running.runner.of(0, "progress")[-1]
    assert (progress.batches_completed, progress.batches_total) == (5, 5)
    assert progress.samples_per_second == pytest.approx(8 / progress.seconds_per_batch, rel=1e-6)
    assert len(running.runner.of(0, "first_step")) == 1


def test_rank_ends_when_its_runner_is_gone(tmp_path: Path) -> None:
    with start_trial(tmp_path, _trial({"batches": 1_000_000})) as running:
        running.runner.wait_for(lambda: bool(running.runner.of(0, "first_step")), "the first step")
        running.runner.close()
        assert running.wait() == [70]
    assert "the trial runner of this rank is gone" in running.output(0)
