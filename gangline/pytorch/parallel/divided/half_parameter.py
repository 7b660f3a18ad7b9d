"""A whole parameter as a model sees it, of its own type, though its values may have been gathered in half precision.

torch.autocast asks for a copy of a parameter in half precision, and gets the gathered values themselves, which are the
same bit for bit. Every other operation gets the values of the parameter's own type, which are gathered when the first
one needs them. Used by half_gathering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch.utils._pytree import tree_map_only

HALF_TYPES = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten


class Values:
    """The values of one whole parameter while they are gathered.

    gathered: of the parameter's own type, or of `half`. half: None for the own type. fetch: returns the values of the
    own type; all ranks call it in step. uses: gets the types of half precision in which the parameter
    is used, and None for its own type.
    """

    def __init__(
        self,
        gathered: torch.Tensor,
        half: torch.dtype | None,
        fetch: Callable[[], torch.Tensor],
        uses: set[torch.dtype | None],
    ) -> None:
        self.gathered = gathered
        self.half = half
        self.uses = uses
        self._fetch = fetch
        self._whole: torch.Tensor | None = None
        # With the version that each had.
        self._lent: list[tuple[torch.Tensor, int]] = []
        self._is_changed = False

    @property
    def is_changed(self) -> bool:
        """Whether an operation has changed the values in place."""
        return self._is_changed or any(lent._version != version for lent, version in self._lent)

    def note_change(self) -> None:
        self._is_changed = True

    def whole(self) -> torch.Tensor:
        """Returns the values of the parameter's own type."""
        self.uses.add(None)
        if self.half is None:
            return self.gathered
        if self._whole is None:
            self._whole = self._fetch()
        return self._whole

    def cast(self, half: torch.dtype) -> torch.Tensor:
        """Returns the values in half precision. A copy would be the same, and a change of it is noted."""
        if half is not self.half:
            if self.half is not None:
                return self.whole().to(half)
            self.uses.add(half)
            return self.gathered.to(half)
        self.uses.add(half)
        lent = self.gathered.detach()
        self._lent.append((lent, lent._version))
        return lent

    def free(self) -> None:
        """Drops what was fetched and lent. Called when the gathered values are freed."""
        self._whole, self._is_changed = None, False
        self._lent.clear()


class WholeParameter(torch.Tensor):
    """A parameter of a module. It has no memory of its own."""

    whole_values: Values
    _is_param = True  # torch's own mark of a parameter

    @staticmethod
    def __new__(cls, values: Values, like: torch.Tensor) -> Self:
        """like: a tensor of the parameter's shape, with its type, and with requires_grad."""
        gathered = values.gathered
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls,
            gathered.size(),
            strides=gathered.stride(),
            dtype=like.dtype,
            device=gathered.device,
            requires_grad=like.requires_grad,
        )
        made.whole_values = values
        return made

    def __init__(self, values: Values, like: torch.Tensor) -> None: ...

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch asks for

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares no class method
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        first = args[0] if args else None
        if isinstance(first, WholeParameter):
            if func is _aten._to_copy.default and set(options) == {"dtype"} and options["dtype"] in HALF_TYPES:
                return first.whole_values.cast(options["dtype"])
            if func is _aten.detach.default:
                return WholeParameter(first.whole_values, torch.empty((), dtype=first.dtype, device="meta"))
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if isinstance(value, WholeParameter) and argument.alias_info is not None and argument.alias_info.is_write:
                value.whole_values.note_change()
        whole_args, options = tree_map_only(
            WholeParameter, lambda each: each.whole_values.whole(), (tuple(args), options)
        )
        result = func(*whole_args, **options)
        return first if isinstance(first, WholeParameter) and result is whole_args[0] else result


def was_changed(parameter: torch.Tensor) -> bool:
    """Returns whether an operation has changed a whole parameter in place, which changes no part of it."""
    return isinstance(parameter, WholeParameter) and parameter.whole_values.is_changed


def gathered_of(parameter: torch.Tensor) -> torch.Tensor:
    """Returns the gathered values of a whole parameter."""
    return parameter.whole_values.gathered if isinstance(parameter, WholeParameter) else parameter
