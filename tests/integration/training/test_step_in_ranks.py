"""One step of two ranks: what it costs, and what goes wrong in it in words about the trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline.domain.state import ExitKind
from gangline.protocol.wire import enum_number
from tests.support.event_file import read_scalars
from tests.support.rank import RunningTrial, Trial, run_trial
from tests.support.trial_source import LINEAR, linear_config

_TWO_BACKWARDS = LINEAR.replace(
    "        self.context.backward(loss)\n",
    "        other = self.model(inputs).mean()\n"
    "        self.context.backward(loss)\n"
    "        self.context.backward(other)\n",
)
_ONE_AFTER_THE_OTHER = LINEAR.replace(
    "        self.context.backward(loss)\n",
    "        self.context.backward(loss)\n        self.context.backward(self.model(inputs).mean())\n",
)
_NO_FORWARD = (
    "context.backward was called, but no wrapped model has made a forward pass with gradients in this batch, so its "
    "gradients would stay on this rank; call the wrapped model itself and not a part of it"
)
_SECOND_BACKWARD = (
    "context.backward was called again without another forward pass of a wrapped model since the last time, so its "
    "gradients would stay on this rank; add losses up for one context.backward, or call the wrapped model itself again "
    "before the next one"
)
_PART = LINEAR.replace(
    "loss = nn.functional.mse_loss(self.model(inputs)",
    "loss = nn.functional.mse_loss(self.model[1:](self.model[0](inputs))",
)
_UNUSED = LINEAR.replace("nn.Linear(8, 1))", "nn.Linear(8, 1))\n        net.unused = nn.Parameter(torch.zeros(1))")


def _run(
    directory: Path, code: str, size: int = 2, batches: int = 4, **more: Any
) -> tuple[RunningTrial, list[int | None]]:
    config = linear_config({"batches": batches}, **more)
    return run_trial(directory, Trial({"model_def.py": code}, config, {"global_batch_size": 8}, size))


@pytest.mark.parametrize(
    ("code", "options", "message"),
    [
        (
            _TWO_BACKWARDS,
            {"find_unused_parameters": True},
            _SECOND_BACKWARD,
        ),
        (
            _PART,
            {"static_graph": True},
            _NO_FORWARD,
        ),
        (
            _UNUSED,
            {},
            "unused of Sequential took no part in the loss, so their gradients never came; freeze them, add losses up "
            "where train_batch calls context.backward several times, or set parallelism: {strategy: ddp, "
            "find_unused_parameters: true}",
        ),
    ],
)
def test_misuse_of_ddp_is_told_in_words_about_the_trial(
    tmp_path: Path, code: str, options: dict[str, Any], message: str
) -> None:
    running, codes = _run(tmp_path, code, parallelism={"strategy": "ddp", **options})
    assert codes == [1, 1]
    failure = running.runner.of(0, "failure")[0]
    assert failure.message == message
    assert failure.kind == enum_number(ExitKind.CONFIGURATION_ERROR)
    assert "model_def.py" in running.output(0)


@pytest.mark.parametrize("code", [_ONE_AFTER_THE_OTHER, _TWO_BACKWARDS, _PART])
def test_forward_and_backward_passes_come_in_any_order_and_number(tmp_path: Path, code: str) -> None:
    alone, codes = _run(tmp_path / "one", code, size=1)
    assert codes == [0]
    two, codes = _run(tmp_path / "two", code)
    assert codes == [0, 0]
    assert two.runner.metric("training", "loss") == pytest.approx(alone.runner.metric("training", "loss"), abs=1e-5)


def test_dataset_shorter_than_the_world(tmp_path: Path) -> None:
    running, codes = _run(tmp_path, LINEAR.replace("Points(100)", "Points(5)"))
    assert codes == [1, 1]
    assert running.runner.of(0, "failure")[0].message == (
        "the training data has 5 records and makes no whole batch for 2 slots; use a smaller batch, fewer slots or "
        "more data, or leave out drop_last"
    )


def test_loss_of_one_rank_that_is_no_number_stops_all(tmp_path: Path) -> None:
    code = LINEAR.replace('return {"loss": loss}', 'return {"loss": loss * (float("nan") if self.is_bad() else 1)}')
    code += (
        "\n    def is_bad(self):\n"
        "        return self.context.distributed.rank == 1 and self.context.current_train_batch() == 2\n"
    )
    running, codes = _run(tmp_path, code)
    assert codes == [1, 1]
    for rank in (0, 1):
        assert running.runner.of(rank, "failure")[0].message.startswith(
            "loss is nan at batch 3; there is no checkpoint"
        )
    assert list(running.runner.metric("training", "loss")) == [1, 2]


def test_profile_of_two_ranks(tmp_path: Path) -> None:
    running, codes = _run(tmp_path, LINEAR, batches=6, profiling={"enabled": True}, scheduling_unit=3)
    assert codes == [0, 0]
    for name in ("data", "forward", "backward", "communication", "optimizer", "step"):
        seconds_by_batch = running.runner.metric("profiling", f"{name}_seconds")
        assert list(seconds_by_batch) == [3, 6]
        assert all(seconds > 0 for seconds in seconds_by_batch.values())
    communication = running.runner.metric("profiling", "communication_seconds")
    steps = running.runner.metric("profiling", "step_seconds")
    assert all(communication[batch] < steps[batch] for batch in steps)
    scalars = read_scalars(tmp_path / "storage" / "tensorboard" / "7.1")
    assert scalars["profiling/samples_per_second"][6] == pytest.approx(
        running.runner.metric("profiling", "samples_per_second")[6]
    )


def test_full_dataset_is_evaluated_on_the_chief_alone(tmp_path: Path) -> None:
    code = LINEAR[: LINEAR.index("    def evaluate_batch")] + (
        "    def evaluate_full_dataset(self, data_loader):\n"
        "        count = sum(len(batch[0]) for batch in data_loader)\n"
        "        print('evaluated', count, flush=True)\n"
        "        return {'error': count}\n"
    )
    running, codes = _run(tmp_path, code)
    assert codes == [0, 0]
    assert running.runner.metric("validation", "error") == {4: 37}
    assert ["evaluated 37" in running.output(rank) for rank in (0, 1)] == [True, False]
