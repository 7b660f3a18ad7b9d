"""Copies of models that torch's fully_shard has divided, which torch refuses to copy.

A copy is divided as its model is, and each rank copies its own parts: nothing is sent. So copy.deepcopy and
torch.optim.swa_utils.AveragedModel work as with a whole model. All ranks make a copy in step, or its passes find no
other rank.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gangline.pytorch.parallel.shard_meter import parameter_groups

# Divides a copy: the whole copy, and its parts that are gathered by themselves, inner ones first.
Divide = Callable[[nn.Module, Sequence[nn.Module]], None]

_divide_by_module: WeakKeyDictionary[nn.Module, Divide] = WeakKeyDictionary()
_KEY = "gangline: divided modules and their copies"
# What torch puts into a divided module's attributes.
_TORCH_PREFIX = "__composable_api_state_key"
_TORCH_HOOK = "FSDPParamGroup._register_state_dict_hooks"
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
)


class OwnHook:
    """A hook of a module that its copies do not take over."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._call(*arguments, **options)


def allow_copies(modules: Iterable[FSDPModule], divide: Divide) -> None:
    """modules: of one divided model."""
    for module in modules:
        assert isinstance(module, nn.Module)
        _divide_by_module[module] = divide
        # The class is torch's own, made for divided modules of the user's class.
        type(module).__deepcopy__ = _copy  # type: ignore[attr-defined]


def _copy(module: Any, memo: dict[Any, Any]) -> nn.Module:
    if _KEY in memo:
        return _copy_structure(module, memo)
    memo[_KEY] = []
    parts = [one for one in module.modules() if isinstance(one, FSDPModule)]
    for part in parts:
        part.reshard()
    _put_stand_ins(parts, memo)
    twin = _copy_structure(module, memo)
    twin_by_id = {id(part): other for part, other in memo.pop(_KEY)}
    # A module comes before its parts.
    twins = [twin_by_id[id(part)] for part in reversed(parts)]
    _drop_hooks(twin)
    _divide_by_module[module](twin, twins[:-1])
    _copy_parts(module, twin)
    return twin


def _put_stand_ins(parts: Iterable[FSDPModule], memo: dict[Any, Any]) -> None:
    """While the structure is copied a parameter is a whole one without memory."""
    for part in parts:
        for group in parameter_groups(part):
            for held in group.fsdp_params:
                parameter = held.sharded_param
                whole = torch.empty(parameter.size(), dtype=parameter.dtype, device="meta")
                memo[id(parameter)] = nn.Parameter(whole, requires_grad=parameter.requires_grad)


def _copy_structure(module: nn.Module, memo: dict[Any, Any]) -> nn.Module:
    """As copy.deepcopy of the user's module. Buffers are copied here."""
    kind: type[nn.Module] = type(module).__mro__[2]
    twin = nn.Module.__new__(kind)
    memo[id(module)] = twin
    memo[_KEY].append((module, twin))
    state = {name: value for name, value in vars(module).items() if not name.startswith(_TORCH_PREFIX)}
    state |= {name: type(state[name])(_kept(state[name])) for name in _HOOKS}
    for name, value in state.items():
        vars(twin)[name] = copy.deepcopy(value, memo)
    return twin


def _drop_hooks(twin: nn.Module) -> None:
    for module in twin.modules():
        for name in _HOOKS:
            hooks = vars(module)[name]
            vars(module)[name] = type(hooks)(_kept(hooks))


def _kept(hooks: dict[int, Any]) -> list[tuple[int, Any]]:
    return [(number, hook) for number, hook in hooks.items() if not _is_of_division(getattr(hook, "hook", hook))]


def _is_of_division(hook: Any) -> bool:
    owner = type(getattr(hook, "__self__", None)).__module__
    is_of_torch = owner.startswith("torch.distributed.fsdp") or _TORCH_HOOK in getattr(hook, "__qualname__", "")
    return is_of_torch or isinstance(hook, OwnHook)


def _copy_parts(module: nn.Module, twin: nn.Module) -> None:
    """This rank's parts of all parameters, shared ones shared."""
    part_by_id: dict[int, nn.Parameter] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) not in part_by_id:
            part = parameter.detach().clone()
            part_by_id[id(parameter)] = nn.Parameter(part, requires_grad=parameter.requires_grad)
        path, _, last = name.rpartition(".")
        setattr(twin.get_submodule(path), last, part_by_id[id(parameter)])
