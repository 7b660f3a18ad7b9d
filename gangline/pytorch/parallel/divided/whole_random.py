"""Draws random numbers for divided parameters as one process would: for the whole tensor. Each rank keeps its part.

On the CPU torch's DTensor draws each part from the rank's own generator. Ranks of one seed then draw the same numbers,
so that the rows of a parameter repeat. Owns the replacements of DTensor's operators; `install` puts them there.

Also owns the other needs of initialisation: an operator of torch.nn.init that DTensor lacks, its initialisers that set
single numbers by their place, which DTensor would apply to one part, and a whole tensor that the trial has drawn itself
and copies into a parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

from gangline.pytorch.parallel.divided.operator_table import add_mesh, as_torch, is_own, replace

_ATEN = torch.ops.aten
_IN_PLACE = (
    _ATEN.normal_.default,
    _ATEN.uniform_.default,
    _ATEN.bernoulli_.float,
    _ATEN.exponential_.default,
    _ATEN.cauchy_.default,
    _ATEN.log_normal_.default,
    _ATEN.geometric_.default,
    _ATEN.random_.default,
    _ATEN.random_.to,
    getattr(_ATEN.random_, "from"),
)
_ALIKE = (
    _ATEN.rand_like.default,
    _ATEN.randn_like.default,
    _ATEN.randint_like.default,
    _ATEN.randint_like.low_dtype,
)
# Operators whose count of random numbers depends on shapes alone, and whose results on values.
_ON_VALUES = (_ATEN.bernoulli.default, _ATEN.native_dropout.default)
_BY_PLACE = ("eye_", "dirac_", "sparse_")
_installed: list[bool] = []


def install(mesh: DeviceMesh) -> None:
    """Draws whole tensors from now on for all DTensors of this mesh; those of other meshes stay with torch. May be
    called again.

    Draws are collective: all ranks make them in step, and keep the numbers of the chief.
    """
    add_mesh(mesh)
    if _installed:
        return
    _installed.append(True)
    for name in _BY_PLACE:
        setattr(nn.init, name, _on_whole(getattr(nn.init, name)))
    replace(_IN_PLACE, _draw_in_place)
    replace(_ALIKE, _draw_alike)
    replace(_ON_VALUES, _draw_on_values)
    replace([_ATEN.t_.default], _transpose_in_place)
    replace([_ATEN.copy_.default], _copy_whole)


def _on_whole(initialise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(initialise)
    def fill(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not is_own(tensor):
            return initialise(tensor, *args, **kwargs)
        assert isinstance(tensor, DTensor)
        with torch.no_grad():
            whole_tensor = initialise(_whole_like(tensor), *args, **kwargs)
            tensor.to_local().copy_(_divide(whole_tensor, tensor))
        return tensor

    return fill


def _transpose_in_place(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Transposes a divided matrix, which becomes whole on each rank. orthogonal_ does so with a wide matrix of its
    own."""
    tensor: DTensor = args[0]
    mesh = tensor.device_mesh
    whole_tensor = DTensor.from_local(tensor.full_tensor().t(), mesh, [Replicate()] * mesh.ndim, run_check=False)
    tensor._local_tensor, tensor._spec = whole_tensor._local_tensor, whole_tensor._spec
    return return_and_correct_aliasing(operator, args, kwargs, tensor)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _draw_in_place(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor: DTensor = args[0]
    whole_tensor = operator(_whole_like(tensor), *args[1:], **kwargs)
    # Autograd has passed the in-place operator by now, so the copy must not be recorded again.
    with torch.no_grad():
        tensor.to_local().copy_(_divide(whole_tensor, tensor))
    return tensor


def _copy_whole(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, source = args[:2]
    if isinstance(source, DTensor):
        return as_torch(operator, args, kwargs)
    whole_tensor = _whole_like(tensor)
    operator(whole_tensor, source, *args[2:], **kwargs)
    with torch.no_grad():
        tensor.to_local().copy_(_divide(whole_tensor, tensor))
    return tensor


def _draw_alike(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor: DTensor = args[0]
    whole_tensor = operator(_whole_like(tensor), *args[1:], **kwargs)
    with torch.no_grad():
        return distribute_tensor(whole_tensor, tensor.device_mesh, tensor.placements)


def _draw_on_values(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor: DTensor = args[0]
    with torch.no_grad():
        results = operator(tensor.full_tensor(), *args[1:], **kwargs)
        return tree_map_only(
            torch.Tensor, lambda drawn: distribute_tensor(drawn, tensor.device_mesh, tensor.placements), results
        )


def _whole_like(tensor: DTensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)


def _divide(whole_tensor: torch.Tensor, like: DTensor) -> torch.Tensor:
    """Returns this rank's part of the chief's numbers."""
    return distribute_tensor(whole_tensor, like.device_mesh, like.placements).to_local()
