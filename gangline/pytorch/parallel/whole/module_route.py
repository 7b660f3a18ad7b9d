"""Lets user code call its bare module while the forward pass goes through a wrapper.

`route(model, wrap)` gives the model's class a subclass whose forward goes through a wrapper such as
DistributedDataParallel. The wrapper calls the original forward in turn. The model keeps its identity, its attributes
and the names in its state_dict. A copy or a pickle of it is an instance of the original class and trains by itself.
"""

from __future__ import annotations

import copyreg
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

W = TypeVar("W", bound=nn.Module)


def _do_nothing() -> None:
    return


class OriginalForward(nn.Module):
    """Keeps a model and calls the forward that it had before it was routed. Hooks of the model run once, outside.

    before_pass: called before each pass that goes through the wrapper, and may reroute the model. after_forward: called
    at the end of such a pass. They are no hooks of torch's, because torch calls a module with hooks on a slower path.
    before_local_pass: called before a pass without gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[..., Any],
        *,
        before_pass: Callable[[], None] = _do_nothing,
        before_local_pass: Callable[[], None] = _do_nothing,
        after_forward: Callable[[], None] = _do_nothing,
    ) -> None:
        super().__init__()
        self.module = model
        self.original_forward = forward
        self.before_pass = before_pass
        self.before_local_pass = before_local_pass
        self.after_forward = after_forward
        self._walk: list[tuple[str, nn.Module]] | None = None

    @contextmanager
    def walked_once(self) -> Iterator[None]:
        """Lists the modules once while a wrapper is made, which asks for all modules several times. They must not
        change meanwhile."""
        self._walk = list(super().named_modules())
        try:
            yield
        finally:
            self._walk = None

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        if self._walk is None or memo or prefix or not remove_duplicate:
            yield from super().named_modules(memo, prefix, remove_duplicate)
        else:
            yield from self._walk

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.original_forward(*args, **kwargs)
        self.after_forward()
        return output


class _Route:
    """Keeps where one model's forward goes. All references are weak, because a wrapper refers to its model; the
    strategy owns the wrappers. Belongs to the class that the model got, so that finding it costs a forward pass
    nothing."""

    __slots__ = ("inner", "model", "wrapper")

    def __init__(self, model: nn.Module) -> None:
        self.model = weakref.ref(model)
        self.wrapper: Callable[[], nn.Module | None] = lambda: None
        self.inner: Callable[[], OriginalForward | None] = lambda: None


def route(
    model: nn.Module,
    wrap: Callable[[OriginalForward], W],
    *,
    before_pass: Callable[[], None] = _do_nothing,
    before_local_pass: Callable[[], None] = _do_nothing,
    after_forward: Callable[[], None] = _do_nothing,
) -> W:
    """Sends the model's forward through wrap(inner), where inner(...) is the model's original forward. Returns the
    wrapper. The caller must keep it: without it the model runs unwrapped again.

    A forward pass without gradients (validation) stays local, because ranks need not make equally many of those. May be
    called again with another wrapper. before_pass, before_local_pass, after_forward: see OriginalForward.
    """
    _hide_from_compiler()
    original = _original_class(model)
    own_forward = vars(model).pop("forward", None)
    forward = own_forward or original.forward.__get__(model)
    own_route = _find_route(model)
    if own_route is not None:
        own_route.inner = lambda: None
    inner = OriginalForward(
        model,
        forward,
        before_pass=before_pass,
        before_local_pass=before_local_pass,
        after_forward=after_forward,
    )
    wrapper = wrap(inner)
    if own_route is None:
        own_route = _Route(model)
        model.__class__ = _routed_class(original, own_route)
    own_route.wrapper, own_route.inner = weakref.ref(wrapper), weakref.ref(inner)
    return wrapper


@cache
def _hide_from_compiler() -> None:
    """Excludes OriginalForward from torch.compile, which would inline the first model's forward into the code for all
    models. Runs when the first model is routed, because it loads the compiler."""
    hidden = torch.compiler.disable(OriginalForward.forward, recursive=False)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    OriginalForward.forward = hidden  # type: ignore[method-assign]  # see above


def reroute(model: nn.Module, wrapper: nn.Module) -> None:
    """Sends a routed model's forward through another wrapper, made around the same inner module as the earlier one."""
    own_route = _find_route(model)
    assert own_route is not None
    own_route.wrapper = weakref.ref(wrapper)


def _find_route(model: nn.Module) -> _Route | None:
    """Returns None for a model that was not routed. Another instance of a routed model's class is such a model too."""
    own_route: _Route | None = getattr(type(model), "_gangline_route", None)
    return own_route if own_route is not None and own_route.model() is model else None


def _original_class(model: nn.Module) -> type[nn.Module]:
    model_class = type(model)
    return getattr(model_class, "_gangline_original", model_class)


def _routed_class(original: type[nn.Module], own_route: _Route) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        inner = own_route.inner() if own_route.model() is self else None
        if inner is None:
            return original.forward(self, *args, **kwargs)
        if not torch.is_grad_enabled():
            inner.before_local_pass()
            return inner.original_forward(*args, **kwargs)
        inner.before_pass()
        wrapper = own_route.wrapper()
        assert wrapper is not None
        return wrapper(*args, **kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        recipe = original.__reduce_ex__(self, protocol)
        if isinstance(recipe, str):
            return recipe
        make, arguments, *state_parts = recipe
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # the maker of the default recipe
            # pickle insists that its default recipe makes an instance of the object's own class.
            make = original.__new__
        return (make, tuple(original if part is type(self) else part for part in arguments), *state_parts)

    # torch.compile cannot trace this function. It compiles what the function calls.
    hidden = torch.compiler.disable(forward, recursive=False)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    content = {"forward": hidden, "__reduce_ex__": reduce, "__module__": original.__module__}
    own = {"_gangline_original": original, "_gangline_route": own_route}
    routed = type(original.__name__, (original,), {**content, **own})
    routed.__qualname__ = original.__qualname__
    return routed
