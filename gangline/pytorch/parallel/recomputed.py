"""The forward of a module that runs again in the backward pass, in the place of the module's own.

Made by recomputation.py, which chooses the modules.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from gangline.pytorch.parallel.forward_state import ForwardState
from gangline.pytorch.parallel.state_place import Unrestorable

_log = logging.getLogger("gangline")


def log_chosen(class_names: Sequence[str]) -> None:
    """Logs how many modules run again, in one line of one rank. class_names: of each of them."""
    if class_names and _is_first_rank():
        (first, number), *others = Counter(class_names).items()
        words = [f"{number} {'module' if number == 1 else 'modules'} of class {first}"]
        words += [f"{number} of {name}" for name, number in others]
        verb = "runs" if len(class_names) == 1 else "run"
        _log.info("activation checkpointing: %s %s again in the backward pass", ", ".join(words), verb)


def log_left_out(lines: Sequence[str]) -> None:
    """Logs the parts that are left out, in one line of one rank."""
    if lines and _is_first_rank():
        _log.info("activation_checkpointing leaves out what cannot run again from the same state: %s", "; ".join(lines))


def _is_first_rank() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


class Recomputed:
    """The forward of one module. A plain object that refers to the module, so that a copy of the module recomputes the
    copy. name: of the module, for messages."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self._module = module
        self._name = name
        self._is_left_out = False
        # Paths of large tensors that the forward passes so far have not changed.
        self._unchanged: set[tuple[Any, ...]] = set()
        # A module may have a forward of its own instance, as a compiled one has.
        self._own: Callable[..., Any] | None = vars(module).get("forward")

    def change(self, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Puts `change(forward)` in the place of the forward that runs again."""
        self._own = change(self._forward())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self._forward()
        if not torch.is_grad_enabled() or self._is_left_out:
            return forward(*args, **kwargs)
        try:
            state = ForwardState(self._module, self._unchanged, (*args, *kwargs.values()))
        except Unrestorable as obstacle:
            self._is_left_out = True
            log_left_out([f"{self._name} has {obstacle}"])
            return forward(*args, **kwargs)
        state.copy()

        def run(*values: Any) -> Any:
            return forward(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))

        # torch looks for devices, whose random numbers it repeats, among the positional arguments alone.
        result = checkpoint(
            run, *args, *kwargs.values(), use_reentrant=False, context_fn=lambda: (nullcontext(), state)
        )
        state.settle(self._name)
        return result

    def _forward(self) -> Callable[..., Any]:
        return self._own or type(self._module).forward.__get__(self._module)
