"""A pipeline's schedule on a GPU: its thread computes in the stream of the trial, and CUDA graphs are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gangline.errors import GanglineError
from gangline.pytorch.parallel.staged.fitness import check_model
from gangline.pytorch.parallel.staged.schedule import ScheduleThread
from tests.support.parts_alone import cut, train_parts, train_whole
from tests.support.pipeline_models import Chain

_CYCLES = 200_000_000
# torch leaves much of it untyped.
_cuda: Any = torch.cuda


@pytest.fixture(scope="module")
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    return torch.device("cuda", 0)


def test_the_thread_computes_in_the_stream_of_the_trial(device: torch.device) -> None:
    thread, streams = ScheduleThread(device), []
    output = torch.zeros(8, device=device)

    def run() -> None:
        streams.append(torch.cuda.current_stream(device))
        _cuda._sleep(_CYCLES)
        output.add_(1)
        # The loss is computed from this output, in another stream that is slow.
        output.mul_(thread.loss_of(0))

    own, other = _cuda.Stream(), _cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(own):
        thread.start(run)
    with torch.cuda.stream(other):
        thread.wait_for(0)
        loss = output.sum()
        _cuda._sleep(_CYCLES)
        loss = loss + 1
        thread.give(loss)
    with torch.cuda.stream(own):
        thread.finish()
        total = output.sum()
    torch.cuda.synchronize()
    assert streams == [own]
    # Each of the numbers is 1, and then 1 times (8 + 1).
    assert float(total) == 72


def test_cuda_graphs_are_refused_and_other_modes_are_not(device: torch.device) -> None:
    for mode in ("reduce-overhead", "max-autotune"):
        model: Any = torch.compile(Chain().to(device), mode=mode)
        with pytest.raises(GanglineError, match="as CUDA graphs, which write the values of a microbatch over those"):
            check_model(model, None, "1F1B", device)
    for other in (None, "default", "max-autotune-no-cudagraphs"):
        check_model(torch.compile(Chain().to(device), mode=other), None, "1F1B", device)  # type: ignore[arg-type]  # torch types it as a function


class _Drawing(nn.Linear):
    """Draws from a generator of its own on the GPU, and keeps a memory there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(8, 8, device=device)
        self.generator = torch.Generator(device).manual_seed(1)
        self.memory = torch.zeros(8, device=device)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().forward(input) * torch.rand(8, device=input.device, generator=self.generator)
        y = torch.nn.functional.dropout(y + self.memory)
        self.memory.copy_(y.detach().mean(0))
        return y


def test_a_state_on_the_gpu_is_as_before_the_run_that_finds_out_shapes(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.pytorch.parallel.staged.unit_division.dist.get_rank", lambda: 0)

    def train(*, is_cut: bool) -> list[Any]:
        torch.manual_seed(1)
        model = nn.Sequential(*(_Drawing(device) for _ in range(4)))
        batches = [torch.ones(rows, 8, device=device) for rows in (3, 5, 3)]
        if is_cut:
            parts = cut(model, {2}, device)
            return [train_parts(parts, model, batch) for batch in batches]
        return [train_whole(model, batch) for batch in batches]

    torch.testing.assert_close(train(is_cut=True), train(is_cut=False))
