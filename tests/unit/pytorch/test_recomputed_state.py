"""A block that runs again in the backward pass finds the state of its first run, and leaves no trace."""

from __future__ import annotations

import itertools
import logging
import random
import weakref
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from gangline.errors import GanglineError
from gangline.pytorch.parallel import log_left_out, recompute

_WIDTH = 8
# More numbers than are copied before each pass.
_MANY = 20_000


class _Block(nn.Module):
    """factor: a number or a tensor that depends on state. `change` changes the state. The order of use and change
    differs between classes, so that a run from any other state shows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(x)
        out: torch.Tensor = x + torch.tanh(self.linear(x) * self.factor(x))
        return out

    def change(self, x: torch.Tensor) -> None: ...

    def factor(self, x: torch.Tensor) -> Any:
        return 1.0


class _Counter(_Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.count: torch.Tensor

    def change(self, x: torch.Tensor) -> None:
        self.count += 1

    def factor(self, x: torch.Tensor) -> Any:
        return 1 / self.count.clone()


class _LateCounter(_Counter):
    """Changes after the use."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + torch.tanh(self.linear(x) / (1 + self.count.clone()))
        self.change(x)
        return out


class _Reassigned(_Counter):
    def change(self, x: torch.Tensor) -> None:
        self.count = self.count + 1


class _DataCounter(_Counter):
    """Without a new version."""

    def change(self, x: torch.Tensor) -> None:
        self.count.data.add_(1)


class _LargeBuffer(_Counter):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(_MANY))
        self.table: torch.Tensor

    def change(self, x: torch.Tensor) -> None:
        self.table += x.detach().mean()

    def factor(self, x: torch.Tensor) -> Any:
        return 1 + self.table[-1].clone()


class _Number(_Block):
    steps = 0

    def change(self, x: torch.Tensor) -> None:
        self.steps += 1

    def factor(self, x: torch.Tensor) -> Any:
        return 1 / self.steps


class _Memory(_Block):
    """Attends to what the pass before has made, as a Transformer-XL does."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: list[torch.Tensor] = [torch.zeros(_WIDTH)]
        self.latest: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + torch.tanh(self.linear(x) + sum(self.memory))
        self.memory = [*self.memory[-2:], out.detach().mean(0)]
        # With the graph of this pass.
        self.latest = out.mean()
        return out


class _Containers(_Block):
    def __init__(self) -> None:
        super().__init__()
        self.history: deque[float] = deque([1.0], maxlen=3)
        self.state = {"seen": [0], "names": set[int](), "pair": (torch.zeros(1), [1.0])}
        self.own = SimpleNamespace(step=0, inner=_Plain())

    def change(self, x: torch.Tensor) -> None:
        self.history.append(x.detach().mean().item())
        seen: Any = self.state["seen"]
        seen.append(len(seen))
        names: Any = self.state["names"]
        names.add(len(seen))
        pair: Any = self.state["pair"]
        pair[0].add_(1)
        pair[1][0] += 1.0
        self.own.step += 1
        self.own.inner.value += 1

    def factor(self, x: torch.Tensor) -> Any:
        pair: Any = self.state["pair"]
        numbers = sum(self.history) + len(self.state["names"]) + pair[1][0] + self.own.step + self.own.inner.value
        return 1 / (1 + numbers) + pair[0].clone()


class _Plain:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class _Draws(_Block):
    """From all kinds of generators."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(1)
        self.numbers = np.random.default_rng(2)
        self.plain = random.Random(3)

    def factor(self, x: torch.Tensor) -> Any:
        noise = torch.rand(_WIDTH, generator=self.own) + torch.rand(_WIDTH)
        return noise + self.numbers.random() + self.plain.random() + random.random() + float(np.random.rand())


class _Spectral(_Block):
    def __init__(self) -> None:
        super().__init__()
        parametrizations.spectral_norm(self.linear)


class _OldSpectral(_Block):
    def __init__(self) -> None:
        super().__init__()
        spectral_norm(self.linear)


class _Clamped(_Block):
    """Changes its own parameter."""

    def change(self, x: torch.Tensor) -> None:
        with torch.no_grad():
            self.linear.weight.mul_(0.9)


class _Hooked(_Block):
    """Keeps its state in the variables of a hook."""

    def __init__(self) -> None:
        super().__init__()
        count, means = 0, {"mean": torch.zeros(_WIDTH)}

        def scale(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += 1
            means["mean"] = 0.9 * means["mean"] + output.detach().mean(0)
            return output / count + means["mean"]

        self.linear.register_forward_hook(scale)


class _Listing(_Block):
    """Appends to a list that the model gives it, as routers do with their losses."""

    def forward(self, x: torch.Tensor, sizes: list[float] | None = None) -> torch.Tensor:
        assert sizes is not None
        sizes.append(float(x.detach().abs().mean()))
        out: torch.Tensor = x + torch.tanh(self.linear(x) * sum(sizes))
        return out


class _Moded(_Block):
    """Its flags change before the backward pass."""

    def factor(self, x: torch.Tensor) -> Any:
        return 1.0 if self.training else 0.5


class _Norm(_Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(_WIDTH)

    def factor(self, x: torch.Tensor) -> Any:
        return self.norm(x) + self.norm.running_mean.clone()  # type: ignore[union-attr]  # it has one


class _Net(nn.Module):
    def __init__(self, kind: type[_Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = [1.0]
        for block in self.blocks:
            x = block(x, sizes=sizes) if isinstance(block, _Listing) else block(x)
        return x * sum(sizes)


_KINDS = [
    _Counter,
    _LateCounter,
    _Reassigned,
    _DataCounter,
    _LargeBuffer,
    _Number,
    _Memory,
    _Containers,
    _Draws,
    _Spectral,
    _OldSpectral,
    _Clamped,
    _Hooked,
    _Listing,
    _Moded,
    _Norm,
]


def _train(kind: type[_Block], recomputation: str, calls: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns the gradients of each step, and the parameters and buffers at the end."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(3)
    net = _Net(kind)
    recompute(net, recomputation)
    gradients = []
    for _ in range(3):
        # The backward pass of the first call comes after the second call has changed the state again.
        loss = torch.stack([net(torch.randn(4, _WIDTH)).square().mean() for _ in range(calls)]).sum()
        net.eval()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        net.train()
        with torch.no_grad():
            for parameter in net.parameters():
                assert parameter.grad is not None
                gradients.append(parameter.grad.clone())
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
    draws = torch.rand(1), torch.tensor([random.random(), float(np.random.rand())])
    return gradients, [*net.state_dict().values(), *draws]


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
def test_a_block_with_state_trains_the_same_bit_for_bit(kind: type[_Block], calls: int) -> None:
    # A parameter that changes in its own forward pass between two calls is an error of torch in both.
    calls = 1 if kind is _Clamped else calls
    plain, recomputed = _train(kind, "none", calls), _train(kind, "blocks", calls)
    for expected, found in zip(plain, recomputed, strict=True):
        for each, other in zip(expected, found, strict=True):
            assert torch.equal(each, other)


def test_two_backward_passes_run_from_the_same_state() -> None:
    slopes = []
    for kind in ("none", "blocks"):
        torch.manual_seed(1)
        net = _Net(_Counter)
        recompute(net, kind)
        inputs = torch.randn(4, _WIDTH, requires_grad=True)
        output = net(inputs).square().sum()
        (slope,) = torch.autograd.grad(output, inputs, create_graph=True)
        (output + slope.square().sum()).backward()
        slopes.append([parameter.grad for parameter in net.parameters()])
    for expected, found in zip(*slopes, strict=True):
        assert expected is not None
        assert found is not None
        assert torch.equal(expected, found)


class _Masked(_Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(_MANY))

    def factor(self, x: torch.Tensor) -> Any:
        return self.mask[:_WIDTH]  # type: ignore[index]  # a tensor


def test_a_large_buffer_that_does_not_change_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    net = _Net(_Masked)
    recompute(net, "blocks")
    net(torch.randn(4, _WIDTH)).sum().backward()
    copied: list[int] = []
    clone = torch.Tensor.clone

    def note(tensor: torch.Tensor, **_: Any) -> torch.Tensor:
        copied.append(tensor.nbytes)
        return clone(tensor)

    monkeypatch.setattr(torch.Tensor, "clone", note)
    net(torch.randn(4, _WIDTH)).sum().backward()
    assert max(copied, default=0) < 1000


def test_a_graph_in_an_attribute_does_not_keep_the_passes_before() -> None:
    """Each pass refers to the state before it, which has the last pass's output."""
    net = _Net(_Memory)
    recompute(net, "blocks")
    block: Any = net.blocks[0]
    net(torch.randn(4, _WIDTH))
    first = weakref.ref(block.latest)
    for _ in range(2):
        net(torch.randn(4, _WIDTH))
    assert first() is None


class _LateChange(_Masked):
    passes = 0

    def change(self, x: torch.Tensor) -> None:
        self.passes += 1
        if self.passes == 2:
            mask: Any = self.mask
            mask *= 2


def test_a_large_buffer_that_changes_later_is_refused_by_name() -> None:
    net = _Net(_LateChange)
    recompute(net, "blocks")
    net(torch.randn(4, _WIDTH)).sum().backward()
    with pytest.raises(GanglineError) as caught:
        net(torch.randn(4, _WIDTH))
    assert caught.value.code == "parallelism.activation_checkpointing"
    assert "blocks.0 (_LateChange) has changed its mask (80000 bytes)" in caught.value.message
    assert "leave activation_checkpointing out" in caught.value.message


class _Iterating(_Block):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def factor(self, x: torch.Tensor) -> Any:
        return 1 / (1 + next(self.numbers))


class _Mixed(nn.Module):
    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Iterating(), _Iterating()])
        self.layers = nn.ModuleList([make(), make()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.blocks, *self.layers):
            x = block(x)
        return x


def test_state_that_cannot_be_put_back_is_left_out_by_name(caplog: pytest.LogCaptureFixture) -> None:
    gradients = []
    for kind in ("none", "blocks"):
        torch.manual_seed(2)
        net = _Mixed(_Counter)
        left_out = recompute(net, kind)
        net(torch.randn(4, _WIDTH)).sum().backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    for expected, found in zip(*gradients, strict=True):
        assert expected is not None
        assert found is not None
        assert torch.equal(expected, found)
    with caplog.at_level(logging.INFO, "gangline"):
        log_left_out(left_out)
    (line,) = caplog.messages
    what = "(_Iterating) has the iterator numbers, which cannot be set back"
    assert line.endswith(f"from the same state: blocks.0 {what}; blocks.1 {what}")


def test_a_model_without_a_part_that_can_run_again_is_refused() -> None:
    with pytest.raises(GanglineError) as caught:
        recompute(_Net(_Iterating), "blocks")
    assert caught.value.code == "parallelism.activation_checkpointing"
    assert "no part of _Net can run again: blocks.0 (_Iterating) has the iterator numbers" in caught.value.message


def test_state_that_comes_later_is_left_out_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    net = _Net(_Counter)
    recompute(net, "blocks")
    block: Any = net.blocks[0]
    block.numbers = iter([1, 2])
    with caplog.at_level(logging.INFO, "gangline"):
        for _ in range(2):
            net(torch.randn(4, _WIDTH)).sum().backward()
    assert len(caplog.messages) == 1
    assert "blocks.0 (_Counter) has the iterator numbers" in caplog.messages[0]
