"""Counting live tensors, the moments of a step that need most, and what an optimizer's step needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gangline.pytorch.plan.live_bytes import Ledger, LiveBytes
from gangline.pytorch.plan.optimizer_probe import probe
from gangline.pytorch.plan.recurrent import LstmOfCpu
from gangline.pytorch.plan.step_peak import FusedAttention, StepPeak, operation_counter, outermost


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_storages_count_once_while_they_live(device: str) -> None:
    ledger = Ledger(device)
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


def test_outermost_points() -> None:
    points = [(10.0, 0.0), (9.8, 0.1), (5.0, 0.2), (4.0, 1.0), (3.0, 1.0), (6.5, 0.55)]
    assert outermost(points) == [(10.0, 0.0), (9.8, 0.1), (4.0, 1.0)]
    for weight in (0.0, 1.0, 5.0, 50.0):
        assert max(x + weight * y for x, y in outermost(points)) == max(x + weight * y for x, y in points)


def test_fused_attention_keeps_no_square_matrix() -> None:
    ledger = Ledger("meta")
    query = torch.zeros(1, 1, 512, 8, device="meta", requires_grad=True)
    with FusedAttention(), LiveBytes(ledger):
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
        ledger = Ledger(device)
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
    with operation_counter() as counter, LstmOfCpu():
        lstm(inputs)
    # Two products of matrices for each step and record, into four gates, two operations for each product of numbers.
    assert counter.get_total_flops() == 3 * 2 * 2 * (8 * 4 * 8) * 2


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
    plain = probe([torch.optim.SGD(parameters, lr=0.1)], is_gpu=False)
    assert plain.state_bytes == 0
