"""Draws random numbers for divided parameters as one process would: for the whole tensor. Each rank keeps its part.

torch's DTensor draws each part from the rank's own generator on the CPU. Ranks of one seed then draw the same numbers,
so that the rows of a parameter repeat. Owns the handlers in DTensor's table of operators; `install` puts them there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

_ATEN = torch.ops.aten
_IN_PLACE = (_ATEN.normal_.default, _ATEN.uniform_.default, _ATEN.bernoulli_.float)
_ALIKE = (_ATEN.rand_like.default, _ATEN.randn_like.default)
_meshes: list[DeviceMesh] = []


def install(mesh: DeviceMesh) -> None:
    """From now on for all DTensors of this mesh; those of other meshes stay torch's business. May be called again.

    Draws are collective: all ranks make them in step, and keep the numbers of the chief.
    """
    if mesh not in _meshes:
        _meshes.append(mesh)
    handlers = _handlers()
    handlers.update(dict.fromkeys(_IN_PLACE, _draw_in_place))
    handlers.update(dict.fromkeys(_ALIKE, _draw_alike))


def _draw_in_place(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor: DTensor = args[0]
    if tensor.device_mesh not in _meshes:
        return _as_torch(operator, args, kwargs)
    whole = operator(_whole_like(tensor), *args[1:], **kwargs)
    # As the in-place operator itself, which autograd has let through by now.
    with torch.no_grad():
        tensor.to_local().copy_(_divide(whole, tensor))
    return tensor


def _draw_alike(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor: DTensor = args[0]
    if tensor.device_mesh not in _meshes:
        return _as_torch(operator, args, kwargs)
    whole = operator(_whole_like(tensor), *args[1:], **kwargs)
    with torch.no_grad():
        return distribute_tensor(whole, tensor.device_mesh, tensor.placements)


def _whole_like(tensor: DTensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)


def _divide(whole: torch.Tensor, like: DTensor) -> torch.Tensor:
    """This rank's part of the chief's numbers."""
    return distribute_tensor(whole, like.device_mesh, like.placements).to_local()


def _as_torch(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    handlers = _handlers()
    own = handlers.pop(operator)
    try:
        return operator(*args, **kwargs)
    finally:
        handlers[operator] = own


def _handlers() -> dict[Any, Any]:
    # torch has no other place for an operator of one's own.
    found: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    return found
