"""The cost of a step: phases that add up, the range of batches, and the traces of torch's profiler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline import pytorch
from gangline.domain.settled.reading import settle_values
from gangline.errors import GanglineError
from gangline.pytorch.profile import other_session
from gangline.pytorch.profile.clock import StepClock
from gangline.pytorch.profile.profile import mean
from gangline.pytorch.profile.trace import Trace
from tests.support.event_file import read_scalars
from tests.support.small_trial import SmallTrial, fit


def test_phase_inside_another_counts_for_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gangline.pytorch.profile.clock.time.perf_counter", lambda: now[0])

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    clock = StepClock()
    with clock.phase("forward"):
        pass_time(100.0)
    clock.is_running = True
    with clock.phase("forward"):
        pass_time(1.0)
        with clock.phase("backward"):
            pass_time(2.0)
        with clock.phase("optimizer"):
            pass_time(4.0)
        pass_time(8.0)
    clock.end_step()
    assert clock.take() == (1, {"forward": 9.0, "backward": 2.0, "optimizer": 4.0})
    assert clock.take() == (0, {})


def test_means_over_ranks() -> None:
    means = mean([{"samples_per_second": 10.0, "gpu_percent": 50.0}, {"samples_per_second": 20.0}])
    assert means == {"gpu_percent": 50.0, "samples_per_second": 30.0}


@pytest.mark.parametrize(
    ("section", "covered"),
    [
        (None, []),
        ({"enabled": False, "begin_on_batch": 1}, []),
        ({"enabled": True}, [0, 1, 2, 3, 4]),
        ({"enabled": True, "begin_on_batch": 2}, [2, 3, 4]),
        ({"enabled": True, "begin_on_batch": 1, "end_after_batch": 2}, [1, 2]),
    ],
)
def test_batches_that_are_measured(section: dict[str, Any] | None, covered: list[int]) -> None:
    profiling = settle_values({"profiling": section}).profiling
    assert [batch for batch in range(5) if profiling.covers(batch)] == covered


def test_profile_is_reported_with_the_training_metrics() -> None:
    fit(SmallTrial, max_length=pytorch.Batch(6), reporting_period=pytorch.Batch(3), profiling_enabled=True)
    scalars = read_scalars(Path("tensorboard"))
    for name in ("data", "forward", "backward", "optimizer", "step"):
        assert list(scalars[f"profiling/{name}_seconds"]) == [3, 6]
    parts = sum(scalars[f"profiling/{name}_seconds"][6] for name in ("data", "forward", "backward", "optimizer"))
    assert scalars["profiling/step_seconds"][6] == pytest.approx(parts, rel=1e-5)
    assert scalars["profiling/samples_per_second"][6] == pytest.approx(3 / parts, rel=1e-5)
    assert list(scalars["training/loss"]) == [3, 6]
    assert list(scalars["validation/error"]) == [6]


def test_without_profiling_there_is_none() -> None:
    fit(SmallTrial, max_length=pytorch.Batch(4))
    assert not any(tag.startswith("profiling") for tag in read_scalars(Path("tensorboard")))


def test_writer_of_a_trial_outlives_training() -> None:
    class Writing(SmallTrial):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            writer = self.context.get_tensorboard_writer()

            class Late(pytorch.PyTorchCallback):
                def on_trial_shutdown(self) -> None:
                    writer.add_scalar("late", 1.0, 7)

            return {"late": Late()}

    fit(Writing, max_length=pytorch.Batch(1))
    assert read_scalars(Path("tensorboard"))["late"] == {7: 1.0}


def test_tensorboard_may_be_left_out() -> None:
    fit(SmallTrial, max_length=pytorch.Batch(2), init={"enable_tensorboard_logging": False})
    assert not Path("tensorboard").exists()


def test_named_range_of_batches_is_traced_and_measured() -> None:
    profiling = {"enabled": True, "begin_on_batch": 2, "end_after_batch": 3}
    fit(
        SmallTrial,
        max_length=pytorch.Batch(8),
        reporting_period=pytorch.Batch(2),
        init={"exp_conf": {"profiling": profiling}},
    )
    (trace,) = Path("tensorboard").glob("*.pt.trace.json")
    assert "aten::" in trace.read_text()
    assert list(read_scalars(Path("tensorboard"))["profiling/step_seconds"]) == [4]


def test_trial_may_configure_the_profiler_itself() -> None:
    class Profiled(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.set_profiler(
                activities=[torch.profiler.ProfilerActivity.CPU],
                schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1),
            )

    fit(Profiled, max_length=pytorch.Batch(4))
    assert len(list(Path("tensorboard").glob("*.pt.trace.json"))) == 1


def test_a_trace_without_an_end_of_its_own_is_written_when_training_ends(tmp_path: Path) -> None:
    @dataclass
    class Folder:
        path: Path
        url: str = "file:///storage"

    trace = Trace()
    trace.configure(activities=[torch.profiler.ProfilerActivity.CPU])
    trace.start(Folder(tmp_path))
    torch.ones(2).sum()
    trace.step()
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        trace.stop()
        assert len(list(tmp_path.glob("*.pt.trace.json"))) == 1
    assert not trace.is_on
    assert not other_session.is_open()


def test_profiler_comes_before_training() -> None:
    class Late(SmallTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.trace.configure("positional")

    with pytest.raises(GanglineError, match="set_profiler takes its arguments by name"):
        fit(Late, max_length=pytorch.Batch(1))
