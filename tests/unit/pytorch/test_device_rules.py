"""The rules of CPUs and GPUs on the meta device: the same types, and the same tensors kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gangline.pytorch.plan.device_rules import DeviceRules, regions_for_meta
from gangline.pytorch.plan.live_bytes import ByteLedger, LiveBytes
from gangline.pytorch.plan.recurrent import LstmOfCpu

_WIDTH = 16


def _classify(device: str) -> torch.Tensor:
    layers = nn.Sequential(nn.Linear(_WIDTH, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 5)).to(device)
    return functional.cross_entropy(
        layers(torch.zeros(4, _WIDTH, device=device)), torch.zeros(4, dtype=torch.long, device=device)
    )


def _attend(device: str) -> torch.Tensor:
    layer = nn.TransformerEncoderLayer(_WIDTH, 2, 32, dropout=0.0, batch_first=True).to(device)
    out: torch.Tensor = layer(torch.zeros(3, 6, _WIDTH, device=device))
    return out.mean()


def _attend_by_hand(device: str) -> torch.Tensor:
    query, key = nn.Linear(_WIDTH, 8).to(device), nn.Linear(_WIDTH, 8).to(device)
    text = torch.zeros(3, 6, _WIDTH, device=device)
    scores = torch.einsum("bik,bjk->bij", query(text), key(text))
    return (scores.softmax(-1) @ text).pow(2).sum().float()


def _convolve(device: str) -> torch.Tensor:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 1)).to(device)
    out: torch.Tensor = layers(torch.zeros(2, 3, 8, 8, device=device))
    return out.float().mean()


def _join(device: str) -> torch.Tensor:
    layer = nn.Linear(_WIDTH, _WIDTH).to(device)
    text = torch.ones(4, _WIDTH, device=device)
    joined = torch.cat([layer(text), text])
    return functional.mse_loss(joined * layer(joined), torch.zeros_like(joined))


def _recur(device: str) -> torch.Tensor:
    layer = nn.LSTM(_WIDTH, 8, batch_first=True).to(device)
    out: torch.Tensor = layer(torch.zeros(3, 4, _WIDTH, device=device))[0]
    return out.float().mean()


def _kept(
    make: Callable[[str], torch.Tensor], device: str, context: AbstractContextManager[Any]
) -> list[tuple[str, int]]:
    """Returns the type and the elements of each tensor that the backward pass needs."""
    found = list[tuple[str, int]]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        # The kernel of group norms on CPUs keeps a mean in fp32 for each group.
        if tensor.numel() > 4:
            found.append((str(tensor.dtype), tensor.numel()))
        return tensor

    with context, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = make(device)
        assert loss.dtype == torch.float32
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return sorted(found)


@pytest.mark.parametrize("make", [_classify, _attend, _attend_by_hand, _convolve, _join])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_same_tensors_are_kept_as_on_a_cpu(make: Callable[[str], torch.Tensor], dtype: torch.dtype) -> None:
    real = _kept(make, "cpu", torch.autocast("cpu", dtype))
    with DeviceRules(is_gpu=False):
        planned = _kept(make, "meta", torch.autocast("cpu", dtype))
    assert planned == real
    assert any(name == str(dtype) for name, _ in planned)


def test_an_lstm_keeps_half_precision() -> None:
    rules = DeviceRules(is_gpu=False)
    with rules, LstmOfCpu(rules.to_half), torch.autocast("cpu", torch.bfloat16):
        layer = nn.LSTM(_WIDTH, 8, batch_first=True, device="meta")
        assert layer(torch.zeros(3, 4, _WIDTH, device="meta"))[0].dtype == torch.bfloat16
    layer, text = nn.LSTM(_WIDTH, 8, batch_first=True), torch.zeros(3, 4, _WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(text)[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("compute", "of_cpu", "of_gpu"),
    [
        (lambda x: x @ x, "bfloat16", "bfloat16"),
        (lambda x: x.softmax(-1), "bfloat16", "float32"),
        (lambda x: functional.layer_norm(x, (4,)), "bfloat16", "float32"),
        (lambda x: x.sum(), "bfloat16", "float32"),
        (lambda x: x.sum(0, dtype=torch.bfloat16), "bfloat16", "bfloat16"),
        (lambda x: x.exp(), "bfloat16", "float32"),
        (lambda x: x**2, "bfloat16", "float32"),
        (lambda x: functional.mse_loss(x, x), "float32", "float32"),
        (lambda x: torch.cat([x, x.float()]), "float32", "float32"),
        (lambda x: torch.addcmul(x, x, x.float()), "float32", "float32"),
        (functional.gelu, "bfloat16", "bfloat16"),
        (lambda x: x.double() @ x.double(), "float64", "float64"),
        (lambda x: x.double().sum(), "float64", "float64"),
    ],
)
def test_rules_of_devices(compute: Callable[[torch.Tensor], torch.Tensor], of_cpu: str, of_gpu: str) -> None:
    """Those of GPUs after torch's page "Autocast Op Reference"; those of CPUs as torch has them."""
    for is_gpu, expected in ((False, of_cpu), (True, of_gpu)):
        with DeviceRules(is_gpu), torch.autocast("cpu", torch.bfloat16):
            assert str(compute(torch.zeros(4, 4, dtype=torch.bfloat16, device="meta")).dtype) == f"torch.{expected}"
    with torch.autocast("cpu", torch.bfloat16):
        assert str(compute(torch.zeros(4, 4, dtype=torch.bfloat16)).dtype) == f"torch.{of_cpu}"


def test_only_regions_of_autocast_cast() -> None:
    layer, text = nn.Linear(4, 4, device="meta"), torch.zeros(2, 4, device="meta")
    with DeviceRules(is_gpu=True):
        assert layer(text).dtype == torch.float32
        with torch.autocast("cpu", torch.float16):
            assert layer(text).dtype == torch.float16
            with torch.autocast("cpu", enabled=False):
                assert layer(text).dtype == torch.float32
        assert layer(text).dtype == torch.float32
    with torch.autocast("cpu", torch.float16):
        assert layer(text).dtype == torch.float32
        # Real tensors are torch's own business.
        with DeviceRules(is_gpu=True):
            assert torch.zeros(2, 2, dtype=torch.float16).exp().dtype == torch.float16


def test_a_parameter_is_copied_once_for_a_forward_pass_and_again_when_it_is_recomputed() -> None:
    copies = list[int]()
    layer, text = nn.Linear(4, 6, device="meta"), torch.zeros(2, 4, device="meta", requires_grad=True)
    rules = DeviceRules(is_gpu=True, on_copy=lambda copy: copies.append(copy.nbytes))
    with rules:
        with torch.autocast("cpu", torch.bfloat16):
            loss = (layer(text) + checkpoint(layer, text, use_reentrant=False)).sum()
        assert sorted(copies) == [12, 48]
        rules.end_forward()
        loss.backward()
        assert sorted(copies) == [12, 12, 48, 48]
        with torch.autocast("cpu", torch.bfloat16):
            layer(text)
    assert len(copies) == 6
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


def test_a_region_for_the_meta_device() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        torch.autocast("meta", torch.bfloat16)
    with regions_for_meta():
        region = torch.autocast(device_type="meta", dtype=torch.bfloat16)
    with DeviceRules(is_gpu=True), region:
        assert nn.Linear(2, 2, device="meta")(torch.zeros(1, 2, device="meta")).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="meta"):
        torch.autocast("meta", torch.bfloat16)


@pytest.mark.parametrize("is_gpu", [False, True])
def test_attention_with_dropout_or_a_mask_is_fused_on_gpus_alone(is_gpu: bool) -> None:
    query = torch.zeros(1, 2, 64, 8, device="meta", requires_grad=True)
    mask = torch.zeros(64, 64, device="meta")
    square = 2 * 64 * 64
    for options, is_fused in (
        ({"dropout_p": 0.1}, is_gpu),
        ({"attn_mask": mask}, is_gpu),
        # The mask's gradient needs the square matrix.
        ({"attn_mask": mask.clone().requires_grad_()}, False),
    ):
        kept = list[int]()
        with DeviceRules(is_gpu), _keeping(kept) if options else nullcontext():
            functional.scaled_dot_product_attention(query, query, query, **options)
        assert (max(kept) < square) is is_fused, options


def test_queries_that_share_a_key_are_fused_on_gpus() -> None:
    query, key = (torch.zeros(1, heads, 64, 8, device="meta", requires_grad=True) for heads in (4, 2))
    most = []
    for is_gpu in (False, True):
        kept = list[int]()
        with DeviceRules(is_gpu), _keeping(kept):
            out = functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
        assert out.shape == query.shape
        most.append(max(kept))
    assert most[0] >= 4 * 64 * 64
    assert most[1] == query.numel()


def test_a_sum_in_full_precision_copies_no_input() -> None:
    ledger, text = ByteLedger("meta"), torch.zeros(1000, dtype=torch.bfloat16, device="meta")
    with DeviceRules(is_gpu=True), LiveBytes(ledger), torch.autocast("cpu", torch.bfloat16):
        assert text.sum().dtype == torch.float32
    assert ledger.peak < text.nbytes


def _keeping(sizes: list[int]) -> AbstractContextManager[Any]:
    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
