"""Checks the objects that a trial hands over against the wrapped models. Every parameter of an optimizer must belong to
a wrapped model, and the models must be as they were when they were wrapped. Used by the strategies of several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gangline.errors import invalid

# The module into which torch.compile puts a model, in the names of its tensors.
_COMPILED = "_orig_mod"
LAZY_MODEL = "parallelism.lazy_model"


class WrappedModels:
    """Keeps the parameters of wrapped models. replaces: whether wrapping gave the models new parameters."""

    def __init__(self, strategy: str, replaces: bool) -> None:
        self._strategy = strategy
        self._replaces = replaces
        self._models: list[tuple[nn.Module, list[nn.Parameter]]] = []

    def add(self, model: nn.Module) -> None:
        """Adds a model after it was wrapped."""
        self._models.append((model, list(model.parameters())))

    def check(self, optimizer: Optimizer) -> None:
        """Raises GanglineError `parallelism.*` where this optimizer would train parameters outside of the wrapped
        models."""
        for model, parameters in self._models:
            self._check_unchanged(model, parameters)
        wrapped_ids = {id(parameter) for _, parameters in self._models for parameter in parameters}
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        strange = sum(1 for parameter in stepped if id(parameter) not in wrapped_ids)
        if not strange:
            return
        counts = f"{strange} of {len(stepped)} parameters of {type(optimizer).__name__} belong to no wrapped model"
        if self._replaces:
            text = (
                f"{counts}; {self._strategy} replaces a model's parameters by shards in wrap_model, so build the "
                "optimizer after that, from the parameters of every model that was wrapped"
            )
        else:
            text = f"{counts}, so ranks would train them apart; pass the module that holds them to context.wrap_model"
        raise invalid("parallelism.optimizer", text)

    def watch(self, optimizer: Optimizer) -> None:
        """Checks the optimizer again before a step that follows a change of its parameter groups."""
        checked = sum(len(group["params"]) for group in optimizer.param_groups)

        def look(stepped: Optimizer, *_: Any) -> None:
            nonlocal checked
            # Runs at every step, so without another call.
            count = 0
            for group in stepped.param_groups:
                count += len(group["params"])
            if count != checked:
                self.check(stepped)
                checked = count

        optimizer.register_step_pre_hook(look)

    def check_unchanged(self, model: nn.Module) -> None:
        """Raises GanglineError `parallelism.model_changed` where a wrapped model has other parameters by now."""
        for wrapped_model, parameters in self._models:
            if wrapped_model is model:
                self._check_unchanged(model, parameters)

    def describe(self, parameter: torch.Tensor) -> str:
        """Returns the parameter's name behind the name of its model's class, as Net.weight; for errors."""
        for model, _ in self._models:
            for name, candidate in model.named_parameters():
                if candidate is parameter:
                    return f"{class_name(model)}.{name}"
        return "a parameter"

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Returns the present parameters of all models. With several models each name begins with the model's
        number."""
        several = len(self._models) > 1
        return {
            f"{class_name(model)} {index}: {name}" if several else name: parameter
            for index, (model, _) in enumerate(self._models)
            for name, parameter in model.named_parameters()
        }

    def buffers(self) -> Iterator[torch.Tensor]:
        """Returns the present buffers of all models."""
        return (buffer for model, _ in self._models for buffer in model.buffers())

    def _check_unchanged(self, model: nn.Module, parameters: list[nn.Parameter]) -> None:
        now = {id(parameter) for parameter in model.parameters()}
        if now == {id(parameter) for parameter in parameters}:
            return
        raise invalid(
            "parallelism.model_changed",
            f"{class_name(model)} had {len(parameters)} parameters when it was wrapped and has others now; "
            "tie, add and replace parameters before context.wrap_model, and leave assign=True out of load_state_dict",
        )


def check_initialised(model: nn.Module) -> None:
    """Raises GanglineError `parallelism.lazy_model` for a model with uninitialised parameters. A trial of one rank may
    leave them to the first pass."""
    if isinstance(model, torch.jit.ScriptModule):
        return
    lazy = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if lazy:
        more = f" and {len(lazy) - 1} more" if len(lazy) > 1 else ""
        raise invalid(
            LAZY_MODEL,
            f"{lazy[0]}{more} of {class_name(model)} have no shape before a first pass, as lazy modules leave it open, "
            "so ranks cannot share them; run a batch through the model before context.wrap_model, as in "
            "model(torch.zeros(2, 3, 32, 32)) under torch.no_grad()",
        )


class Shards:
    """Keeps the storage addresses of divided parameters. An assignment to a parameter's `data` does not reach the
    shards, and torch reports no error."""

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy
        # The storages are kept so that no later storage gets the address of one of these.
        self._known: list[tuple[str, nn.Parameter, torch.UntypedStorage, int]] = []

    def add(self, model: nn.Module) -> None:
        """Adds a model right after it was divided."""
        for name, parameter in model.named_parameters():
            storage = parameter.untyped_storage()
            self._known.append((f"{class_name(model)}.{name}", parameter, storage, storage._cdata))

    def check(self) -> None:
        """Raises GanglineError `parallelism.data_assigned` where a parameter has another storage than after
        wrapping."""
        for name, parameter, _, address in self._known:
            if parameter.untyped_storage()._cdata != address:
                raise invalid(
                    "parallelism.data_assigned",
                    f"{name}.data was assigned to after context.wrap_model, which has no effect on the parts that "
                    f"{self._strategy} divides parameters into; assign before wrap_model, or change the parameter in "
                    "place under torch.no_grad(), as in parameter.clamp_(-1, 1)",
                )


def inner_of(model: nn.Module) -> nn.Module:
    """Returns the model that torch.compile got, which puts it into a module of its own; any other model as it is."""
    while (inner := getattr(model, _COMPILED, None)) is not None:
        model = inner
    return model


def plain_name(name: str) -> str:
    """Returns a tensor's name in a model, or a path with one, without the modules that torch.compile puts around
    others."""
    return ".".join(part for part in name.split(".") if part != _COMPILED) if _COMPILED in name else name


def plain_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same values by their plain names."""
    return {plain_name(name): value for name, value in values.items()}


def class_name(model: nn.Module) -> str:
    """Returns the class's name as the user wrote it. torch puts a class of its own before that of a divided model,
    and a compiled model into a module of its own."""
    model = inner_of(model)
    own = (base_class.__name__ for base_class in type(model).__mro__ if not base_class.__name__.startswith("FSDP"))
    return next(own)
