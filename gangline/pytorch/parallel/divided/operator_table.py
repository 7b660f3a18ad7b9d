"""Replaces operators of torch's DTensor for the tensors of divided models. Tensors of other meshes keep torch's own.

Owns the list of the meshes of divided models. Used by the modules that define the replacements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

# Arguments: the operator, its positional and its named arguments. The first positional argument is a DTensor or a list
# with one.
Replacement = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_meshes: list[DeviceMesh] = []
# torch's own entries for replaced operators; None for those without one. Never cleared.
_torch_handlers: dict[Any, Any] = {}


def add_mesh(mesh: DeviceMesh) -> None:
    """Makes the replacements hold for the DTensors of this mesh. May be called again."""
    if mesh not in _meshes:
        _meshes.append(mesh)


def is_own(tensor: Any) -> bool:
    """Returns whether a tensor is a DTensor of one of these meshes."""
    return isinstance(tensor, DTensor) and tensor.device_mesh in _meshes


def replace(operators: Iterable[Any], replacement: Replacement) -> None:
    """Puts a replacement in the place of operators."""

    def handle(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = args[0] if isinstance(args[0], list | tuple) else args[:1]
        chosen = replacement if any(is_own(tensor) for tensor in tensors) else as_torch
        return chosen(operator, args, kwargs)

    handlers = _handlers()
    for operator in operators:
        _torch_handlers.setdefault(operator, handlers.get(operator))
        handlers[operator] = handle


def as_torch(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls an operator as torch defines it."""
    handler = _torch_handlers.get(operator)
    if handler is not None:
        return handler(operator, args, kwargs)
    handlers = _handlers()
    own = handlers.pop(operator)
    try:
        return operator(*args, **kwargs)
    finally:
        handlers[operator] = own


def _handlers() -> dict[Any, Any]:
    # torch has no public place to register such an operator.
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    return handlers
