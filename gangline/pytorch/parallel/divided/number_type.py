"""Divides a model's blocks further where their parameters have several number types. torch's fully_shard reduces the
gradients of parameters that it gathers together in one message, of one type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.divided.block import is_callable_part
from gangline.pytorch.parallel.divided.whole_parameter import needs_whole


def single_type_parts(strategy: str, model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Returns the blocks, and the modules in them or in the model that must be gathered by themselves, inner ones
    first. Raises GanglineError `parallelism.model` where a module cannot be gathered in messages of one type."""
    division = _Division(strategy, model, blocks)
    parts: list[nn.Module] = []
    for block in blocks:
        parts += [*division.parts_of(block), block]
    return [*parts, *division.parts_of(model)]


class _Division:
    def __init__(self, strategy: str, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        self._strategy = strategy
        self._model = model
        self._chosen = {id(block) for block in blocks}
        self._path_by_id = {id(module): path for path, module in model.named_modules()}
        self._num_places = Counter(id(parameter) for module in model.modules() for parameter in _direct(module))

    def parts_of(self, unit: nn.Module) -> list[nn.Module]:
        """Returns the modules of a unit that must be gathered by themselves, inner ones first, and marks them as
        chosen."""
        modules = list(self._gathered_with(unit))
        gathered = [parameter for module in modules for parameter in _direct(module)]
        if len({parameter.dtype for parameter in gathered}) < 2:
            return []
        usual = self._trained_type(unit) or _most_common_type(_trained(gathered) or gathered)
        parts = []
        # The unit itself is the first of its modules.
        for module in reversed(modules[1:]):
            unusual = [parameter for parameter in _direct(module) if parameter.dtype is not usual]
            if not unusual or id(module) in self._chosen:
                continue
            self._trained_type(module)
            if not is_callable_part(module) or any(self._num_places[id(parameter)] > 1 for parameter in unusual):
                if not _trained(unusual):
                    continue
                raise self._refuse(module, f"has parameters of {_words(unusual)} among those of {_word(usual)}")
            self._chosen.add(id(module))
            parts += [*self.parts_of(module), module]
        return parts

    def _trained_type(self, module: nn.Module) -> torch.dtype | None:
        """Returns the type of a module's own trained parameters, None where it has none. Raises GanglineError for
        several types."""
        trained = _trained(_direct(module))
        types = {parameter.dtype for parameter in trained}
        if len(types) > 1:
            raise self._refuse(module, f"has parameters of {_words(trained)} itself")
        return next(iter(types), None)

    def _gathered_with(self, unit: nn.Module) -> Iterable[nn.Module]:
        """Yields a unit and the modules in it that are not part of a chosen one."""
        yield unit
        for child in unit.children():
            if id(child) not in self._chosen:
                yield from self._gathered_with(child)

    def _refuse(self, module: nn.Module, what: str) -> GanglineError:
        path = self._path_by_id[id(module)]
        name = type(self._model).__name__
        return invalid(
            "parallelism.model",
            f"{self._strategy} cannot divide {name}{'.' if path else ''}{path}, which {what}; give these parameters "
            "one type, freeze those of another type before context.wrap_model, or put them into a module of their own "
            "that shares none of them and is called, or use ddp or zero1",
        )


def _direct(module: nn.Module) -> list[nn.Parameter]:
    """Returns a module's own parameters that are divided, without integers. Integers have no gradient, so they go with
    any other type."""
    parameters = [parameter for parameter in module.parameters(recurse=False) if not needs_whole(parameter)]
    return [parameter for parameter in parameters if parameter.dtype.is_floating_point or parameter.dtype.is_complex]


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Returns the parameters that are not frozen. torch gathers parameters of several types in one message of bytes;
    only gradients need one type."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def _most_common_type(parameters: Iterable[nn.Parameter]) -> torch.dtype:
    counts = Counter[torch.dtype]()
    for parameter in parameters:
        counts[parameter.dtype] += parameter.numel()
    return counts.most_common(1)[0][0]


def _words(parameters: Iterable[nn.Parameter]) -> str:
    return " and ".join(sorted({_word(parameter.dtype) for parameter in parameters}))


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
