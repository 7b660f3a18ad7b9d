"""Finds the chain of units into which a model can be cut: members of its lists of modules, and everything before and
after them.

Reads the structure alone, so it works on the meta device too. Whether the units really form a chain shows when the
model runs, see gangline.pytorch.parallel.staged.cutting.cut.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from gangline.config.pipeline import DEFAULT_SCHEDULE, SCHEDULES, split_conflict, units_conflict
from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.shared.ownership import class_name, inner_of
from gangline.pytorch.parallel.staged.partition import partition


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of the chain."""

    paths: tuple[str, ...]  # its modules in the order of their definition
    # The module whose output is the unit's output. None for the modules before the first list, whose output is the
    # input of the next unit, and for the modules after the last list.
    end: str | None
    numel: int  # number of elements of its parameters

    @property
    def name(self) -> str:
        return self.paths[0] if len(self.paths) == 1 else f"{self.paths[0]} to {self.paths[-1]}"


def find_units(model: nn.Module) -> list[Unit]:
    """Returns the units in the order in which the model runs them. Raises GanglineError `parallelism.model` for a model
    without a list of modules."""
    model = inner_of(model)
    trunk = _find_list(model)
    if trunk is None:
        raise invalid(
            "parallelism.model",
            f"pipeline cannot cut {class_name(model)}, which is one unit: it has no nn.ModuleList and no nn.Sequential "
            "of at least two modules; put its repeated layers into one, or use ddp or a zero strategy",
        )
    children = list(_walk(model, "", trunk))
    listed = [place for place, (_, is_listed) in enumerate(children) if is_listed]
    groups: list[tuple[list[str], str | None]] = []
    before = [path for path, _ in children[: listed[0]]]
    after = [path for path, _ in children[listed[-1] + 1 :]]
    if _numel(model, before):
        groups.append((before, None))
        before = []
    pending = before
    for path, is_listed in children[listed[0] : listed[-1] + 1]:
        # A module between two lists belongs to the next member, as it may not be called at all.
        pending = [*pending, path]
        if is_listed:
            groups.append((pending, path))
            pending = []
    if _numel(model, after):
        groups.append((after, None))
    elif after:
        groups[-1] = ([*groups[-1][0], *after], groups[-1][1])
    return [Unit(tuple(paths), end, _numel(model, paths)) for paths, end in groups]


def divide_units(
    model: nn.Module,
    units: Sequence[Unit],
    stages: int,
    split: Sequence[str] | None = None,
    schedule: str = DEFAULT_SCHEDULE,
) -> list[int]:
    """Returns the number of units of each part. stages: slots of a replica, each with the schedule's parts. split:
    names of the modules with which the second and each later part begin; None balances the parameters. Raises
    GanglineError `parallelism.split` or `parallelism.stages`."""
    if split is not None:
        text = split_conflict(len(split), stages, schedule)
        if text is not None:
            raise invalid("parallelism.split", f"parallelism: {text}")
        return _by_hand(units, split)
    text = units_conflict(len(units), stages, schedule)
    if text is not None:
        raise invalid(
            "parallelism.stages",
            f"pipeline cannot divide {class_name(model)}, which {text}; the units are {_names(units)}",
        )
    return partition([unit.numel for unit in units], stages * SCHEDULES[schedule].parts)


def check_carried(units: Sequence[Unit], names: Sequence[str]) -> None:
    """Raises GanglineError `parallelism.carry` where a name is no module whose output can go along to later parts."""
    paths = [path for unit in units for path in unit.paths]
    for name in names:
        if name not in paths:
            raise invalid("parallelism.carry", f"parallelism.carry: {_no_unit(name, paths, units)}")


def _by_hand(units: Sequence[Unit], split: Sequence[str]) -> list[int]:
    first_paths = {path: place for place, unit in enumerate(units) for path in (unit.paths[0], unit.end or "")}
    starts = [0]
    for name in split:
        if name not in first_paths or not name:
            raise _bad_split(_no_unit(name, [path for path in first_paths if path], units))
        if first_paths[name] <= starts[-1]:
            raise _bad_split(f"{name} is not after the beginning of the part before it; give the model's order")
        starts.append(first_paths[name])
    return [end - start for start, end in zip(starts, [*starts[1:], len(units)], strict=True)]


def _no_unit(name: str, possible: Sequence[str], units: Sequence[Unit]) -> str:
    nearest = difflib.get_close_matches(name, possible, n=2)
    advice = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    return f"there is no unit {name!r}; {advice}the units are {_names(units)}"


def _bad_split(text: str) -> GanglineError:
    return invalid("parallelism.split", f"parallelism.split: {text}")


def _names(units: Sequence[Unit]) -> str:
    names = [unit.name for unit in units]
    return ", ".join(names if len(names) <= 8 else [*names[:4], "...", *names[-3:]])


def _is_list(module: nn.Module) -> bool:
    is_plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return (isinstance(module, nn.ModuleList) or is_plain) and len(list(module.children())) > 1


def _find_list(model: nn.Module) -> nn.Module | None:
    """Returns the list with the most parameters, the outermost one of several. If one member has more than half of its
    parameters and a list inside, that list is searched instead."""
    lists = [module for module in model.modules() if _is_list(module) and _size(module)]
    best = max(lists, key=_size, default=None)
    if best is None:
        return None
    largest = max(best.children(), key=_size)
    inner = _find_list(largest) if _size(largest) * 2 > _size(best) else None
    return best if inner is None else inner


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _walk(module: nn.Module, prefix: str, trunk: nn.Module, *, is_member: bool = False) -> Iterator[tuple[str, bool]]:
    """Yields the paths of the modules to call, and whether each is a member of a list. is_member: whether the module is
    one itself, as one of several lists in a list."""
    is_list = is_member or _is_list(module)
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        is_above = any(inner is trunk for inner in child.modules())
        if is_above or (not is_list and (_is_list(child) or isinstance(child, nn.ModuleDict))):
            yield from _walk(child, f"{path}.", trunk)
        elif isinstance(child, nn.ModuleList | nn.ModuleDict):
            # Nobody can call it, as in a list of pairs of layers.
            yield from _walk(child, f"{path}.", trunk, is_member=True)
        else:
            yield path, is_list


def _numel(model: nn.Module, paths: Sequence[str]) -> int:
    parameters = {id(parameter): parameter for path in paths for parameter in model.get_submodule(path).parameters()}
    return sum(parameter.numel() for parameter in parameters.values())
