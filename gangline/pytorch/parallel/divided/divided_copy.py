"""Copies models that torch's fully_shard has divided, which torch refuses to copy.

A copy is divided as its model is, and each rank copies its own parts, so nothing is sent. copy.deepcopy and
torch.optim.swa_utils.AveragedModel therefore work as with a whole model. All ranks make a copy in step; otherwise its
passes wait for ranks without the copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gangline.pytorch.parallel.divided.shard_meter import parameter_groups
from gangline.pytorch.parallel.divided.whole_parameter import whole_of

# Divides a copy. Arguments: the whole copy, and its modules that are gathered by themselves, inner ones first.
Divide = Callable[[nn.Module, Sequence[nn.Module]], None]

_divide_by_module: WeakKeyDictionary[nn.Module, Divide] = WeakKeyDictionary()
_KEY = "gangline: divided modules and their copies"
# Names that torch's fully_shard uses in a divided module's attributes and hooks.
_TORCH_PREFIX = "__composable_api_state_key"
_TORCH_HOOK = "FSDPParamGroup._register_state_dict_hooks"
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
)


class OwnHook:
    """Marks a hook of a module that copies of the module do not get."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._call(*arguments, **options)


def allow_copies(modules: Iterable[FSDPModule], divide: Divide) -> None:
    """Lets copy.deepcopy copy the modules of one divided model. divide: divides a copy in the same way."""
    for module in modules:
        assert isinstance(module, nn.Module)
        _divide_by_module[module] = divide
        # torch made this class for divided modules of the user's class, so the user's own class stays unchanged.
        type(module).__deepcopy__ = _copy  # type: ignore[attr-defined]


def _copy(module: Any, memo: dict[Any, Any]) -> nn.Module:
    if _KEY in memo:
        return _copy_structure(module, memo)
    memo[_KEY] = []
    parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.reshard()
    for parameter in list(module.parameters()):
        whole = whole_of(parameter)
        if whole is not None:
            whole.close()
    _put_stand_ins(module, parts, memo)
    twin = _copy_structure(module, memo)
    twin_by_id = {id(part): part_twin for part, part_twin in memo.pop(_KEY)}
    # modules() yields a module before its parts, and `divide` needs inner ones first.
    twins = [twin_by_id[id(part)] for part in reversed(parts)]
    _drop_hooks(twin)
    _divide_by_module[module](twin, twins[:-1])
    _copy_parts(module, twin)
    return twin


def _put_stand_ins(module: nn.Module, parts: Iterable[FSDPModule], memo: dict[Any, Any]) -> None:
    """Puts a whole parameter on the meta device, without memory, in the place of each parameter while the structure is
    copied."""
    groups = [group for part in parts for group in parameter_groups(part)]
    divided = [fsdp_parameter.sharded_param for group in groups for fsdp_parameter in group.fsdp_params]
    whole = [parameter for parameter in module.parameters() if whole_of(parameter) is not None]
    for parameter in (*divided, *whole):
        stand_in = torch.empty(parameter.size(), dtype=parameter.dtype, device="meta")
        memo[id(parameter)] = nn.Parameter(stand_in, requires_grad=parameter.requires_grad)


def _copy_structure(module: nn.Module, memo: dict[Any, Any]) -> nn.Module:
    """Copies the module as copy.deepcopy copies the user's module. Buffers are copied here."""
    user_class: type[nn.Module] = type(module).__mro__[2]
    twin = nn.Module.__new__(user_class)
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
    """Copies this rank's parts of all parameters. Parameters that modules share stay shared."""
    part_by_id: dict[int, nn.Parameter] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) not in part_by_id:
            part = parameter.detach().clone()
            part_by_id[id(parameter)] = nn.Parameter(part, requires_grad=parameter.requires_grad)
        path, _, last = name.rpartition(".")
        setattr(twin.get_submodule(path), last, part_by_id[id(parameter)])
