"""Counting live tensors, the moments of a step that need most, and what an optimizer's step needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gangline.pytorch.parallel import recompute
from gangline.pytorch.plan.device_rules import DeviceRules
from gangline.pytorch.plan.live_bytes import ByteLedger, LiveBytes
from gangline.pytorch.plan.optimizer_probe import probe
from gangline.pytorch.plan.recurrent import LstmOfCpu
from gangline.pytorch.plan.step_peak import OperationCounter, StepPeak, outermost


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_storages_count_once_while_they_live(device: str) -> None:
    ledger = ByteLedger(device)
    with LiveBytes(ledger):
        first = torch.zeros(100, device=device)
        second = first.view(10, 10) + 1
        assert ledger.live == 800
        del first
        assert (ledger.live, ledger.peak) == (400, 800)
        ledger.restart()
        second.untyped_storage().resize_(0)
        assert (ledger.live, ledger.peak) == (0, 400)


def test_moments_have_gradients_apart() -> None:
    """Two layers of 10 x 10 without bias, 5 records: the second layer's gradient comes first."""
    model = nn.Sequential(*(nn.Linear(10, 10, bias=False, device="meta") for _ in range(2)))
    batch = torch.zeros(5, 10, device="meta")
    peak = StepPeak([model], batch, torch.device("meta"))
    with peak.counting():
        peak.backward(model(batch).sum())
    moments = peak.moments(5)
    assert [moment.gradient_ratio for moment in moments][-1] == 1.0
    # At least the batch, the output of the first layer, and a gradient of 400 bytes.
    assert moments[0].working_bytes * 5 >= 2 * 200 + 400
    assert all(parameter.grad is None for parameter in model.parameters())
    assert peak.peaks_of([set()]) == [0]


@pytest.mark.parametrize(
    ("compute", "count"),
    [
        (lambda x: x.relu(), 800),
        (lambda x: x.add_(x[0]), 840),
        (lambda x: x.view(100), 0),
        (torch.empty_like, 0),
        (lambda x: x @ x, 0),
        # Reads the rows that it writes.
        (lambda x: x.index_select(0, torch.zeros(5, dtype=torch.long, device="meta")), 40 + 2 * 200),
    ],
)
def test_bytes_that_other_operations_than_products_stream(
    compute: Callable[[torch.Tensor], torch.Tensor], count: int
) -> None:
    numbers = torch.zeros(10, 10, device="meta")
    with OperationCounter() as counter:
        compute(numbers)
    assert counter.streamed_bytes == count


def test_outermost_points() -> None:
    points = [(10.0, 0.0), (9.8, 0.1), (5.0, 0.2), (4.0, 1.0), (3.0, 1.0), (6.5, 0.55)]
    assert outermost(points) == [(10.0, 0.0), (9.8, 0.1), (4.0, 1.0)]
    for weight in (0.0, 1.0, 5.0, 50.0):
        assert max(x + weight * y for x, y in outermost(points)) == max(x + weight * y for x, y in points)


def test_fused_attention_keeps_no_square_matrix() -> None:
    ledger = ByteLedger("meta")
    query = torch.zeros(1, 1, 512, 8, device="meta", requires_grad=True)
    with DeviceRules(is_gpu=False), LiveBytes(ledger):
        functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert ledger.peak < 512 * 512 * 4


@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 3, "dropout": 0.1}, {"bidirectional": True, "batch_first": True}],
    ids=["one layer", "three layers", "both directions"],
)
def test_an_lstm_keeps_as_much_as_on_a_cpu(options: dict[str, Any]) -> None:
    kept, peaks = {}, {}
    for device in ("cpu", "meta"):
        ledger = ByteLedger(device)
        lstm = nn.LSTM(64, 96, device=device, **options)
        ledger.ignore(lstm.parameters())
        inputs = torch.zeros(20, 16, 64, device=device, requires_grad=True)
        with LstmOfCpu(), LiveBytes(ledger):
            output, _ = lstm(inputs)
            kept[device] = ledger.live
            output.sum().backward()
        peaks[device] = ledger.peak
    assert kept["meta"] == pytest.approx(kept["cpu"], rel=0.08)
    # oneDNN frees the workspaces of later layers before the gradients of earlier ones.
    assert peaks["cpu"] * 0.98 < peaks["meta"] < peaks["cpu"] * 1.15


def test_an_lstm_has_its_operations() -> None:
    with torch.device("meta"):
        lstm, inputs = nn.LSTM(8, 8, bias=False), torch.zeros(3, 2, 8)
    # Two products of matrices for each step and record, into four gates, two operations for each product of numbers.
    forward = 3 * 2 * 2 * (8 * 4 * 8) * 2
    with OperationCounter() as counter, LiveBytes(ByteLedger("meta")), LstmOfCpu():
        outputs, _ = lstm(inputs)
        assert counter.total == forward
        outputs.sum().backward()
    assert counter.total == 3 * forward


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 4}, {"num_layers": 3, "bidirectional": True}, {"bias": False, "batch_first": True}],
    ids=["one layer", "four layers", "both directions", "no bias"],
)
def test_an_lstm_has_the_operations_of_a_cpu(options: dict[str, Any], dtype: torch.dtype) -> None:
    """oneDNN runs the one type as a whole; operations of the other one are those of each step."""
    kernels, totals = {}, {}
    for device in ("cpu", "meta"):
        lstm, inputs = nn.LSTM(8, 8, device=device, dtype=dtype, **options), torch.zeros(5, 2, 8, device=device)
        with LiveBytes(ByteLedger(device)) as counting, OperationCounter() as counter, LstmOfCpu():
            outputs, _ = lstm(inputs.to(dtype))
            kernels[device], forward = counting.num_kernels, counter.total
            outputs.sum().backward()
        assert outputs.shape == (5, 2, 16 if "bidirectional" in options else 8)
        totals[device] = (forward, counter.total)
    assert totals["meta"] == totals["cpu"]
    # Layers of oneDNN reorder their weights before.
    assert kernels["cpu"] / 5 < kernels["meta"] < kernels["cpu"] * 1.2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_operations_without_gradients_count(mode: Any) -> None:
    linear, inputs = nn.Linear(8, 8, device="meta"), torch.zeros(4, 8, device="meta")
    with OperationCounter() as counter, mode():
        linear(inputs)
    assert counter.total == 2 * 4 * 8 * 8


@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode])
@pytest.mark.parametrize(
    ("layer", "part"),
    [
        (nn.Conv2d(4, 4, 3, padding=1), 1),
        (nn.ConvTranspose2d(4, 4, 3, padding=1), 1),
        (nn.Conv1d(4, 4, 3, padding=1, groups=2), 1),
        (nn.Conv2d(4, 4, 1), 0),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), 0),
        (nn.Linear(8, 8), 0),
    ],
    ids=["conv", "transposed", "two groups", "one point", "depthwise", "linear"],
)
def test_operations_of_convolutions_are_counted_apart(layer: nn.Module, part: int, mode: Any) -> None:
    inputs = torch.zeros(4, 8) if isinstance(layer, nn.Conv1d) else torch.zeros(2, 4, 8, 8)
    with OperationCounter() as counter, mode():
        outputs = layer(inputs)
        if outputs.requires_grad:
            outputs.sum().backward()
    assert counter.total > 0
    assert counter.convolved == part * counter.total


def test_fused_attention_has_its_operations() -> None:
    query = torch.zeros(2, 3, 16, 8, device="meta", requires_grad=True)
    product = 2 * 3 * 2 * 16 * 16 * 8
    with OperationCounter() as counter, DeviceRules(is_gpu=False):
        outputs = functional.scaled_dot_product_attention(query, query, query)
        assert counter.total == 2 * product
        torch.autograd.backward(outputs.sum())
    # The scores are computed again, and each of the two products has two gradients.
    assert counter.total == (2 + 5) * product


@pytest.mark.parametrize("kind", ["attention", "lstm"])
def test_recomputed_parts_run_as_they_ran_at_first(kind: str) -> None:
    """Recomputation compares the tensors that both runs keep."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            query = self.linear(inputs)
            return functional.scaled_dot_product_attention(query, query, query, is_causal=True)

    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 8, batch_first=True)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.lstm(inputs[0])[0]
            return outputs.unsqueeze(0)

    with torch.device("meta"):
        part = Attention if kind == "attention" else Lstm
        model, inputs = nn.Sequential(part(), part()), torch.zeros(1, 4, 16, 8)
    recompute(model, "full", None)
    peak = StepPeak([model], inputs, torch.device("meta"))
    with peak.counting(), OperationCounter(), DeviceRules(is_gpu=False), LstmOfCpu():
        peak.backward(model(inputs).sum())
    assert peak.moments(4)


def test_recomputed_tensors_are_freed_after_their_part() -> None:
    """Blocks of equal size: the most that is there at once is what one block keeps, and the inputs of all."""
    blocks = 16

    def most(kind: str) -> float:
        with torch.device("meta"):
            parts = [nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)) for _ in range(blocks)]
            model, inputs = nn.Sequential(*parts), torch.zeros(32, 8)
        recompute(model, kind, None)
        peak = StepPeak([model], inputs, torch.device("meta"))
        with peak.counting(), OperationCounter():
            peak.backward(model(inputs).sum())
        return max(moment.working_bytes for moment in peak.moments(32))

    # A block keeps both inputs and the output of its ReLU.
    assert most("none") > blocks * 4 * (8 + 64)
    assert most("full") < (blocks + 2) * 4 * 8 + 4 * 4 * 64


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_an_optimizer_is_probed_in_the_type_of_its_parameters(dtype: torch.dtype, size: int) -> None:
    parameters = [nn.Parameter(torch.zeros(count, dtype=dtype)) for count in (100, 300)]
    adamw = probe([torch.optim.AdamW(parameters)], is_gpu=False)
    assert adamw.state_bytes == 2 * size * 400
    assert adamw.temporary_bytes == 0
    # The denominator of one parameter is still there while the next one's is computed.
    assert size * 300 <= adamw.largest_temporary_bytes <= 3 * size * 300
    at_once = probe([torch.optim.AdamW(parameters)], is_gpu=True)
    assert size * 400 <= at_once.temporary_bytes <= 2 * size * 400
    # It reads the parameter, its gradient and both averages, and writes all but the gradient, some of them twice.
    assert 7 * size * 400 < adamw.moved_bytes < 30 * size * 400
    assert at_once.kernels < adamw.kernels
    twice = probe([torch.optim.AdamW([*parameters, nn.Parameter(torch.zeros(400, dtype=dtype))])], is_gpu=False)
    assert (twice.moved_bytes, twice.kernels) == (2 * adamw.moved_bytes, 1.5 * adamw.kernels)
    assert probe([torch.optim.AdamW(parameters[:1])], is_gpu=True).kernels == at_once.kernels
    fused = probe([torch.optim.AdamW(parameters, fused=True)], is_gpu=False)
    # It may scale the gradient as well.
    assert fused.moved_bytes == 8 * size * 400
    plain = probe([torch.optim.SGD(parameters, lr=0.1)], is_gpu=False)
    # It reads the parameter and its gradient, and writes the parameter.
    assert plain.moved_bytes == 3 * size * 400
    assert plain.state_bytes == 0
    # Those that cannot be tried step as AdamW does.
    for other in (torch.optim.LBFGS(parameters), torch.optim.AdamW(parameters, capturable=True)):
        found = probe([other], is_gpu=False)
        assert (found.moved_bytes, found.kernels) == (adamw.moved_bytes, adamw.kernels)
