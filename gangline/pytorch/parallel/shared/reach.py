"""Finds out how far an optimizer's update of a number reaches: to that number alone, to its tensor, or beyond it.

A strategy may divide an optimizer's work over ranks where no update reaches over the division. torch's own optimizers
are known. Any other one is tried out with a twin, an optimizer of the same class and settings. The twin steps small
tensors together, each by itself, and in two halves, and the three results are compared. The twin shares no state with
the optimizer.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.optim import Optimizer

from gangline.errors import invalid

_BY_ELEMENT = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.NAdam,
    optim.RAdam,
    optim.Adamax,
    optim.Adagrad,
    optim.Adadelta,
    optim.RMSprop,
    optim.Rprop,
    optim.ASGD,
    optim.SparseAdam,
)
_BY_TENSOR = (optim.Adafactor, optim.Muon)
# Three rounds of the gradients' four sizes (_samples), so that an adapting optimizer adapts.
_STEPS = 12
# Shape of a sample: rows, which are cut into halves, and the size of every other dimension.
_MOST_ROWS = 6
_OTHER_SIZE = 4
# Learning rate of the twin, in the place of the user's, which a warm-up may begin at 0.
_RATE = 0.05
# Relative to the change of a number. Differences by the order of additions are smaller.
_TOLERANCE = 1e-6
# Types that a twin can copy without sharing a parameter.
_PLAIN = (str, int, float, complex, bool, bytes, type(None), torch.dtype, torch.device)


class Reach(StrEnum):
    """Names what an update depends on beside the number that it changes. JOINED: all parameters in one tensor of the
    optimizer's. UNKNOWN, FAILED: not found out, see reach_of."""

    ELEMENT = "element"
    TENSOR = "tensor"
    OPTIMIZER = "optimizer"
    JOINED = "joined"
    UNKNOWN = "unknown"
    FAILED = "failed"


def check_reach(strategy: str, optimizer: Optimizer) -> Reach:
    """Returns ELEMENT or TENSOR. Raises GanglineError `parallelism.optimizer` where ranks that each step a part of the
    parameters would get other numbers than one process. All ranks call it in step."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    device = next((parameter.device for parameter in parameters), torch.device("cpu"))
    reach, reason = reach_of(optimizer, device)
    if type(optimizer) not in (*_BY_ELEMENT, *_BY_TENSOR):
        reach, reason = _agree(reach, reason, device)
    conflict = reach_conflict(strategy, optimizer, reach, reason)
    if conflict is not None:
        raise invalid("parallelism.optimizer", conflict)
    return reach


def _agree(reach: Reach, reason: str, device: torch.device) -> tuple[Reach, str]:
    """Returns the answer of the rank whose reach is the last one in the order of Reach. A rank that alone refused an
    optimizer would leave the others waiting, and a trial step may fail on one kind of device."""
    if not dist.is_initialized():
        return reach, reason
    order = list(Reach)
    last = torch.tensor([order.index(reach)], device=device)
    dist.all_reduce(last, op=dist.ReduceOp.MAX)
    agreed = order[int(last)]
    return agreed, reason if agreed is reach else "another rank has not, see its log"


def reach_conflict(strategy: str, optimizer: Optimizer, reach: Reach, reason: str) -> str | None:
    """Returns why a strategy cannot divide the optimizer's work; None where it can. reach, reason: from reach_of."""
    name = type(optimizer).__name__
    if reach is Reach.JOINED:
        return f"{name} joins all parameters in one row, which {strategy} divides over ranks; use ddp"
    if reach is Reach.OPTIMIZER:
        return (
            f"{name} updates a parameter differently when it holds other parameters too, but with {strategy} each rank "
            "steps a part of the parameters; use ddp"
        )
    if reach in (Reach.UNKNOWN, Reach.FAILED):
        return (
            f"{strategy} divides an optimizer's work over ranks and could not find out whether {name} updates each "
            f"parameter by itself ({reason}); use ddp"
        )
    return None


def reach_of(optimizer: Optimizer, device: torch.device) -> tuple[Reach, str]:
    """Returns the reach, and the reason where it is UNKNOWN or FAILED: the twin cannot be made, or its trial steps
    fail on this device."""
    if isinstance(optimizer, optim.LBFGS):
        return Reach.JOINED, ""
    if type(optimizer) in _BY_ELEMENT:
        return Reach.ELEMENT, ""
    if type(optimizer) in _BY_TENSOR:
        return Reach.TENSOR, ""
    odd = _odd_attribute(optimizer)
    if odd is not None:
        return Reach.UNKNOWN, f"its attribute {odd} may hold parameters"
    devices = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"):
            return _try_out(optimizer, device)
    except Exception as error:  # noqa: BLE001  the step is a user's code, which may raise anything
        return Reach.FAILED, f"its step failed on small tensors: {type(error).__name__}: {error}"


def _try_out(optimizer: Optimizer, device: torch.device) -> tuple[Reach, str]:
    samples = _samples(optimizer, device)
    count = len(samples)
    together = _changes(optimizer, samples, range(count))
    if not any(bool(change.any()) for change in together):
        return Reach.FAILED, f"it changed nothing in {_STEPS} steps on small tensors"
    for chosen in {0, count - 1} if count > 1 else ():
        (alone,) = _changes(optimizer, samples, [chosen])
        if not _is_alike(alone, together[chosen]):
            return Reach.OPTIMIZER, ""
    halves = _changes(optimizer, [half for sample in samples for half in sample.halves()], range(2 * count))
    joined = [torch.cat(halves[2 * place : 2 * place + 2]) for place in range(count)]
    is_by_element = all(_is_alike(*pair) for pair in zip(joined, together, strict=True))
    return Reach.ELEMENT if is_by_element else Reach.TENSOR, ""


def _is_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.allclose(first, second, rtol=_TOLERANCE, atol=0.0, equal_nan=True)


class _Sample:
    """Sample for a trial step: a small tensor of one of the optimizer's groups, and its gradient in each step."""

    def __init__(self, group: int, value: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
        self.group = group
        self.value = value
        self.gradients = gradients

    def halves(self) -> list[_Sample]:
        middle = (len(self.value) + 1) // 2
        return [
            _Sample(self.group, self.value[part].clone(), [gradient[part].clone() for gradient in self.gradients])
            for part in (slice(middle), slice(middle, None))
        ]


def _samples(optimizer: Optimizer, device: torch.device) -> list[_Sample]:
    """Returns two samples for each group and number of dimensions. Gradients keep a direction and change in size, so
    that an optimizer that adapts or clips does so."""
    generator = torch.Generator().manual_seed(0)
    samples = []
    for number, group in enumerate(optimizer.param_groups):
        for dims in dict.fromkeys(max(1, parameter.dim()) for parameter in group["params"]):
            for _ in range(2):
                shape = (_MOST_ROWS, *[_OTHER_SIZE] * (dims - 1))
                draws = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(_STEPS + 2)]
                value, direction = draws[0], draws[1]
                gradients = [
                    (direction + 0.3 * noise) * 10.0 ** (place % 4 - 2) for place, noise in enumerate(draws[2:])
                ]
                samples.append(_Sample(number, value.to(device), [gradient.to(device) for gradient in gradients]))
    return samples


def _changes(optimizer: Optimizer, samples: Sequence[_Sample], chosen: Sequence[int]) -> list[torch.Tensor]:
    """Returns how a fresh twin of the optimizer changes the chosen samples in all steps."""
    torch.manual_seed(0)
    parameters = {place: nn.Parameter(samples[place].value.clone()) for place in chosen}
    twin = _twin(optimizer, [(samples[place].group, parameter) for place, parameter in parameters.items()])
    for step in range(_STEPS):
        for place, parameter in parameters.items():
            parameter.grad = samples[place].gradients[step].clone()
        twin.step()
    return [parameter.detach() - samples[place].value for place, parameter in parameters.items()]


def _twin(optimizer: Optimizer, members: Sequence[tuple[int, nn.Parameter]]) -> Optimizer:
    """Returns an optimizer with the same settings, no state, and other parameters."""
    twin: Optimizer = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if name.startswith("_optimizer_"):
            vars(twin)[name] = OrderedDict()
        elif name not in ("state", "param_groups", "step"):
            vars(twin)[name] = copy.deepcopy(value)
    twin.state = defaultdict(dict)
    # Some optimizers keep settings in their state, under a string as key.
    state: dict[Any, Any] = optimizer.state
    vars(twin)["state"].update({key: copy.deepcopy(value) for key, value in state.items() if isinstance(key, str)})
    twin.param_groups = []
    for number, group in enumerate(optimizer.param_groups):
        own = [parameter for place, parameter in members if place == number]
        if own:
            settings = {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
            # A warm-up may begin at 0, and the twin would then change nothing.
            if "lr" in settings:
                settings["lr"] = _RATE
            twin.param_groups.append({**settings, "params": own})
    return twin


def _odd_attribute(optimizer: Optimizer) -> str | None:
    """Returns the name of an attribute that the optimizer's class has added and that a twin cannot copy; None without
    one."""
    for name, value in vars(optimizer).items():
        is_own = not name.startswith("_optimizer_") and name not in ("state", "param_groups", "step", "defaults")
        if is_own and not _is_plain(value):
            return name
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, [*value.keys(), *value.values()]))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    is_function: Callable[[Any], bool] = callable
    if isinstance(value, nn.Module | Optimizer):
        return False
    is_small = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter) and value.numel() <= 1
    return isinstance(value, _PLAIN) or is_small or (is_function(value) and not hasattr(value, "__self__"))
