"""Keeps those parameters of a divided model whole that cannot be divided: those without a dimension, as the logit_scale
of CLIP, and those without numbers.

torch's fully_shard leaves them out. Between the steps each is a DTensor that all ranks have whole, like the parts of
the others, so optimizers, clipping and checkpoints need no rule for it. In forward and backward passes a plain
parameter with the same memory is in its place, because the model's code uses it with plain tensors. Its gradient is
averaged at the end of a backward pass. Used by the strategies that divide models.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from gangline.pytorch.parallel.shared.broadcast import average_tensors

# Attribute of both parameters that stand for a whole one.
_WHOLE = "_gangline_whole"


def needs_whole(parameter: torch.Tensor) -> bool:
    """Returns whether a parameter cannot be divided."""
    return parameter.dim() == 0 or parameter.numel() == 0


def whole_of(parameter: torch.Tensor) -> Whole | None:
    """Returns the record of a whole parameter, given either of the two that stand for it; None for a divided one."""
    whole: Whole | None = getattr(parameter, _WHOLE, None)
    return whole


class WholeParameters:
    """The whole parameters of one trial's divided models and of their copies. on_gradient: called with the parameter
    whose gradient was averaged."""

    def __init__(self, on_gradient: Callable[[torch.Tensor], None]) -> None:
        self._on_gradient = on_gradient
        self._all: list[Whole] = []
        # Those of wrapped models.
        self._own: list[Whole] = []
        # Those of copies that a pass has used since the last exchange, each with its modules, by id. Ranks agree on
        # them, as they make passes in step. They free copies at different times, so the modules are held.
        self._used: dict[int, tuple[Whole, list[nn.Module | None]]] = {}
        self._is_needed = False

    def place(
        self, model: nn.Module, mesh: DeviceMesh, gathered: Iterable[nn.Module]
    ) -> list[tuple[nn.Module, Callable[[], None]]]:
        """Puts DTensors in the place of a model's whole parameters. Called after the model was divided. gathered: its
        modules that are gathered by themselves. Returns those with whole parameters inside, and what to call before a
        forward pass of each."""
        places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and needs_whole(parameter) and not isinstance(parameter, DTensor):
                    places.setdefault(parameter, []).append((module, name))
        wholes = [Whole(parameter, mesh, at) for parameter, at in places.items()]
        self._all += wholes
        openers: list[tuple[nn.Module, Callable[[], None]]] = []
        for module in gathered:
            inside = {id(part) for part in module.modules()}
            own = [whole for whole in wholes if whole.is_in(inside)]
            if own:
                # Such a module may also be called by itself.
                openers.append((module, partial(self._open_used, own)))
        return openers

    def take_over(self, model: nn.Module) -> None:
        """Counts the whole parameters of a wrapped model in each exchange. Those of a copy that is not wrapped count
        after a pass only."""
        inside = {id(module) for module in model.modules()}
        for whole in self._all:
            if whole.is_in(inside) and not whole.is_own:
                whole.is_own = True
                self._own.append(whole)

    def _open_used(self, wholes: Iterable[Whole]) -> None:
        _open(wholes)
        if torch.is_grad_enabled():
            self._used |= {id(whole): (whole, whole.modules()) for whole in wholes if not whole.is_own}

    def open(self) -> None:
        """Puts the plain parameters in their places, for a pass."""
        _open(self._living())

    def keep_open(self) -> None:
        """Called after a forward pass that a backward pass may follow."""
        self._is_needed = True

    def close_unneeded(self) -> None:
        """Puts the DTensors back after a forward pass without gradients, unless a backward pass may come."""
        if not self._is_needed:
            self.close()

    def close(self) -> None:
        """Puts the DTensors back."""
        self._is_needed = False
        for whole in self._living():
            whole.close()

    def exchange(self) -> None:
        """Averages the gradients over all ranks, which call it in step. A rank without a gradient counts as zero where
        others have one."""
        used, self._used = self._used, {}
        counted = [*self._own, *(whole for whole, _ in used.values())]
        trained = [whole for whole in counted if whole.follow() and whole.plain.requires_grad]
        if not trained:
            return
        flags = [whole.plain.grad is not None for whole in trained]
        wanted = torch.tensor(flags, dtype=torch.int32, device=trained[0].plain.device)
        dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
        chosen = [whole for whole, is_wanted in zip(trained, wanted.tolist(), strict=True) if is_wanted]
        gradients = [whole.take_gradient() for whole in chosen]
        average_tensors(gradients)
        for whole, gradient in zip(chosen, gradients, strict=True):
            whole.give_gradient(gradient)
            self._on_gradient(whole.part)

    def with_own_gradient(self) -> Iterator[torch.Tensor]:
        """Yields the parameters whose plain one has a gradient that was not averaged."""
        for whole in self._living():
            if whole.plain.grad is not None:
                yield whole.part

    def by_name(self, parameters: Callable[[], Mapping[str, nn.Parameter]]) -> dict[str, torch.Tensor]:
        """Returns the values of those among these parameters that are whole and have numbers."""
        named = parameters() if self._all else {}
        wholes = {name: whole_of(parameter) for name, parameter in named.items() if parameter.numel()}
        return {name: whole.plain for name, whole in wholes.items() if whole is not None}

    def _living(self) -> list[Whole]:
        # A copy of a model may be gone.
        self._all = [whole for whole in self._all if whole.follow()]
        return self._all


def _open(wholes: Iterable[Whole]) -> None:
    for whole in wholes:
        if whole.follow():
            whole.open()


class Whole:
    """One whole parameter."""

    part: nn.Parameter  # the DTensor between the steps
    plain: nn.Parameter  # the parameter that the passes use

    def __init__(self, original: nn.Parameter, mesh: DeviceMesh, places: Iterable[tuple[nn.Module, str]]) -> None:
        self._mesh = mesh
        self._places = [(weakref.ref(module), name) for module, name in places]
        self.is_own = False  # whether a wrapped model has it
        self.is_open = False
        self._take(nn.Parameter(self._whole(original.detach().clone()), requires_grad=original.requires_grad))
        self._put(self.part)

    def is_in(self, module_ids: set[int]) -> bool:
        return any(id(module()) in module_ids for module, _ in self._places)

    def modules(self) -> list[nn.Module | None]:
        return [module() for module, _ in self._places]

    def follow(self) -> bool:
        """Takes over a DTensor that was put in the place of the own one, as in a copy. Returns whether the module is
        still there."""
        module, name = self._places[0]
        owner = module()
        present = owner._parameters.get(name) if owner is not None else None
        if present is None:
            return False
        if present is not self.part and present is not self.plain and isinstance(present, DTensor):
            self._take(present)
            self.is_open = False
        return True

    def open(self) -> None:
        if not self.is_open:
            self.plain.requires_grad_(self.part.requires_grad)
            self.plain._backward_hooks = self.part._backward_hooks
            self._put(self.plain)
            self.is_open = True

    def close(self) -> None:
        if self.is_open:
            self.part.requires_grad_(self.plain.requires_grad)
            self._put(self.part)
            self.is_open = False

    def take_gradient(self) -> torch.Tensor:
        """Returns the gradient of passes, which the plain parameter has no more."""
        gradient = self.plain.grad
        self.plain.grad = None
        return torch.zeros_like(self.plain) if gradient is None else gradient.detach()

    def give_gradient(self, gradient: torch.Tensor) -> None:
        """Adds an averaged gradient to that of the parameter."""
        whole = self._whole(gradient)
        self.part.grad = whole if self.part.grad is None else self.part.grad + whole
        for hook in list((self.part._post_accumulate_grad_hooks or {}).values()):
            hook(self.part)

    def _take(self, part: nn.Parameter) -> None:
        self.part = part
        self.plain = nn.Parameter(part.detach().to_local(), requires_grad=part.requires_grad)  # type: ignore[attr-defined]  # a DTensor
        setattr(self.part, _WHOLE, self)
        setattr(self.plain, _WHOLE, self)

    def _whole(self, tensor: torch.Tensor) -> DTensor:
        return DTensor.from_local(tensor, self._mesh, [Replicate()] * self._mesh.ndim, run_check=False)

    def _put(self, parameter: nn.Parameter) -> None:
        for module, name in self._places:
            owner = module()
            if owner is not None:
                owner._parameters[name] = parameter
