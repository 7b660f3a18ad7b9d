"""Decides which ranks of a replica hold which tensors of a model, and gives up the values of the others.

A parameter of several parts, as a tied weight, and a parameter of no unit are held by several ranks. Parameters keep
their identity when their values go, so optimizers and names stay as they are. Used by the strategy `pipeline`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from gangline.errors import invalid
from gangline.pytorch.parallel.shared.ownership import plain_name
from gangline.pytorch.parallel.staged.absent import Origin, absent_from, own_attributes
from gangline.pytorch.parallel.staged.unit import Unit

_CPU = torch.device("cpu")


class Holding:
    """Holders of one model's tensors. ranks_of_units: for each unit the rank inside the replica that has it. size: the
    ranks of a replica. device: of this rank."""

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        ranks_of_units: Sequence[int],
        size: int,
        device: torch.device = _CPU,
    ) -> None:
        self._model = model
        self._device = device
        self._rank_by_path = {
            plain_name(path): rank for unit, rank in zip(units, ranks_of_units, strict=True) for path in unit.paths
        }
        self._everyone = tuple(range(size))
        holders: dict[int, set[int]] = {}
        self._parameters: dict[int, nn.Parameter] = {}
        self._names: dict[int, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            holders.setdefault(id(parameter), set()).update(self._ranks_of_name(name))
            self._parameters[id(parameter)] = parameter
            self._names.setdefault(id(parameter), plain_name(name))
        self._holders = {key: tuple(sorted(ranks)) for key, ranks in holders.items()}

    def holders(self, parameter: torch.Tensor) -> tuple[int, ...]:
        """Returns the ranks inside the replica that hold a parameter, in ascending order. Raises GanglineError
        `parallelism.model_changed` for a parameter that the model had not when it was wrapped."""
        places = self._holders.get(id(parameter))
        if places is None:
            raise invalid(
                "parallelism.model_changed",
                f"a parameter of shape {list(parameter.shape)} was not in the model when it was wrapped, so no stage "
                "has it; tie, add and replace parameters before context.wrap_model, and leave assign=True out of "
                "load_state_dict",
            )
        return places

    def parameters(self) -> Iterable[nn.Parameter]:
        return self._parameters.values()

    def held_by(self, rank: int) -> list[nn.Parameter]:
        return [parameter for parameter in self._parameters.values() if rank in self.holders(parameter)]

    def names_of(self, rank: int) -> list[str]:
        """Returns the names in the model's state that a rank holds."""
        return [name for name in self._model.state_dict() if rank in self.holders_of_name(name)]

    def holders_of_name(self, name: str) -> tuple[int, ...]:
        """Returns the ranks that hold a value of the model's state."""
        parameter = self._by_name().get(name)
        return self.holders(parameter) if parameter is not None else self._ranks_of_name(name)

    def has_buffer(self, name: str, rank: int) -> bool:
        """Returns whether a rank holds a buffer."""
        return rank in self._ranks_of_name(name)

    def _by_name(self) -> Mapping[str, nn.Parameter]:
        return dict(self._model.named_parameters(remove_duplicate=False))

    def give_up(self, rank: int) -> None:
        """Frees the values of parameters that a rank does not hold."""
        with _without_weak_references(self._model):
            for parameter in self._parameters.values():
                if rank not in self.holders(parameter):
                    self._empty_out(parameter)

    def take(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        """Gives a parameter a value for good, on a rank that does not hold it."""
        with _without_weak_references(self._model):
            _fill(parameter, value)

    def drop(self, parameter: nn.Parameter) -> None:
        """Frees a parameter's value on a rank that does not hold it any more."""
        with _without_weak_references(self._model):
            self._empty_out(parameter)

    @contextmanager
    def lent(self, values: Mapping[int, torch.Tensor]) -> Iterator[None]:
        """Gives parameters values for the time of the block. values: by the parameter's id."""
        with _without_weak_references(self._model):
            for key, value in values.items():
                _fill(self._parameters[key], value)
        try:
            yield
        finally:
            with _without_weak_references(self._model):
                for key in values:
                    self._empty_out(self._parameters[key])

    def _empty_out(self, parameter: nn.Parameter) -> None:
        """Frees a parameter's value. The object stays."""
        origin = Origin(self._names[id(parameter)], self._device)
        torch.utils.swap_tensors(parameter, absent_from(parameter, origin))  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _ranks_of_name(self, name: str) -> tuple[int, ...]:
        parts = plain_name(name).split(".")
        for count in range(len(parts) - 1, 0, -1):
            rank = self._rank_by_path.get(".".join(parts[:count]))
            if rank is not None:
                return (rank,)
        return self._everyone


@contextmanager
def _without_weak_references(model: nn.Module) -> Iterator[None]:
    """Removes the weak references that torch's recurrent layers keep for the time of the block, as torch exchanges no
    tensor that has some."""
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    for layer in layers:
        layer._flat_weight_refs = []
    try:
        yield
    finally:
        for layer in layers:
            layer._flat_weight_refs = [
                None if weight is None else weakref.ref(weight) for weight in layer._flat_weights
            ]


def _fill(parameter: nn.Parameter, value: torch.Tensor) -> None:
    other = nn.Parameter(value.detach(), requires_grad=parameter.requires_grad)
    vars(other).update(own_attributes(parameter))
    torch.utils.swap_tensors(parameter, other)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def move_to(model: nn.Module, device: torch.device) -> None:
    """Moves the values that this rank has to its device."""
    for parameter in model.parameters():
        if not parameter.is_meta:
            parameter.data = parameter.data.to(device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
