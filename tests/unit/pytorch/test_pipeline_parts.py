"""Parts of models train what the whole models do, or refuse them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import register_pytree_node
from torch.utils.checkpoint import checkpoint

from gangline.errors import GanglineError
from gangline.pytorch.parallel.staged.layout import tensors_of
from tests.support.parts_alone import cut, train_parts, train_whole
from tests.support.run_chain import WIDTH, RunChain, run_plain

_BORDERS = [{1}, {2}, {3}, {4}, {1, 2, 3, 4}]


pytestmark = pytest.mark.usefixtures("one_rank")


def _check(model: nn.Module, borders: set[int], num_batches: int = 2) -> None:
    """Compares the gradients and buffers of some batches with those of the whole model."""
    model.double()
    whole, parts = copy.deepcopy(model), cut(model, borders)
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_batches):
        inputs = torch.randn(3, WIDTH, dtype=torch.float64, generator=generator)
        ours, theirs = inputs.clone(), inputs.clone()
        torch.testing.assert_close([*train_parts(parts, model, ours), ours], [*train_whole(whole, theirs), theirs])
        torch.testing.assert_close(dict(model.named_buffers()), dict(whole.named_buffers()))


class _Counting(nn.Linear):
    """Returns a plain value that depends on its input, and as many rows."""

    def __init__(self, *, is_trimming: bool) -> None:
        super().__init__(WIDTH, WIDTH)
        self.is_trimming = is_trimming

    def forward(self, input: torch.Tensor) -> Any:
        count = 1 + int(input.sum() > 0)
        y = super().forward(input)
        return (y[:count], 0) if self.is_trimming else (y, count)


@pytest.mark.parametrize("is_trimming", [False, True])
@pytest.mark.parametrize("borders", _BORDERS[1:])
def test_what_units_return_beside_values_stays_the_same(is_trimming: bool, borders: set[int]) -> None:
    def run(model: RunChain, x: torch.Tensor) -> Any:
        x, count = model.blocks[0](model.stem(x))
        return model.head(model.blocks[2](model.blocks[1](x[:1]))) * (count + x.shape[0])

    torch.manual_seed(1)
    model = RunChain(run)
    nn.init.zeros_(model.stem.bias)
    model.blocks[0] = _Counting(is_trimming=is_trimming)
    kind = "shapes or types" if is_trimming else "plain values"
    with pytest.raises(GanglineError, match=rf"returns other {kind} from blocks\.0"):
        _check(model, borders, num_batches=8)


class _Mean(nn.Linear):
    """Gives its buffer another tensor in each batch."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().forward(input)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean


@pytest.mark.parametrize("borders", _BORDERS)
def test_a_unit_may_replace_its_buffer(borders: set[int]) -> None:
    _check(RunChain(run_plain, _Mean), borders)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_buffer_of_the_model_that_changes_on_several_parts_of_a_rank_is_refused(is_replaced: bool) -> None:
    def run(model: Any, x: torch.Tensor) -> Any:
        if is_replaced:
            model.mean = 0.9 * model.mean + x.mean(0)
        else:
            model.mean.mul_(0.9).add_(x.mean(0))
        return run_plain(model, x - model.mean)

    model = RunChain(run)
    model.register_buffer("mean", torch.zeros(WIDTH))
    with pytest.raises(GanglineError, match="changes its buffer mean, which each of the parts on a rank would do"):
        _check(model, {2})


class _Named(NamedTuple):
    hidden: torch.Tensor
    number: int


class _Naming(nn.Linear):
    def forward(self, input: torch.Tensor) -> Any:
        return _Named(super().forward(input), 2)


@pytest.mark.parametrize("borders", _BORDERS)
def test_a_unit_may_return_a_named_tuple(borders: set[int]) -> None:
    def run(model: RunChain, x: torch.Tensor) -> Any:
        x = model.stem(x)
        for block in model.blocks:
            output = block(x)
            x = output.hidden * output.number
        return model.head(x)

    _check(RunChain(run, lambda: _Naming(WIDTH, WIDTH)), borders)


def test_a_named_tuple_that_another_rank_cannot_find_is_refused() -> None:
    class Hidden(NamedTuple):
        hidden: torch.Tensor

    class Naming(nn.Linear):
        def forward(self, input: torch.Tensor) -> Any:
            return Hidden(super().forward(input))

    def run(model: RunChain, x: torch.Tensor) -> Any:
        return model.head(model.blocks[0](model.stem(x)).hidden)

    model = RunChain(run)
    model.blocks[0] = Naming(WIDTH, WIDTH)
    with pytest.raises(
        GanglineError, match=r"named tuple \S+Hidden cannot go from stage to stage, .* define the class at the top"
    ):
        _check(model, {2})


class _Changing(nn.Linear):
    """Adds its output to what the model has given it besides."""

    def forward(self, input: torch.Tensor, kept: Any = None, **options: Any) -> torch.Tensor:
        y: torch.Tensor = super().forward(input)
        if isinstance(kept, list):
            kept.append(y)
        elif isinstance(kept, dict):
            kept[id(self)] = y
        elif isinstance(kept, torch.Tensor):
            kept += y.detach()
        else:
            options["state"].total += y
        return y


def _total(kept: Any) -> Any:
    if isinstance(kept, dict):
        return sum(kept.values())
    return sum(kept) if isinstance(kept, list) else getattr(kept, "total", kept)


@pytest.mark.parametrize("make", [list, dict, lambda: torch.zeros(3, WIDTH), lambda: SimpleNamespace(total=0)])
@pytest.mark.parametrize("borders", _BORDERS)
def test_a_unit_that_changes_what_the_model_gives_it_besides_is_refused(make: Any, borders: set[int]) -> None:
    """Unless its readers are on the same part. A sum that is no output of any unit is refused there too."""

    def run(model: RunChain, x: torch.Tensor) -> Any:
        x, kept = model.stem(x), make()
        for block in model.blocks:
            x = block(x, state=kept) if isinstance(kept, SimpleNamespace) else block(x, kept)
        return model.head(x) + _total(kept)

    model = RunChain(run, lambda: _Changing(WIDTH, WIDTH))
    if borders == {1} and not isinstance(make(), SimpleNamespace):
        _check(model, borders)
        return
    words = (
        "changes its input in place inside of blocks.0",
        "that blocks.0 changes",
        "that blocks.0 computes and does",
    )
    with pytest.raises(GanglineError, match="|".join(map(re.escape, words))):
        _check(model, borders)


class _Scoring(nn.Linear):
    """Keeps a loss of its own, which it does not return."""

    score: torch.Tensor | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y = super().forward(input)
        self.score = y.square().mean()
        return y


def _add_scores(model: RunChain, x: torch.Tensor) -> Any:
    y = run_plain(model, x)
    scores: list[Any] = [block.score for block in model.blocks]
    return y + sum(score for score in scores if score is not None)


def _collect_scores(model: RunChain, x: torch.Tensor) -> Any:
    return run_plain(model, x), [block.score for block in model.blocks if block.score is not None]


@pytest.mark.parametrize("run", [_add_scores, _collect_scores])
@pytest.mark.parametrize("borders", [{1}, {2}, {3}])
def test_a_value_from_inside_of_a_unit_is_refused(run: Any, borders: set[int]) -> None:
    with pytest.raises(
        GanglineError, match=r"uses a value that blocks\.\d computes and does not return, so that other"
    ):
        _check(RunChain(run, lambda: _Scoring(WIDTH, WIDTH)), borders)


class _Table(nn.Module):
    """Makes a table once for all of its users."""

    table: torch.Tensor | None = None

    def forward(self, count: int) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(count).double().cos()
        return self.table


class _Rotating(nn.Linear):
    shared = _Table()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        table: torch.Tensor = self.shared(WIDTH)
        return super().forward(input) * table


@pytest.mark.parametrize("borders", _BORDERS)
def test_a_table_that_units_share_is_no_value_of_a_unit(
    borders: set[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_Rotating, "shared", _Table())
    _check(RunChain(run_plain, lambda: _Rotating(WIDTH, WIDTH)), borders)
    assert not [record for record in caplog.records if "keeps" in record.getMessage()]


class _Cache:
    """To which each block adds something."""

    def __init__(self) -> None:
        self.kept: dict[int, torch.Tensor] = {}

    def get(self, place: int) -> torch.Tensor:
        return self.kept[place]


@pytest.mark.parametrize("borders", _BORDERS)
def test_an_object_in_the_output_is_an_error_where_it_is_used(borders: set[int]) -> None:
    def run(model: RunChain, x: torch.Tensor) -> Any:
        cache = _Cache()
        for place, block in enumerate([model.stem, *model.blocks]):
            cache.kept[place] = x = block(x)
        return {"out": model.head(x), "cache": cache, "name": "plain"}

    model = RunChain(run)
    _check(model, borders)
    parts = cut(model, borders)
    output = parts.forward((torch.randn(3, WIDTH, dtype=torch.float64),), {})
    assert output["name"] == "plain"
    assert copy.deepcopy(output["cache"]) == output["cache"]
    for use in (lambda cache: cache.get(0), lambda cache: cache[0], len, list, lambda cache: cache(0)):
        with pytest.raises(
            GanglineError, match=r"the model's output has a _Cache, which cannot go from stage to stage"
        ):
            use(output["cache"])


def test_an_output_of_objects_alone_is_refused() -> None:
    model = RunChain(lambda model, x: SimpleNamespace(out=run_plain(model, x)))
    with pytest.raises(
        GanglineError, match="returns a SimpleNamespace, which cannot go from stage to stage; return tens"
    ):
        _check(model, {2})


def test_an_input_that_is_changed_in_training_alone() -> None:
    """An evaluation with a new shape has its own input afterwards."""

    def run(model: RunChain, x: torch.Tensor) -> Any:
        if model.training:
            x.mul_(2)
        return run_plain(model, x)

    model = RunChain(run)
    _check(model, {2, 4})
    parts = cut(model, {2, 4})
    train_parts(parts, model, torch.ones(3, WIDTH, dtype=torch.float64))
    model.eval()
    for rows in (3, 5):
        inputs = torch.full((rows, WIDTH), 7.0, dtype=torch.float64)
        torch.testing.assert_close(parts.forward((inputs,), {}), run_plain(model, inputs))
        assert inputs.eq(7).all()


def test_a_tensor_that_is_there_twice_stays_one() -> None:
    class Twice(RunChain):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:  # type: ignore[override]  # with two inputs
            x.mul_(2)
            return self.run(self, x + y)

    model = Twice(run_plain)
    parts = cut(model, {2})
    evaluated, trained, wanted = (torch.ones(3, WIDTH) for _ in range(3))
    torch.testing.assert_close(parts.forward((evaluated, evaluated), {}), model.run(model, 4 * wanted))
    assert evaluated.eq(2).all()
    train_parts(parts, model, trained, trained)
    assert trained.eq(2).all()


class _Registered(NamedTuple):
    hidden: torch.Tensor


register_pytree_node(_Registered, lambda value: (list(value), None), lambda values, _: _Registered(*values))


@pytest.mark.parametrize("wrap", [_Registered, lambda y: {(1, 2): y}])
def test_what_cannot_be_described_to_another_rank_is_refused(wrap: Any) -> None:
    class Wrapping(nn.Linear):
        def forward(self, input: torch.Tensor) -> Any:
            return wrap(super().forward(input))

    model = RunChain(lambda model, x: model.head(tensors_of(model.blocks[0](model.stem(x)))[0]))
    model.blocks[0] = Wrapping(WIDTH, WIDTH)
    with pytest.raises(
        GanglineError, match=r"what blocks\.0 returns cannot go from stage to stage; return tensors and"
    ):
        _check(model, {2})


def test_a_number_that_is_not_a_number_stays_the_same() -> None:
    class Numbering(nn.Linear):
        def forward(self, input: torch.Tensor) -> Any:
            return super().forward(input), float("nan")

    def run(model: RunChain, x: torch.Tensor) -> Any:
        x = model.stem(x)
        for block in model.blocks:
            x, _ = block(x)
        return model.head(x)

    _check(RunChain(run, lambda: Numbering(WIDTH, WIDTH)), {2})


def test_each_autocast_has_a_layout_of_its_own() -> None:
    model = RunChain(run_plain).eval()
    parts, inputs = cut(model, {2}), torch.ones(3, WIDTH)
    assert parts.forward((inputs,), {}).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert parts.forward((inputs,), {}).dtype == torch.bfloat16


@pytest.mark.parametrize("borders", _BORDERS)
def test_all_parts_draw_the_same_random_numbers_between_units(borders: set[int]) -> None:
    def run(model: RunChain, x: torch.Tensor) -> Any:
        noise = torch.randn_like(x)
        x = model.stem(x + noise)
        for block in model.blocks:
            x = functional.dropout(x)
            x = block(x)
        return model.head(x) * torch.rand_like(x) - noise

    torch.manual_seed(1)
    model = RunChain(run)
    whole, parts, inputs = copy.deepcopy(model), cut(model, borders), torch.randn(3, WIDTH)
    for number in (3, 4):
        found = train_parts(parts, model, inputs, number=number)
        torch.manual_seed(number)
        torch.testing.assert_close(found, train_whole(whole, inputs))


def test_units_draw_from_the_generators_of_their_rank() -> None:
    model = RunChain(run_plain, lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)))
    parts, inputs = cut(model, {2}), torch.randn(64, WIDTH)
    first, second = (train_parts(parts, model, inputs)[0] for _ in range(2))
    assert not torch.equal(first, second)


class _Pairs(nn.Module):
    """Layers in pairs, which the model's own code joins. make: a pair of two modules."""

    def __init__(self, make: Callable[[nn.Module, nn.Module], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            make(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        for pair in self.layers:
            first, second = pair.children()
            x = first(x) + x
            x = second(x) + x
        return self.head(x)


@pytest.mark.parametrize(
    "make", [lambda *pair: nn.ModuleList(pair), lambda *pair: nn.ModuleDict(dict(zip("ab", pair, strict=True)))]
)
@pytest.mark.parametrize("borders", _BORDERS)
def test_layers_may_be_in_pairs(make: Any, borders: set[int]) -> None:
    _check(_Pairs(make), borders)


def test_complex_numbers_between_parts_are_refused() -> None:
    def run(model: RunChain, x: torch.Tensor) -> Any:
        x = model.blocks[0](model.stem(x))
        return model.head(model.blocks[2](model.blocks[1](torch.fft.ifft(x).real)))

    class Transforming(nn.Linear):
        def forward(self, input: torch.Tensor) -> Any:
            return torch.fft.fft(super().forward(input))

    def make() -> nn.Module:
        model = RunChain(run)
        model.blocks[0] = Transforming(WIDTH, WIDTH)
        return model

    _check(make(), {3})
    with pytest.raises(GanglineError, match=r"gives complex numbers from stage 0 of 2 .*torch\.view_as_real"):
        _check(make(), {2})


@pytest.mark.parametrize("borders", _BORDERS)
def test_a_number_in_a_new_tensor_may_come_from_a_hidden_state(borders: set[int]) -> None:
    def run(model: RunChain, x: torch.Tensor) -> Any:
        first = model.stem(x)
        factor = torch.tensor([float(first.shape[0]), first.detach().max(), 1.0, 2.0])
        x = first
        for block in model.blocks:
            x = block(x)
        return model.head(x) * factor

    _check(RunChain(run), borders)


def _penalised(model: RunChain, x: torch.Tensor) -> Any:
    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(run_plain(model, x * x).sum(), x, create_graph=True)
    return slope


def _hooked(model: RunChain, x: torch.Tensor) -> Any:
    x = model.blocks[0](model.stem(x))
    x.register_hook(lambda gradient: 2 * gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return model.head(model.blocks[2](model.blocks[1](x)))


@pytest.mark.parametrize(("run", "name"), [(_penalised, "grad"), (_hooked, "register_hook")])
@pytest.mark.parametrize("borders", _BORDERS)
def test_gradients_in_the_code_between_units_are_refused(run: Any, name: str, borders: set[int]) -> None:
    if run is _hooked and borders == {1}:
        _check(RunChain(run), borders)
        return
    with pytest.raises(GanglineError, match=f"calls {name} between its units, and each part has the graph of its own"):
        _check(RunChain(run), borders)


@pytest.mark.parametrize("borders", _BORDERS)
def test_a_unit_and_the_code_behind_the_last_one_may_use_gradients(borders: set[int]) -> None:
    class Scaling(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = super().forward(input)
            y.register_hook(torch.neg)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return y

    def run(model: RunChain, x: torch.Tensor) -> Any:
        output = run_plain(model, x)
        output.register_hook(lambda gradient: 3 * gradient)
        return output

    _check(RunChain(run, lambda: Scaling(WIDTH, WIDTH)), borders)


@pytest.mark.parametrize("borders", _BORDERS[1:])
def test_code_behind_a_unit_in_its_checkpoint_belongs_to_the_unit(borders: set[int]) -> None:
    def run(model: RunChain, x: torch.Tensor) -> Any:
        x = model.stem(x)
        for block in model.blocks:
            x = checkpoint(lambda h, block=block: torch.tanh(block(h)), x, use_reentrant=False)
        return model.head(x)

    with pytest.raises(GanglineError, match=r"recomputes blocks\.\d from an input that was replaced"):
        _check(RunChain(run), borders)


class _Packing(nn.Module):
    """Gives its layers a packed sequence, which is a named tuple of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(3))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x[:, None].expand(-1, 4, -1), torch.tensor([4, 2, 1]), batch_first=True)
        for layer in self.layers:
            packed, _ = layer(packed)
        return self.head(pad_packed_sequence(packed, batch_first=True)[0])


@pytest.mark.parametrize("borders", [{1}, {1, 2, 3}])
def test_packed_sequences_cross_a_border(borders: set[int]) -> None:
    _check(_Packing(), borders)
