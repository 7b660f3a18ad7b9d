"""Parameters that forward passes use in half precision are gathered in it: with half of the bytes, and with the same
losses and parameters bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from gangline.config.optimization import Optimizations
from gangline.errors import GanglineError
from gangline.pytorch.parallel import choose_strategy
from gangline.pytorch.parallel.divided.half_gathering import HalfGathering
from tests.support.gang import run_gang
from tests.support.once import make_once


@dataclass(frozen=True, slots=True)
class Outcome:
    """gathered: bytes of this rank in the gatherings of each step."""

    losses: list[float]
    model: dict[str, torch.Tensor]
    gathered: list[int]


Trained = list[tuple[dict[tuple[str, str, bool], Outcome], str]]
_CPU = torch.device("cpu")
_WORDS, _WIDTH, _LENGTH = 11, 16, 5
_STEPS = 6


class Block(nn.Module):
    """Parameters that are used in half precision (attention, convolution, products) and others that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.attention = nn.MultiheadAttention(_WIDTH, 2, batch_first=True)
        self.convolution = nn.Conv1d(_WIDTH, _WIDTH, 3, padding=1)
        self.widen = nn.Linear(_WIDTH, 2 * _WIDTH)
        self.narrow = nn.Linear(2 * _WIDTH, _WIDTH, bias=False)
        self.scale = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.convolution(x.mT).mT * self.scale
        out: torch.Tensor = x + functional.linear(functional.gelu(self.widen(x)), self.narrow.weight)
        return out


class Net(nn.Module):
    """The tokens' rows are looked up in full precision and multiplied in half precision at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_WORDS, _WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.stem = nn.Linear(_WIDTH, _WIDTH)
        self.frozen = nn.Linear(_WIDTH, _WIDTH).requires_grad_(False)
        self.late = nn.Linear(_WIDTH, _WIDTH)
        self.penalty = 0.0
        self.uses_late = self.recomputes = self.is_reentrant = False

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.stem(self.tokens(words)))
        if self.uses_late:
            x = x + self.late(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.is_reentrant) if self.recomputes else block(x)
        out: torch.Tensor = functional.linear(x, self.tokens.weight)
        if self.penalty:
            # Of parameters in their own type, on which autocast has no effect.
            out = out + self.penalty * (self.stem.weight.square().sum() + self.stem.weight.to(torch.bfloat16).sum())
        return out


@dataclass(slots=True)
class Setting:
    """The model, and what a step may change: `half` is the type of autocast, None outside of it."""

    net: Net
    half: torch.dtype | None = torch.bfloat16
    parts: int = 1
    losses: Callable[[Setting, torch.Tensor], torch.Tensor] = field(default=lambda setting, words: setting.loss(words))

    def loss(self, words: torch.Tensor, half: torch.dtype | str | None = "as set") -> torch.Tensor:
        kind = self.half if half == "as set" else half
        with torch.autocast("cpu", dtype=kind) if isinstance(kind, torch.dtype) else contextlib.nullcontext():
            return functional.cross_entropy(self.net(words).flatten(0, 1).float(), words.roll(1, 1).flatten())


def _plain(setting: Setting, step: int) -> None: ...


def _penalised(setting: Setting, step: int) -> None:
    setting.net.penalty = 0.01 if step >= 3 else 0.0


def _validated(setting: Setting, step: int) -> None:
    """In full precision, which needs the parameters' own values."""
    if step in (2, 5):
        with torch.no_grad():
            loss = setting.loss(torch.arange(10).view(2, 5), half=None)
            _losses.append(float(loss))


def _mixed(setting: Setting, step: int) -> None:
    """Two passes of which one is in full precision, and one backward pass."""
    if step == 4:
        setting.losses = lambda each, words: each.loss(words) + each.loss(words, half=None)
    if step == 5:
        setting.losses = lambda each, words: each.loss(words, half=None) + each.loss(words)


def _changing(setting: Setting, step: int) -> None:
    """Steps of two passes, a module that is used later than the others, and another type of half precision."""
    setting.parts = 2
    setting.net.uses_late = step >= 3
    setting.half = torch.float16 if step == 4 else torch.bfloat16


def _recomputed(setting: Setting, step: int) -> None:
    """Blocks are computed again, and the model is called twice in one region, which keeps its copies."""

    def both(each: Setting, words: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return each.loss(words) + each.loss(words.roll(1, 0))

    setting.losses = both
    setting.net.recomputes, setting.net.is_reentrant = step > 0, step % 2 == 1


def _penalised_gradients(setting: Setting, step: int) -> None:
    """A loss with the squares of a gradient, through which the backward pass goes again."""

    def losses(each: Setting, words: torch.Tensor) -> torch.Tensor:
        inputs: list[torch.Tensor] = []
        handle = each.net.stem.register_forward_pre_hook(lambda _, given: inputs.extend(given))
        with sdpa_kernel(SDPBackend.MATH):
            loss = each.loss(words)
        handle.remove()
        (gradient,) = torch.autograd.grad(loss, inputs[0], create_graph=True)
        return loss + gradient.square().sum()

    setting.losses = losses


_KINDS: dict[str, Callable[[Setting, int], None]] = {
    "plain": _plain,
    "penalised": _penalised,
    "validated": _validated,
    "mixed": _mixed,
    "changing": _changing,
    "recomputed": _recomputed,
    "penalised_gradients": _penalised_gradients,
}
_PLACES = [*((kind, "zero3") for kind in _KINDS), ("plain", "zero2")]
_losses: list[float] = []


def train_all() -> tuple[dict[tuple[str, str, bool], Outcome], str]:
    """Trains each kind with each strategy, with the gathering in half precision (True) and without it (False). Returns
    the refusal of a change in place as well."""
    outcomes = {
        (kind, strategy, is_on): _train(kind, strategy, is_on) for kind, strategy in _PLACES for is_on in (False, True)
    }
    return outcomes, refuse_change("zero3")


def refuse_change(strategy_name: str) -> str:
    """Returns the refusal of a change in place after the parameters are gathered in half precision."""
    strategy, setting, optimizer = _build(strategy_name)
    words = _words(torch.Generator().manual_seed(1))
    for step in range(4):
        if step == 3:
            setting.net.stem.register_forward_pre_hook(_double)
        try:
            _step(strategy, setting, optimizer, words)
        except GanglineError as error:
            return f"{step}: {error.code}: {error.message}"
    return ""


def _double(module: nn.Module, _: Any) -> None:
    module.get_parameter("weight").data.mul_(2)


def _train(kind: str, strategy_name: str, is_on: bool) -> Outcome:
    with contextlib.nullcontext() if is_on else mock.patch.object(HalfGathering, "watch"):
        strategy, setting, optimizer = _build(strategy_name)
        generator = torch.Generator().manual_seed(1)
        _losses.clear()
        gathered = []
        for step in range(_STEPS):
            _KINDS[kind](setting, step)
            with _counting() as counted:
                _losses.append(_step(strategy, setting, optimizer, _words(generator)))
            gathered.append(sum(counted))
        return Outcome(list(_losses), strategy.full_model_state(setting.net), gathered)


def _build(strategy_name: str) -> tuple[Any, Setting, torch.optim.Optimizer]:
    torch.manual_seed(0)
    strategy = choose_strategy(strategy_name, dist.get_world_size(), _CPU, Optimizations())
    net = Net()
    strategy.prepare_model(net)
    optimizer = strategy.prepare_optimizer(torch.optim.AdamW(net.parameters(), lr=0.01))
    return strategy, Setting(net), optimizer


def _words(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(_WORDS, (8, _LENGTH), generator=generator)


def _step(strategy: Any, setting: Setting, optimizer: torch.optim.Optimizer, words: torch.Tensor) -> float:
    own = words.chunk(dist.get_world_size())[dist.get_rank()]
    total = 0.0
    for number, part in enumerate(own.chunk(setting.parts)):
        with contextlib.nullcontext() if number == setting.parts - 1 else strategy.accumulate():
            loss = setting.losses(setting, part) / setting.parts
            strategy.before_backward(number == 0)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            strategy.after_backward()
        total += float(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
    return total


@contextlib.contextmanager
def _counting() -> Iterator[list[int]]:
    """Yields the bytes that this rank sends in each gathering of parameters."""
    counted: list[int] = []

    def wrap(gather: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            sent: Any = options.get("input_tensor", arguments[1] if len(arguments) > 1 else None)
            counted.append(sent.nbytes)
            return gather(*arguments, **options)

        return counting

    names = [name for name in ("all_gather_single", "all_gather_into_tensor") if hasattr(dist, name)]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(dist, name, wrap(getattr(dist, name))))
        yield counted


def _train_both(directory: Path) -> Trained:
    return run_gang(2, directory, train_all)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return make_once(tmp_path_factory, "half_gathering", _train_both)


@pytest.mark.parametrize(("kind", "strategy"), _PLACES)
def test_losses_and_parameters_are_the_same_bit_for_bit(trained: Trained, kind: str, strategy: str) -> None:
    for outcomes, _ in trained:
        full, half = outcomes[kind, strategy, False], outcomes[kind, strategy, True]
        assert half.losses == full.losses
        assert half.model.keys() == full.model.keys()
        assert all(torch.equal(value, half.model[name]) for name, value in full.model.items())


@pytest.mark.parametrize(("strategy", "kind"), [("zero2", "plain"), ("zero3", "plain")])
def test_gatherings_have_half_of_the_bytes_from_the_second_step_on(trained: Trained, strategy: str, kind: str) -> None:
    """Norms, the own parameter of a block and the tokens, which are looked up in full precision, keep their bytes."""
    net = Net()
    names = ("tokens", "norm", "scale")
    others = sum(value.nbytes for name, value in net.named_parameters() if any(word in name for word in names))
    halved = sum(value.nbytes for name, value in net.named_parameters()) - others
    for outcomes, _ in trained:
        full, half = outcomes[kind, strategy, False].gathered, outcomes[kind, strategy, True].gathered
        assert half[0] == full[0]
        assert half[1:] == [half[1]] * (_STEPS - 1)
        expected = (halved / 2 + others) / (halved + others)
        # Parts are padded, and blocks are gathered twice.
        assert half[1] / full[1] == pytest.approx(expected, abs=0.03)


def test_a_parameter_that_is_needed_in_its_own_type_later_is_gathered_so_again(trained: Trained) -> None:
    for outcomes, _ in trained:
        gathered, plain = (outcomes[kind, "zero3", True].gathered for kind in ("penalised", "plain"))
        assert gathered[1:3] == plain[1:3]
        assert plain[3] < gathered[4] == gathered[5] < plain[0], "one parameter in its own type"
        assert gathered[4] < gathered[3], "where it was first needed it was gathered in both types"


def test_a_change_in_place_is_refused_as_before(trained: Trained) -> None:
    for _, refusal in trained:
        assert refusal.startswith("3: parallelism.whole_changed: Net.stem.weight was changed in place")
