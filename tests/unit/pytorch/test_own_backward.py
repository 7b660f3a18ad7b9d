"""A backward pass past context.backward is refused where it reaches a wrapped model, and costs other passes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gangline.errors import GanglineError
from gangline.pytorch.trial.backward import PASSES, OwnBackward


@pytest.fixture
def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))


@pytest.fixture
def watch(net: nn.Sequential) -> OwnBackward:
    made = OwnBackward(lambda: True)
    made.watch(net)
    return made


@pytest.fixture
def allowed() -> Iterator[None]:
    PASSES.depth += 1
    yield
    PASSES.depth -= 1


def _num_hooks(net: nn.Module) -> int:
    return sum(len(parameter._post_accumulate_grad_hooks or ()) for parameter in net.parameters())


def test_torch_calls_its_engine_by_the_name_that_is_watched(watch: OwnBackward) -> None:
    """The name is torch's own affair: another release may have another one."""
    for module in (torch.autograd, torch.autograd.graph):
        assert hasattr(vars(module)["_engine_run_backward"], "__wrapped__")
    tensor = torch.ones(1, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        called: list[bool] = []
        patch.setattr(torch.autograd, "_engine_run_backward", lambda *_, **options: called.append(bool(options)))
        tensor.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.autograd.backward(tensor.sum())
    assert called == [True, True]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_pass_of_the_trials_own_is_refused_whatever_it_reaches(
    net: nn.Sequential, watch: OwnBackward, layer: int
) -> None:
    with pytest.raises(GanglineError, match="made gradients without context"):
        [*net.parameters()][2 * layer].sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert _num_hooks(net) == 0


def test_pass_beside_the_models_is_none_of_ours(net: nn.Sequential, watch: OwnBackward) -> None:
    other = nn.Linear(2, 1)
    other(torch.ones(1, 2)).sum().backward()
    assert other.weight.grad is not None
    net(torch.ones(1, 2)).sum()
    assert torch.autograd.grad(net(torch.ones(1, 2)).sum(), [[*net.parameters()][2]])[0].shape == (2, 2)
    assert _num_hooks(net) == 0


def test_pass_of_ours_may_begin_others(net: nn.Sequential, watch: OwnBackward, allowed: None) -> None:
    inputs = torch.ones(1, 2, requires_grad=True)
    checkpoint(net, inputs, use_reentrant=True).sum().backward()
    assert net[1].weight.grad is not None


def test_watch_that_is_gone_refuses_nothing(net: nn.Sequential) -> None:
    OwnBackward(lambda: True).watch(net)
    net(torch.ones(1, 2)).sum().backward()
    assert net[1].weight.grad is not None


def test_look_stays_where_a_tracer_takes_the_engines_name_for_a_while(net: nn.Sequential, watch: OwnBackward) -> None:
    with torch.compiler._patch_engine_backward():
        pass
    with pytest.raises(GanglineError, match="made gradients without context"):
        net(torch.ones(1, 2)).sum().backward()


def test_parameters_that_are_computed_from_others_are_left_out(net: nn.Sequential) -> None:
    """As those of a model that a trial trains through its own steps."""
    made = OwnBackward(lambda: True)
    made.watch(net)
    parameters: dict[str, torch.Tensor] = net[0]._parameters  # type: ignore[assignment]
    parameters["weight"] = parameters["weight"] * 2
    with pytest.raises(GanglineError, match="made gradients without context"):
        net(torch.ones(1, 2)).sum().backward()
    assert _num_hooks(net) == 0
