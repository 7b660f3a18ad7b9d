"""A model that is wrapped keeps its name, its attributes and its copies to itself."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

from gangline.pytorch.parallel.whole.module_route import OriginalForward, route


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(inputs)  # type: ignore[no-any-return]  # a module's call is untyped


class Doubling(nn.Module):
    """Stands for DistributedDataParallel: passes on to the model and leaves a mark."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return 2 * self.inner(inputs)  # type: ignore[no-any-return]  # see above


_INPUTS = torch.ones(1, 2)


def test_call_goes_through_the_wrapper() -> None:
    net = Net()
    plain = net(_INPUTS)
    wrapper = route(net, Doubling)
    assert torch.equal(net(_INPUTS), 2 * plain)
    assert (wrapper.calls, net.calls) == (1, 2)
    assert isinstance(net, Net)
    assert type(net).__name__ == "Net"
    assert list(net.state_dict()) == ["layer.weight", "layer.bias"]


def test_call_without_gradients_stays_local() -> None:
    net = Net()
    plain = net(_INPUTS)
    wrapper = route(net, Doubling)
    with torch.no_grad():
        assert torch.equal(net(_INPUTS), plain)
    assert wrapper.calls == 0


def test_hooks_run_once() -> None:
    net = Net()
    seen: list[int] = []
    net.register_forward_hook(lambda *_: seen.append(1))
    wrapper = route(net, Doubling)
    net(_INPUTS)
    assert (len(seen), wrapper.calls) == (1, 1)


def test_copies_and_pickles_are_plain_models() -> None:
    net = Net()
    plain = net(_INPUTS)
    wrapper = route(net, Doubling)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert type(twin) is Net
        assert torch.equal(twin(_INPUTS), plain)
    assert wrapper.calls == 0


def test_model_can_be_routed_again() -> None:
    net = Net()
    plain = net(_INPUTS)
    first = route(net, Doubling)
    second = route(net, Doubling)
    assert torch.equal(net(_INPUTS), 2 * plain)
    assert (first.calls, second.calls) == (0, 1)


def test_model_is_freed_with_its_wrapper() -> None:
    net = Net()
    wrapper = route(net, Doubling)
    reference = weakref.ref(net)
    del net, wrapper
    gc.collect()
    assert reference() is None


def test_forward_of_one_instance_is_kept() -> None:
    net = Net()
    net.forward = lambda inputs: inputs + 1  # type: ignore[method-assign]  # what torch.compile does
    wrapper = route(net, Doubling)
    assert torch.equal(net(_INPUTS), torch.full((1, 2), 4.0))
    assert wrapper.calls == 1


def test_one_walk_over_the_modules_serves_all_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Net()
    model = nn.Sequential(first, Net())
    inner = OriginalForward(model, model.forward)
    names, parameters = [name for name, _ in inner.named_modules()], dict(inner.named_parameters())
    with inner.walked_once():
        monkeypatch.setattr(nn.Module, "named_modules", None)
        assert [name for name, _ in inner.named_modules()] == names
        assert [id(module) for module in inner.modules()] == [id(inner), *map(id, (model, *_parts(model)))]
        monkeypatch.undo()
        assert dict(inner.named_parameters()) == parameters
        assert dict(inner.named_parameters(prefix="x"))["x.module.0.layer.bias"] is first.layer.bias
    model.append(nn.Linear(1, 1))
    assert len(list(inner.modules())) == len(names) + 1


def _parts(model: nn.Sequential) -> list[nn.Module]:
    return [part for net in model for part in (net, *net.children())]


def test_another_model_of_the_routed_class_is_not_routed() -> None:
    net = Net()
    wrapper = route(net, Doubling)
    other = type(net)()
    assert torch.equal(other(_INPUTS), other.layer(_INPUTS))
    assert wrapper.calls == 0
    other_wrapper = route(other, Doubling)
    assert torch.equal(other(_INPUTS), 2 * other.layer(_INPUTS))
    net(_INPUTS)
    assert (wrapper.calls, other_wrapper.calls) == (1, 1)
