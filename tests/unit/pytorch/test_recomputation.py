"""Activation checkpointing in one process: fewer bytes are kept, and nothing else changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from gangline import pytorch
from gangline.errors import GanglineError
from gangline.pytorch.parallel import recompute

_WIDTH, _RECORDS = 16, 8
# A global variable, because what a hook keeps in its own variables is put back after a second run.
_counted: list[int] = []


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(_WIDTH)
        self.up = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.drop = nn.Dropout(0.5)
        self.down = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        out: torch.Tensor = x + scale * self.down(self.drop(torch.relu(self.up(self.norm(x)))))
        return out


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(_WIDTH, _WIDTH))
        self.blocks = nn.ModuleList(_Block() for _ in range(3))
        self.head = nn.Linear(_WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        out: torch.Tensor = self.head(x)
        return out


def _make(kind: str) -> _Net:
    torch.manual_seed(3)
    net = _Net()
    recompute(net, kind)
    return net


def _step(net: nn.Module, autocast: bool = False) -> tuple[torch.Tensor, int]:
    """Returns the loss, and the bytes that the forward pass keeps beside the parameters."""
    known = {tensor.data_ptr() for tensor in (*net.parameters(), *net.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in known:
            kept[tensor.data_ptr()] = tensor
        return tensor

    torch.manual_seed(5)
    x = torch.randn(_RECORDS, _WIDTH)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = net(x).float().square().mean()
    num_bytes = sum(tensor.nbytes for tensor in kept.values())
    loss.backward()
    return loss.detach(), num_bytes


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", ["blocks", "full"])
def test_a_step_gives_the_same_numbers_bit_for_bit(kind: str, autocast: bool) -> None:
    plain, recomputing = _make("none"), _make(kind)
    for _ in range(2):
        (expected, most), (loss, kept) = _step(plain, autocast), _step(recomputing, autocast)
        assert torch.equal(loss, expected)
        assert kept < most / 2
    for (name, parameter), (_, other) in zip(plain.named_parameters(), recomputing.named_parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        assert torch.equal(parameter.grad, other.grad), name
    # Running statistics and their counts have seen each batch once.
    states = plain.state_dict(), recomputing.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert states[1]["blocks.0.norm.num_batches_tracked"] == 2


@pytest.mark.parametrize("kind", ["blocks", "full"])
def test_a_penalty_on_gradients_runs_the_blocks_once_more(kind: str) -> None:
    """Two backward passes go through the same blocks. Running statistics see the batch once."""
    plain, net = _make("none"), _make(kind)
    for each in (plain, net):
        torch.manual_seed(1)
        inputs = torch.randn(_RECORDS, _WIDTH, requires_grad=True)
        output = each(inputs).sum()
        [slope] = torch.autograd.grad(output, inputs, create_graph=True)
        (output + slope.pow(2).sum()).backward()
    for (name, first), second in zip(plain.named_parameters(), net.parameters(), strict=True):
        assert first.grad is not None
        assert second.grad is not None
        assert torch.equal(first.grad, second.grad), name
    for before, after in zip(plain.buffers(), net.buffers(), strict=True):
        assert torch.equal(before, after)


def test_blocks_keep_their_inputs_alone() -> None:
    # Inputs of the three blocks; the last block's output for the head, whose output the loss keeps; the stem's input.
    one = _RECORDS * _WIDTH * 4
    _, kept = _step(_make("blocks"))
    assert kept == 5 * one + _RECORDS * 2 * 4


def test_without_gradients_nothing_is_recomputed() -> None:
    net, calls = _make("full"), []
    net.blocks[0].up.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]  # torch types modules loosely
    with torch.no_grad():
        net.eval()(torch.randn(2, _WIDTH))
    assert len(calls) == 1


def test_a_copy_recomputes_its_own_parameters() -> None:
    net = _make("blocks")
    other = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    loss, _ = _step(other)
    assert torch.equal(loss, _step(_make("none"))[0])
    assert next(net.parameters()).grad is None


def test_compiled_blocks_are_recomputed() -> None:
    torch.manual_seed(3)
    plain = _Net()
    torch.manual_seed(3)
    net = _Net()
    for each in (plain, net):
        for block in each.blocks:
            block.drop.p = 0.0  # type: ignore[union-attr]  # torch types modules loosely
    for place, block in enumerate(net.blocks):
        net.blocks[place] = torch.compile(block, backend="eager")  # type: ignore[assignment]  # torch types it as a function
    recompute(net, "blocks")
    assert torch.allclose(_step(net)[0], _step(plain)[0])


@pytest.mark.parametrize(("written", "calls"), [("blocks", 2), (None, 1)])
def test_the_configuration_names_it(written: str | None, calls: int) -> None:
    section = {"strategy": "ddp", "activation_checkpointing": written}
    net = _Net()
    _counted.clear()
    net.blocks[0].up.register_forward_hook(lambda *_: _counted.append(1))  # type: ignore[union-attr]  # torch types modules loosely
    with pytorch.init(exp_conf={"parallelism": section}) as context:
        model = context.wrap_model(net)
        context.backward(model(torch.randn(4, _WIDTH)).sum())
    assert len(_counted) == calls


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("none", ""),
        ("blocks", "3 modules of class _Block"),
        ("full", "3 modules of class _Block, 1 of Sequential, 1 of Linear"),
    ],
)
def test_the_log_says_once_how_many_modules_run_again(kind: str, parts: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gangline")
    with pytorch.init(exp_conf={"parallelism": {"activation_checkpointing": kind}}) as context:
        context.wrap_model(_Net())
    lines = [line for line in caplog.messages if line.startswith("activation checkpointing: ")]
    assert lines == ([f"activation checkpointing: {parts} run again in the backward pass"] if parts else [])
    caplog.clear()
    recompute(_Net(), kind, is_logged=False)
    assert not caplog.messages


@pytest.mark.parametrize("kind", ["blocks", "full"])
def test_a_model_without_blocks_is_refused_with_the_way_out(kind: str) -> None:
    with pytest.raises(GanglineError) as caught:
        recompute(nn.Linear(2, 2), kind)
    assert caught.value.code == "parallelism.activation_checkpointing"
    assert "Linear has no repeated blocks" in caught.value.message
    assert "parallelism.blocks" in caught.value.message


def test_named_classes_are_the_blocks() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = _Block()

        def forward(self, x: torch.Tensor) -> Any:
            return self.first(x)

    torch.manual_seed(3)
    plain = Two()
    torch.manual_seed(3)
    net = Two()
    recompute(net, "blocks", ["_Block"])
    (expected, most), (loss, kept) = _step(plain), _step(net)
    assert torch.equal(loss, expected)
    assert kept < most
