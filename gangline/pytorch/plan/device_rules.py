"""Lets the meta device compute as CPUs or GPUs do, where torch would let it compute in another way.

- torch.autocast does nothing on the meta device. It has one set of rules for each kind of device: operations that
  compute in half precision, operations that compute in fp32, and operations that take the widest type of their inputs.
- Attention has fused kernels on CPUs and GPUs. On the meta device torch takes its plain form, which keeps the square
  matrix.

The rules act where torch's own rules of autocast act, above autograd, so that the backward pass has the same tensors.
This uses interfaces of torch's dispatcher that torch does not document, and the dispatch key of a device that no build
of torch for CPUs or CUDA has.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any, Self

import torch
from torch import nn
from torch.library import Library, fallthrough_kernel
from torch.utils._pytree import tree_leaves, tree_map

_DEVICE, _KEY = "hpu", "AutocastHPU"
# The type in which an operation computes under autocast, the same on all devices that have a rule for it: half
# precision, or the widest type of its inputs. Others of torch's lists compute in fp32. binary_cross_entropy fails on
# GPUs, with torch's own message when the trial trains. After torch's page "Autocast Op Reference".
_TYPES = {
    "half": (
        "_addmm_activation _convolution _cudnn_rnn _native_multi_head_attention _scaled_dot_product_flash_attention "
        "_thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d "
        "conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution cudnn_convolution "
        "cudnn_convolution_transpose einsum gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell matmul "
        "mkldnn_rnn_layer mm mv prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention"
    ),
    "widest": (
        "addcdiv addcmul atan2 bilinear cat cross dot grid_sampler index_copy index_put scatter_add stack tensordot "
        "vdot"
    ),
    "none": "binary_cross_entropy",
}
_TYPE_OF = {name: kind for kind, names in _TYPES.items() for name in names.split()}
_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_fused_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_HALF_TYPES = (torch.float16, torch.bfloat16)


class DeviceRules:
    """A context in which torch.autocast for `cpu` or `cuda` acts on meta tensors, and attention is fused. is_gpu: whose
    rules hold. on_copy: called with each copy of a parameter in half precision, whose bytes do not depend on the number
    of records.

    A copy is made once for a forward pass, as torch makes it, and in the backward pass once for each use."""

    def __init__(self, is_gpu: bool, on_copy: Callable[[torch.Tensor], None] = lambda copy: None) -> None:
        self._is_gpu = is_gpu
        self._on_copy = on_copy
        self._copies: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._copies.clear)
            library: Any = stack.enter_context(_library("aten"))
            for base, overload in _operations("AutocastCUDA" if self._is_gpu else "AutocastCPU"):
                library.impl(overload, self._kernel_of(base, overload), _KEY)
            others: Any = stack.enter_context(_library("_"))
            others.fallback(fallthrough_kernel, _KEY)
            # Every thread leaves keys of autocast out until this.
            torch.set_autocast_enabled(_DEVICE, True)
            stack.callback(torch.set_autocast_enabled, _DEVICE, False)
            stack.enter_context(torch._C._IncludeDispatchKeyGuard(getattr(torch._C.DispatchKey, _KEY)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.close()

    def to_half(self, values: Any) -> Any:
        """Returns a nest of values as an operation gets them that computes in half precision."""
        half = _autocast_type()
        return values if half is None else tree_map(lambda value: self._cast(value, half), values)

    def end_forward(self) -> None:
        """Drops the copies that a region of autocast keeps until it ends."""
        self._copies.clear()

    def _kernel_of(self, base: str, overload: Any) -> Callable[..., Any]:
        key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))
        names = [argument.name for argument in overload._schema.arguments]
        place = names.index("dtype") if "dtype" in names else None
        kind = _TYPE_OF.get(base, "full")
        compute = partial(_attention, self._is_gpu) if base == "scaled_dot_product_attention" else overload

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(key):
                half = _autocast_type()
                if half is None:
                    return compute(*args, **kwargs)
                if kind == "full" and place is not None:
                    return overload(*_with_full_result(args, kwargs, place), **kwargs)
                is_half = kind == "half" or (kind == "widest" and not _has_full((args, kwargs)))
                to_type = half if is_half else torch.float32
                args, kwargs = tree_map(lambda value: self._cast(value, to_type), (args, kwargs))
                return compute(*args, **kwargs)

        return kernel

    def _cast(self, value: Any, to_type: torch.dtype) -> Any:
        if not _is_cast(value) or value.dtype is to_type:
            return value
        is_full = value.dtype is torch.float32
        if not (to_type in _HALF_TYPES and is_full and value.requires_grad and value.is_leaf):
            return value.to(to_type)
        reference, copy = self._copies.get(id(value), (None, None))
        if copy is None or copy.dtype is not to_type or reference is None or reference() is not value:
            copy = value.to(to_type)
            if isinstance(value, nn.Parameter):
                self._on_copy(copy)
            # In a backward pass a region ends with each part that is computed again.
            if torch._C._current_graph_task_id() == -1:
                self._copies[id(value)] = weakref.ref(value), copy
        return copy


def _operations(key: str) -> Iterator[tuple[str, Any]]:
    """Yields the operations that torch's autocast changes on a device: the name without the overload, and a callable.
    Attention is one of them on all devices."""
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        base, _, overload = name.removeprefix("aten::").partition(".")
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key) and _TYPE_OF.get(base) != "none":
            yield base, getattr(getattr(torch.ops.aten, base), overload or "default")


@contextmanager
def _library(namespace: str) -> Iterator[Library]:
    library = Library(namespace, "IMPL")  # type: ignore[no-untyped-call]  # torch leaves it untyped
    try:
        yield library
    finally:
        library._destroy()  # type: ignore[no-untyped-call]  # torch leaves it untyped


@contextmanager
def regions_for_meta() -> Iterator[None]:
    """Lets torch.autocast("meta") make a region of the CPU, because torch knows no such region."""
    original = torch.autocast.__init__

    @wraps(original)
    def make(region: torch.autocast, device_type: str, *arguments: Any, **options: Any) -> None:
        original(region, "cpu" if device_type == "meta" else device_type, *arguments, **options)

    torch.autocast.__init__ = make  # type: ignore[method-assign,assignment]  # put back below
    try:
        yield
    finally:
        torch.autocast.__init__ = original  # type: ignore[method-assign]  # the one of before


def _autocast_type() -> torch.dtype | None:
    """Returns the type of the region of autocast that is open; None outside of one."""
    kinds = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
    return torch.get_autocast_dtype(kinds[0]) if kinds else None


def _attention(is_gpu: bool, *args: Any, **kwargs: Any) -> Any:
    """Calls a fused kernel where the device has one, else the plain form. GPUs have them for dropout, for several
    queries of one key, and for masks without a gradient. Arguments are those of scaled_dot_product_attention."""
    given = dict(zip(_ATTENTION, args, strict=False)) | kwargs
    query, key, value = (given[name] for name in _ATTENTION[:3])
    mask, dropout = given.get("attn_mask"), given.get("dropout_p")
    if is_gpu and given.get("enable_gqa") and query.dim() == 4:
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
        given |= {"key": key, "value": value}
    is_fused = not mask.requires_grad if is_gpu and mask is not None else mask is None and (is_gpu or not dropout)
    if query.is_meta and is_fused and query.dim() == 4 and query.shape[:2] == key.shape[:2]:
        is_causal, scale = bool(given.get("is_causal")), given.get("scale")
        return _fused_attention(query, key, value, 0.0, is_causal, scale=scale)[0]
    return torch.ops.aten.scaled_dot_product_attention(**given)


def _with_full_result(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> tuple[Any, ...]:
    """Sets the type of the result, where an operation on half precision leaves it open. Returns the arguments. place:
    of the type among them."""
    if not _is_half(args[0]):
        return args
    if len(args) > place:
        return (*args[:place], torch.float32 if args[place] is None else args[place], *args[place + 1 :])
    kwargs["dtype"] = torch.float32 if kwargs.get("dtype") is None else kwargs["dtype"]
    return args


def _is_cast(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.is_meta and value.is_floating_point() and value.dtype != torch.float64
    )


def _is_half(value: Any) -> bool:
    return _is_cast(value) and value.dtype in _HALF_TYPES


def _has_full(values: Any) -> bool:
    return any(_is_cast(value) and value.dtype is torch.float32 for value in tree_leaves(values))
