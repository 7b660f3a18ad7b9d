"""Parameters whose values other stages of a pipeline have: tensors without values, on the meta device.

A trial may use them as any others while no result needs their values. Random numbers for them are drawn as one process
draws them, and dropped. So the generators are the same on all stages, and each stage's own parameters get the numbers
that one process gives them.

A value that is read, or that would change a tensor of this stage, is refused in one line. torch alone returns arbitrary
numbers for some operations on a CPU tensor and one on the meta device. Made by Holding.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn import init
from torch.utils._pytree import tree_leaves, tree_map_only

from gangline.errors import GanglineError, invalid

_META = torch.device("meta")
_ORIGIN, _GRADIENT = "_gangline_origin", "_gangline_gradient"
# Functions whose count of random numbers depends on shapes alone.
_DRAWS = frozenset(
    [
        "normal_",
        "uniform_",
        "random_",
        "bernoulli_",
        "exponential_",
        "geometric_",
        "cauchy_",
        "log_normal_",
        "kaiming_uniform_",
        "rand",
        "randn",
        "randint",
        "randperm",
        "rand_like",
        "randn_like",
        "randint_like",
        "normal",
        "bernoulli",
        "multinomial",
        "dropout",
        "dropout_",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "alpha_dropout_",
        "feature_dropout",
        "feature_dropout_",
        "feature_alpha_dropout",
        "feature_alpha_dropout_",
        "native_dropout",
        "rrelu",
        "rrelu_",
        "gumbel_softmax",
    ]
)
# Functions that need values, beside those for which torch reports that a meta tensor has none.
_READS = frozenset(
    [
        "item",
        "tolist",
        "numpy",
        "__array__",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__complex__",
        "__reduce_ex__",
        "equal",
        "allclose",
        "is_nonzero",
        "poisson",
        "binomial",
        "_standard_gamma",
        "_sample_dirichlet",
    ]
)
_BACKWARD = frozenset(("backward", "grad"))
_CONVERSIONS = frozenset(("to", "cpu", "cuda", "type_as"))
_CHANGES = frozenset(
    [
        "__setitem__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__itruediv__",
        "__ifloordiv__",
        "__idiv__",
        "__imod__",
        "__ipow__",
        "__iand__",
        "__ior__",
        "__ixor__",
        "__ilshift__",
        "__irshift__",
    ]
)
# Modules of torch that leave a parameter out for being on the meta device.
_LEAVING_OUT = (vars(init), vars(sys.modules[nn.Module.__module__]))


@dataclass(frozen=True, slots=True)
class Origin:
    """The parameter from which an absent tensor comes."""

    name: str
    device: torch.device  # device on which one process would have it


class _Inside(threading.local):
    """A context in which absent tensors are on the meta device for torch, parts of which read the device in Python."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1


_inside = _Inside()


class Absent(torch.Tensor):
    """A tensor that is computed from parameters of other stages, or one of these."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _inside, torch._C.DisableTorchFunctionSubclass():
            if torch._C._len_torch_dispatch_stack():
                # The run of a part finds out by itself where it needs values, see ValueWatch.
                return func(*args, **(kwargs or {}))
            return _call(func, args, kwargs or {})

    @property
    def is_meta(self) -> bool:  # type: ignore[override]  # torch types it as an attribute
        caller = sys._getframe(1).f_globals
        return _inside.depth > 0 or not any(caller is module for module in _LEAVING_OUT)

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # as above
        """The device on which one process has the tensor, so that a trial makes others beside it."""
        return _META if _inside.depth else origin_of(self).device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]  # as above
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]  # as above
        return self.device.type == "cpu"

    def __hash__(self) -> int:
        # Through __torch_function__ it would take microseconds, and optimizers look up each parameter.
        return id(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = self.detach().clone()
        if isinstance(self, nn.Parameter):
            copied = nn.Parameter(copied, requires_grad=self.requires_grad)
        return memo.setdefault(id(self), copied)


class AbsentParameter(Absent, nn.Parameter):
    """A parameter of another stage."""

    @property
    def grad(self) -> Any:
        # No backward pass reaches it here. As for __hash__, this is quick.
        return vars(self).get(_GRADIENT)

    @grad.setter
    def grad(self, value: Any) -> None:
        vars(self)[_GRADIENT] = value

    @grad.deleter
    def grad(self) -> None:
        vars(self).pop(_GRADIENT, None)


def absent_from(parameter: nn.Parameter, origin: Origin) -> AbsentParameter:
    """Returns an absent parameter of the same shape, type, strides and attributes."""
    install()
    empty = torch.empty_like(parameter, device="meta")
    absent: AbsentParameter = torch.Tensor._make_subclass(AbsentParameter, empty, parameter.requires_grad)
    vars(absent).update({**own_attributes(parameter), _ORIGIN: origin})
    return absent


def own_attributes(parameter: torch.Tensor) -> dict[str, Any]:
    """Returns the attributes that a trial has given to a parameter, which may be absent."""
    return {name: value for name, value in vars(parameter).items() if name not in (_ORIGIN, _GRADIENT)}


def origin_of(absent: torch.Tensor) -> Origin:
    origin: Origin = vars(absent)[_ORIGIN]
    return origin


def refuse_read(absent: torch.Tensor) -> GanglineError:
    """Returns the error for a value of an absent tensor that the trial needs."""
    return _refuse_read(origin_of(absent))


def install() -> None:
    """Lets torch's truncated normal distribution draw for absent tensors. It repeats draws until all numbers are inside
    its bounds, so it needs the numbers that it has drawn. May be called again."""
    name = "_no_grad_trunc_normal_"
    original = getattr(init, name, None)
    if original is not None and not hasattr(original, "__wrapped__"):
        setattr(init, name, _on_stand_in(original))


def _on_stand_in(initialise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(initialise)
    def fill(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not isinstance(tensor, Absent):
            return initialise(tensor, *args, **kwargs)
        with _inside, torch._C.DisableTorchFunctionSubclass():
            initialise(_stand_in(tensor), *args, **kwargs)
        return tensor

    return fill


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", "")
    leaves = tree_leaves((args, kwargs))
    absent = next((leaf for leaf in leaves if isinstance(leaf, Absent)), None)
    if absent is None:
        # A class method, as a subclass's own constructor.
        return func(*args, **kwargs)
    origin = origin_of(absent)
    if name in _BACKWARD:
        raise _refuse_gradient(origin)
    if name in _READS or _changes_own(name, args, kwargs):
        raise _refuse_read(origin)
    if name in _DRAWS:
        return _draw(func, name, args, kwargs, origin)
    if name in _CONVERSIONS:
        return _convert(name, args, kwargs, absent)
    if any(_is_own(leaf) for leaf in leaves):
        args, kwargs = tree_map_only(torch.Tensor, _without_values, (args, kwargs))
    try:
        result = func(*args, **kwargs)
    except RuntimeError as error:
        if "meta" not in str(error).lower():
            raise
        raise _refuse_read(origin) from None
    return tree_map_only(torch.Tensor, lambda tensor: _marked(tensor, origin), result)


def _is_own(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, Absent)


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta") if _is_own(tensor) else tensor


def _changes_own(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether a function writes to a tensor of this stage."""
    written = tree_leaves(kwargs.get("out"))
    if name in _CHANGES or (name.endswith("_") and not name.endswith("__")):
        written += tree_leaves(args[:1])
    return any(map(_is_own, written))


def _marked(tensor: torch.Tensor, origin: Origin) -> torch.Tensor:
    if isinstance(tensor, Absent) or not tensor.is_meta:
        return tensor
    absent = tensor.as_subclass(Absent)
    vars(absent)[_ORIGIN] = origin
    return absent


def _stand_in(absent: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with values in the place of an absent one. torch draws in another order for other strides. One
    is a probability, a weight and a deviation."""
    room = torch.empty_strided(
        absent.size(), absent.stride(), dtype=absent.dtype, device=origin_of(absent).device, requires_grad=False
    )
    return room.fill_(1)


@torch.no_grad()
def _draw(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], origin: Origin) -> Any:
    pairs: dict[int, tuple[Any, torch.Tensor]] = {}

    def replace(absent: Absent) -> torch.Tensor:
        return pairs.setdefault(id(absent), (absent, _stand_in(absent)))[1]

    args, kwargs = tree_map_only(Absent, replace, (args, kwargs))
    result = func(*args, **kwargs)
    for absent, stand_in in pairs.values():
        if result is stand_in:
            return absent
    if name.endswith("_like"):
        # It depends on no value of another stage.
        return result
    return tree_map_only(torch.Tensor, lambda tensor: _marked(tensor.to("meta"), origin), result)


def _convert(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], absent: torch.Tensor) -> Any:
    """Changes the type of a tensor. Absent ones stay without values on any device."""
    if _is_own(args[0]):
        return args[0].to(device=origin_of(absent).device, dtype=absent.dtype)
    if name in ("cpu", "cuda"):
        return args[0]
    parse: Any = torch._C._nn._parse_to
    kwargs.pop("copy", None)
    dtype = args[1].dtype if name == "type_as" else parse(*args[1:], **kwargs)[1]
    return _marked(args[0].to(dtype=dtype or args[0].dtype), origin_of(args[0]))


def _refuse_read(origin: Origin) -> GanglineError:
    return invalid(
        "parallelism.absent_value",
        f"the trial needs values of {origin.name}, which another stage of the pipeline has; use them before "
        "context.wrap_model, or read them from context.get_full_model_state; in the place of a penalty on weights use "
        "the optimizer's weight_decay, or add its gradient to parameter.grad in the clip_grads of "
        "context.step_optimizer, for parameters that have one; or use ddp",
    )


def _refuse_gradient(origin: Origin) -> GanglineError:
    return invalid(
        "parallelism.own_gradients",
        f"the trial makes gradients of {origin.name} without context.backward, but another stage of the pipeline has "
        "it; call context.backward, and change parameter.grad in the clip_grads of context.step_optimizer; compute "
        "gradients by hidden states inside of the forward of a unit, or use ddp",
    )
