"""Blocks of random models. Each maps records of WIDTH numbers to records of WIDTH numbers, and has state of one kind:
buffers, Python attributes, generators of its own, hooks, or draws from torch's generator. State changes in training
alone, so that a validation may divide its batches over ranks.

Plain PyTorch: knows nothing of Gangline.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 6


class Generator:
    """A generator of torch that can be copied with its state."""

    def __init__(self, seed: int) -> None:
        self.inner = torch.Generator().manual_seed(seed)

    def __deepcopy__(self, memo: dict[int, Any]) -> Generator:
        twin = Generator(0)
        twin.inner.set_state(self.inner.get_state())
        memo[id(self)] = twin
        return twin


class Plain(nn.Module):
    """A residual layer. Subclasses change what `scale` returns, or the whole of `change`. gain: set by programs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.gain = 1.0
        self.prepare()

    def prepare(self) -> None:
        """At the end of __init__."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.change(x)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.tanh(self.layer(self.norm(x))) * self.scale(x)
        return out

    def scale(self, x: torch.Tensor) -> Any:
        return 1.0


# State in buffers.


class CounterBuffer(Plain):
    def prepare(self) -> None:
        self.register_buffer("calls", torch.zeros(()))
        self.calls: torch.Tensor

    def scale(self, x: torch.Tensor) -> Any:
        if self.training:
            self.calls += 1
        return 1 / (1 + self.calls)


class UnsavedCounter(CounterBuffer):
    def prepare(self) -> None:
        self.register_buffer("calls", torch.zeros(()), persistent=False)


class AssignedCounter(CounterBuffer):
    """Puts another tensor in the place of its buffer."""

    def scale(self, x: torch.Tensor) -> Any:
        if self.training:
            self.calls = self.calls + 1
        return 1 / (1 + self.calls)


class LateCounter(CounterBuffer):
    """Changes its buffer behind its use."""

    def scale(self, x: torch.Tensor) -> Any:
        scale = 1 / (1 + self.calls)
        if self.training:
            self.calls = self.calls + 1
        return scale


class RunningMean(Plain):
    def prepare(self) -> None:
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.mean: torch.Tensor

    def scale(self, x: torch.Tensor) -> Any:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return 1 + self.mean


class AssignedMean(RunningMean):
    def scale(self, x: torch.Tensor) -> Any:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return 1 + self.mean


class BatchNorm(Plain):
    def prepare(self) -> None:
        self.batch_norm = nn.BatchNorm1d(WIDTH)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        # Behind the tanh, because a bias right before it would have no gradient but rounding, which Adam makes large.
        out: torch.Tensor = self.batch_norm(super().change(x))
        return out


class InnerCounter(Plain):
    """Has its state in a module inside of it."""

    def prepare(self) -> None:
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), CounterBuffer())

    def change(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(super().change(x))
        return out


class SpectralNorm(Plain):
    def prepare(self) -> None:
        nn.utils.parametrizations.spectral_norm(self.layer)


class OldSpectralNorm(Plain):
    def prepare(self) -> None:
        nn.utils.spectral_norm(self.layer)


class WeightNorm(Plain):
    def prepare(self) -> None:
        nn.utils.parametrizations.weight_norm(self.layer)


# State in attributes.


class CounterAttribute(Plain):
    def prepare(self) -> None:
        self.calls: Any = 0

    def scale(self, x: torch.Tensor) -> Any:
        if self.training:
            self.calls += 1
        return 1 / (1 + self.calls)


class CounterTensor(CounterAttribute):
    """Its tensor is no buffer, and changes in place."""

    def prepare(self) -> None:
        self.calls = torch.zeros(())


class CounterList(CounterAttribute):
    def prepare(self) -> None:
        self.calls = []

    def scale(self, x: torch.Tensor) -> Any:
        if self.training:
            self.calls.append(0)
        return 1 / (1 + len(self.calls))


class CounterObject(CounterAttribute):
    def prepare(self) -> None:
        self.calls = SimpleNamespace(number={"all": 0})

    def scale(self, x: torch.Tensor) -> Any:
        if self.training:
            self.calls.number["all"] += 1
        return 1 / (1 + self.calls.number["all"])


class CounterLater(Plain):
    """Gets its attribute in the first forward pass."""

    def scale(self, x: torch.Tensor) -> Any:
        calls: int = getattr(self, "calls", 0)
        if self.training:
            self.calls = calls + 1
        return 1 / (1 + calls)


class Memory(Plain):
    """Uses what it has kept of its last call, as Transformer-XL does."""

    def prepare(self) -> None:
        self.memory: torch.Tensor | None = None

    def change(self, x: torch.Tensor) -> torch.Tensor:
        out = super().change(x if self.memory is None else x + self.memory)
        if self.training:
            self.memory = out.detach().mean(0)
        return out


class Alternating(CounterAttribute):
    """Decides by its calls what it computes."""

    def change(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        hidden = self.layer(self.norm(x))
        return torch.sin(hidden) if self.calls % 2 else torch.tanh(hidden)


class Dropped(CounterAttribute):
    """Leaves its layer out in each third call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        return x if self.training and self.calls % 3 == 2 else super().forward(x)

    def scale(self, x: torch.Tensor) -> Any:
        return 1.0


# Generators of the block's own.


class OwnGenerator(Plain):
    def prepare(self) -> None:
        self.generator = Generator(5)

    def scale(self, x: torch.Tensor) -> Any:
        return 0.5 + torch.rand(WIDTH, generator=self.generator.inner) if self.training else 1.0


class OwnRandom(Plain):
    def prepare(self) -> None:
        self.random = random.Random(5)

    def scale(self, x: torch.Tensor) -> Any:
        return 0.5 + self.random.random() if self.training else 1.0


class OwnNumpy(Plain):
    def prepare(self) -> None:
        self.random = np.random.RandomState(5)

    def scale(self, x: torch.Tensor) -> Any:
        return 0.5 + float(self.random.rand()) if self.training else 1.0


# Draws from the generators of the process.


class Dropout(Plain):
    def prepare(self) -> None:
        self.dropout = nn.Dropout(0.3)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.dropout(super().change(x))
        return out


class Noise(Plain):
    def change(self, x: torch.Tensor) -> torch.Tensor:
        out = super().change(x)
        return out * (1 + 0.3 * torch.randn_like(out)) if self.training else out


class PythonNoise(Plain):
    def scale(self, x: torch.Tensor) -> Any:
        return 0.5 + random.random() if self.training else 1.0


class NumpyNoise(Plain):
    def scale(self, x: torch.Tensor) -> Any:
        return 0.5 + float(np.random.rand()) if self.training else 1.0


# Hooks and other structure.


class Scaling:
    """A hook with state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if module.training:
            self.calls += 1
        return output * (1 + 1 / (1 + self.calls))


class Hooked(Plain):
    def prepare(self) -> None:
        self.register_forward_hook(Scaling())


class InnerHooked(Plain):
    def prepare(self) -> None:
        self.layer.register_forward_hook(Scaling())


class PreHooked(Plain):
    def prepare(self) -> None:
        self.register_forward_pre_hook(_widen)


def _widen(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (inputs[0] * 1.1, *inputs[1:])


class BackwardHooked(Plain):
    def prepare(self) -> None:
        self.layer.register_full_backward_hook(_weaken)


def _weaken(module: nn.Module, before: Any, after: Any) -> Any:
    return tuple(None if gradient is None else gradient * 0.5 for gradient in before)


class Recurrent(Plain):
    def prepare(self) -> None:
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.recurrent(super().change(x).unsqueeze(1))[0].squeeze(1)
        return out


class Checkpointed(Plain):
    """Recomputes a part by itself."""

    def prepare(self) -> None:
        self.second = nn.Linear(WIDTH, WIDTH)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self._inside, super().change(x), use_reentrant=False)
        return out

    def _inside(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(x))


class Table(Plain):
    def prepare(self) -> None:
        self.table = nn.Embedding(3, WIDTH)

    def scale(self, x: torch.Tensor) -> Any:
        return 1 + self.table((x[:, 0] > 0).long() + (x[:, 1] > 0).long())


class Frozen(Plain):
    """Has a parameter that is frozen from the beginning."""

    def prepare(self) -> None:
        self.fixed = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def scale(self, x: torch.Tensor) -> Any:
        return self.fixed(x)


class InnerGradient(Plain):
    """Differentiates its own output by its input."""

    def change(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            own = x if x.requires_grad else x.detach().requires_grad_()
            out = super().change(own)
            (slope,) = torch.autograd.grad(out.sum(), own, create_graph=self.training)
        return out + 0.1 * slope


class ScalarGain(Plain):
    """Has a parameter without a dimension."""

    def prepare(self) -> None:
        self.factor = nn.Parameter(torch.ones(()))

    def scale(self, x: torch.Tensor) -> Any:
        return self.factor


class SharedCounter(Plain):
    """Counts in an object that all such blocks of a model share, see `share`."""

    def prepare(self) -> None:
        self.shared = {"calls": 0}

    def scale(self, x: torch.Tensor) -> Any:
        if self.training:
            self.shared["calls"] += 1
        return 1 / (1 + self.shared["calls"])


class SharedBuffer(Plain):
    def prepare(self) -> None:
        self.register_buffer("shared", torch.zeros(()))
        self.shared: torch.Tensor

    def scale(self, x: torch.Tensor) -> Any:
        if self.training:
            self.shared.add_(1)
        return 1 / (1 + self.shared)


class SharedGenerator(OwnGenerator):
    def prepare(self) -> None:
        self.shared = Generator(5)

    def scale(self, x: torch.Tensor) -> Any:
        return 0.5 + torch.rand(WIDTH, generator=self.shared.inner) if self.training else 1.0


class SharedLayer(Plain):
    """All such blocks of a model have the same weights."""

    def prepare(self) -> None:
        self.shared = nn.Linear(WIDTH, WIDTH)

    def change(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.shared(super().change(x)))


_SHARING = (SharedCounter, SharedBuffer, SharedGenerator, SharedLayer)


def share(blocks: Any) -> None:
    """Gives all blocks of one sharing kind what the first of them has."""
    for kind in _SHARING:
        alike = [block for block in blocks if type(block) is kind]
        for block in alike[1:]:
            block.shared = alike[0].shared


_KINDS: tuple[type[Plain], ...] = (
    Plain, CounterBuffer, UnsavedCounter, AssignedCounter, LateCounter, RunningMean, AssignedMean, BatchNorm,
    InnerCounter, SpectralNorm, OldSpectralNorm, WeightNorm, CounterAttribute, CounterTensor, CounterList,
    CounterObject, CounterLater, Memory, Alternating, Dropped, OwnGenerator, OwnRandom, OwnNumpy, Dropout, Noise,
    PythonNoise, NumpyNoise, Hooked, InnerHooked, PreHooked, BackwardHooked, Recurrent, Checkpointed, Table, Frozen,
    InnerGradient, ScalarGain, SharedCounter, SharedBuffer, SharedGenerator, SharedLayer,
)  # fmt: skip
BLOCKS: dict[str, Callable[[], Plain]] = {kind.__name__: kind for kind in _KINDS}


def copy_with_parameters(model: nn.Module) -> nn.Module:
    """Returns a copy of a model with state of its own and the same parameters."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    return copy.deepcopy(model, memo)
