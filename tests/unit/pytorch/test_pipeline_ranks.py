"""Two parts of a model, each with its own copy of it as on ranks, train what the whole model does, or refuse it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gangline.errors import GanglineError
from gangline.pytorch.parallel.staged.layout import tensors_of
from tests.support.parts_apart import train_apart
from tests.support.run_chain import WIDTH, RunChain, run_plain

pytestmark = pytest.mark.usefixtures("one_rank")


def _check(model: nn.Module, border: int, copies: list[Any] | None = None) -> None:
    """copies: gets the model as each of the parts has it."""
    model.double()
    whole = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(3, WIDTH, dtype=torch.float64, generator=generator) for _ in range(2)]
    *outputs, gradients = train_apart(model, border, batches, copies)
    for batch, output in zip(batches, outputs, strict=True):
        wanted = tensors_of(whole(batch.clone()))
        torch.stack([each.square().sum() for each in wanted]).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.testing.assert_close(output, [each.detach() for each in wanted])
    for found, parameter in zip(gradients, whole.parameters(), strict=True):
        torch.testing.assert_close(found, torch.zeros(()) if parameter.grad is None else parameter.grad)


class _Keeping(nn.Linear):
    """Keeps a loss of its own, which is 0 before it runs."""

    score: Any = 0.0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y = super().forward(input)
        self.score = y.square().mean()
        return y


class _Scaling(nn.Linear):
    """Sets its buffer, in place or anew."""

    def __init__(self, *, is_new: bool) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(()))
        self.is_new = is_new

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y = super().forward(input)
        mean = y.detach().abs().mean()
        if self.is_new:
            self.scale = mean
        else:
            self.get_buffer("scale").copy_(mean)
        return y


@pytest.mark.parametrize("border", [2, 3, 4])
def test_what_a_unit_keeps_is_refused_where_a_later_part_reads_it(border: int) -> None:
    model = RunChain(lambda model, x: run_plain(model, x) + model.blocks[0].score)
    model.blocks[0] = _Keeping(WIDTH, WIDTH)
    with pytest.raises(GanglineError, match=r"uses a value that blocks\.0 computes and does not return"):
        _check(model, border)


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("border", [2, 4])
def test_a_units_buffer_is_refused_where_a_later_part_reads_it(border: int, is_new: bool) -> None:
    model = RunChain(lambda model, x: run_plain(model, x) * model.blocks[0].scale)
    model.blocks[0] = _Scaling(is_new=is_new)
    with pytest.raises(GanglineError, match=r"uses a value that blocks\.0 computes and does not return"):
        _check(model, border)


@pytest.mark.parametrize("border", [1, 2, 3, 4])
def test_what_nobody_else_reads_may_be_kept(border: int) -> None:
    _check(RunChain(run_plain, lambda: _Keeping(WIDTH, WIDTH)), border)
    _check(RunChain(run_plain, lambda: _Scaling(is_new=True)), border)


@pytest.mark.parametrize("border", [2, 3, 4])
def test_what_a_unit_keeps_is_an_error_where_another_stage_uses_it(border: int) -> None:
    """As in a loss in train_batch. Before it runs, the attribute is 0."""
    copies: list[Any] = []
    _check(RunChain(run_plain, lambda: _Keeping(WIDTH, WIDTH)), border, copies)
    for stage, model in enumerate(copies):
        for place, block in enumerate(model.blocks):
            if (place < border - 1) == (stage == 0):
                assert float(block.score) > 0
                continue
            for use in _USES:
                with pytest.raises(
                    GanglineError,
                    match=rf"blocks\.{place}\.score was used on a stage that does not have it, because stage "
                    rf"{1 - stage} of 2 \(.*\) computes it; let blocks\.{place} return it beside its output, add such "
                    r"values up in the model's forward and let the model return the sum, or use ddp$",
                ):
                    use(block.score)


_USES: list[Callable[[Any], Any]] = [
    lambda score: torch.zeros(()) + score,
    lambda score: score + torch.zeros(()),
    lambda score: sum([score, score]),
    lambda score: 0.1 * score,
    lambda score: torch.stack([score]),
    lambda score: torch.add(torch.zeros(()), other=score),
    lambda score: score.mean(),
    lambda score: score.detach(),
    float,
    bool,
    list,
]


def test_a_unit_may_return_what_it_would_keep() -> None:
    """The way out."""

    class Returning(nn.Linear):
        def forward(self, input: torch.Tensor) -> Any:
            y = super().forward(input)
            return y, y.square().mean()

    def run(model: RunChain, x: torch.Tensor) -> Any:
        x, total = model.stem(x), torch.zeros((), dtype=x.dtype)
        for block in model.blocks:
            x, score = block(x)
            total = total + score
        return model.head(x), total

    for border in (1, 2, 3, 4):
        _check(RunChain(run, lambda: Returning(WIDTH, WIDTH)), border)


def test_a_module_of_several_units_keeps_its_values() -> None:
    """A table that it computes once from a parameter of its own, for units of both parts."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.newest: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            newest = x * self.scale
            self.newest = newest
            return newest.tanh()

    table = Table()
    _check(RunChain(run_plain, lambda: _Sharing(table, is_checkpointed=False)), 3)


class _Sharing(nn.Module):
    """A layer with a module that it has in common with others. is_checkpointed: runs that in a reentrant checkpoint."""

    def __init__(self, shared: nn.Module, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.shared = shared
        self.is_checkpointed = is_checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        out: torch.Tensor = checkpoint(self.shared, y, use_reentrant=True) if self.is_checkpointed else self.shared(y)
        return out


@pytest.mark.parametrize("make", [nn.GELU, lambda: nn.LayerNorm(WIDTH)])
@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("border", [1, 2, 3, 4])
def test_units_may_share_a_module_with_the_model(
    make: Callable[[], nn.Module], border: int, is_checkpointed: bool
) -> None:
    shared = make()

    def make_block() -> nn.Module:
        return _Sharing(shared, is_checkpointed=is_checkpointed)

    _check(RunChain(lambda model, x: model.beside(run_plain(model, x)), make_block, shared), border)


class _Averaging(nn.Module):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


@pytest.mark.parametrize("border", [2, 3, 4])
def test_a_module_that_replaces_its_buffer_runs_once(border: int) -> None:
    def run(model: RunChain, x: torch.Tensor) -> Any:
        x = model.stem(x)
        for block in model.blocks:
            x = model.beside(block(x))
        return model.head(x)

    with pytest.raises(
        GanglineError, match=r"runs beside twice, or in another order than .* beside changes its buffers"
    ):
        _check(RunChain(run, beside=_Averaging()), border)


class _Masking(nn.Linear):
    """Keeps a table of the shape of its input, which a module of all layers reads."""

    tables: dict[str, torch.Tensor]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if "mask" not in self.tables:
            self.tables["mask"] = torch.ones_like(input)
        return super().forward(input) * self.tables["mask"]


@pytest.mark.parametrize("border", [1, 2, 4])
def test_a_table_of_the_shape_of_a_hidden_state_is_no_value_of_a_unit(border: int) -> None:
    tables: dict[str, torch.Tensor] = {}

    def make() -> nn.Module:
        layer = _Masking(WIDTH, WIDTH)
        layer.tables = tables
        return layer

    _check(RunChain(run_plain, make), border)


def test_an_error_of_one_part_is_raised() -> None:
    def run(model: RunChain, x: torch.Tensor) -> Any:
        run_plain(model, x)
        raise ArithmeticError("it breaks")

    with pytest.raises(ArithmeticError, match="it breaks"):
        _check(RunChain(run), 2)
