"""Corrects three operators of DTensor that are silently wrong for divided parameters and their gradients.

A number read from a sum over parts, as float(parameter.grad.norm()), would be one rank's part of the sum. It becomes
the whole number, so all ranks read it in step.

A view along the divided dimension, as weight[0], is a gathered copy. A change of it in place would be lost, and is
refused. Reading it is right.

A GradScaler's search for infinite gradients goes by the first gradient. Where that one is whole, each rank would know
of its own parts of the others only. Ranks would then disagree on whether to skip the step, and wait for one another.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from gangline.errors import invalid
from gangline.pytorch.parallel.divided.operator_table import as_torch, is_own, replace

_ATEN = torch.ops.aten
_VIEWS = (
    _ATEN.select.int,
    _ATEN.slice.Tensor,
    _ATEN.split.Tensor,
    _ATEN.split_with_sizes.default,
    _ATEN.diagonal.default,
    _ATEN.view.default,
)


def install() -> None:
    """Replaces the operators. May be called again."""
    replace([_ATEN._local_scalar_dense.default], _read_number)
    replace(_VIEWS, _view)
    replace([_ATEN._amp_foreach_non_finite_check_and_unscale_.default], _unscale)


def _read_number(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].detach().full_tensor().item()


def _view(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    views = as_torch(operator, args, kwargs)
    storage = args[0]._local_tensor.untyped_storage()._cdata
    for view in views if isinstance(views, list | tuple) else [views]:
        if view._local_tensor.untyped_storage()._cdata != storage:
            view._local_tensor = _GatheredCopy(view._local_tensor)
    return views


def _unscale(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """found: a number of this rank, which becomes 1 on all ranks where any part of a gradient is infinite."""
    gradients, found, *others = args
    parts = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    operator(parts, found, *others, **kwargs)
    divided = [gradient for gradient in gradients if is_own(gradient)]
    mesh = divided[0].device_mesh
    for dim in range(mesh.ndim):
        if not all(gradient.placements[dim].is_replicate() for gradient in divided):
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=mesh.get_group(dim))


class _GatheredCopy(torch.Tensor):
    """Keeps a tensor that may be read and not be changed in place. Views of it are such tensors too."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's own subclasses

    _content: torch.Tensor

    @staticmethod
    def __new__(cls, content: torch.Tensor) -> _GatheredCopy:
        copied: _GatheredCopy = torch.Tensor._make_wrapper_subclass(
            cls, content.size(), content.stride(), dtype=content.dtype, device=content.device
        )
        copied._content = content
        return copied

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch itself declares none
        schema = operator._schema
        changed = [value for value, spec in zip(args, schema.arguments, strict=False) if _is_changed(spec)]
        if any(isinstance(value, cls) for value in changed):
            raise invalid(
                "parallelism.part_changed",
                f"{schema.name.removeprefix('aten::')} changes rows or other parts of a divided parameter or gradient "
                "in place, which would be lost, as each rank has a part of its own; change the whole parameter, as "
                "in parameter.mul_(0.5), load new values with load_state_dict, or use ddp or zero1",
            )
        results = operator(*tree_map(_content_of, args), **tree_map(_content_of, kwargs or {}))
        is_view = any(spec.alias_info is not None for spec in schema.returns)
        return tree_map(_wrapped, results) if is_view else results

    def tolist(self) -> Any:
        return self._content.tolist()

    def numpy(self, **options: Any) -> Any:
        return self._content.numpy(**options)


def _is_changed(spec: Any) -> bool:
    return spec.alias_info is not None and spec.alias_info.is_write


def _content_of(value: Any) -> Any:
    return value._content if isinstance(value, _GatheredCopy) else value


def _wrapped(value: Any) -> Any:
    is_plain = isinstance(value, torch.Tensor) and not isinstance(value, DTensor | _GatheredCopy)
    return _GatheredCopy(value) if is_plain else value
