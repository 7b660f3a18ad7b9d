"""Takes the state that a module's forward pass may change, so that the pass can run again from the same state.

The state is what can be reached from the attributes of a module, of the modules inside it and of their hooks, and from
the arguments of the pass: buffers and other tensors, numbers, lists, dictionaries, sets, plain objects and random
generators. Python's and numpy's own generators belong to it. It ends at other modules and at objects of torch.

Small tensors are copied before each pass. A larger one, and a parameter, is copied until a pass leaves it unchanged;
from then on torch's version counter shows a change. So masks and tables cost no copy. Used for activation
checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any

import torch
from torch import nn

from gangline.errors import GanglineError, invalid
from gangline.pytorch.parallel.state_place import Place, Unrestorable, own_attributes, parts_of, place_of, random_places

Path = tuple[Any, ...]
_SMALL_BYTES = 1 << 16
# Cap on the objects of one module's state, without numbers and texts. A walk to more would take longer than the pass.
_MOST_OBJECTS = 2000
_NO_PLACES = torch.Tensor, nn.Module
_UNWALKED = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size, type}
)


@dataclass(slots=True)
class _Kept:
    """A tensor of the state."""

    tensor: torch.Tensor  # the tensor itself, or the same contents without the graph of an earlier pass
    path: Path
    version: int | None  # torch's counter of changes; None for a tensor that is neither copied nor watched
    copy: torch.Tensor | None = None  # copy of the contents; None if they are only watched

    @property
    def is_always_copied(self) -> bool:
        """Returns whether the tensor is copied before each pass, whatever the passes before have done."""
        return self.tensor.nbytes <= _SMALL_BYTES and not isinstance(self.tensor, nn.Parameter)


@dataclass(frozen=True, slots=True)
class _Row:
    """A tuple with tensors in it."""

    kind: type
    items: tuple[Any, ...]


class ForwardState:
    """The state of a module before one forward pass. As a context it puts this state in the place of the present one,
    and the present one back at its end. A context may be entered several times.

    unchanged: paths of the tensors that passes have left unchanged; extended by `settle`. Raises Unrestorable for state
    that cannot be taken.
    """

    def __init__(self, module: nn.Module, unchanged: set[Path], arguments: Sequence[Any] = ()) -> None:
        self._unchanged = unchanged
        self._names = [name for name, _ in module.named_modules()]
        self._places: list[tuple[Place, dict[Any, Any]]] = []
        self._parameters: list[tuple[dict[str, Any], str, _Kept]] = []
        self._kept: dict[int, _Kept] = {}
        self._presents: list[list[tuple[Place, dict[Any, Any]]]] = []
        walk = _Walk(self._take)
        for number, inner in enumerate(module.modules()):
            path = (module.training, number)
            self._parameters += [
                (inner._parameters, name, self._keep(parameter, (*path, name)))
                for name, parameter in inner._parameters.items()
                if parameter is not None
            ]
            walk.add_module(inner, path, with_hooks=inner is not module)
        walk.add_parts(arguments, (module.training, "an argument"))
        self._places += walk.run()
        self._places += [(place, place.read()) for place in random_places()]
        # Later objects may get the ids of tensors that only this walk has seen.
        self._tensors = list(self._kept.values())
        self._kept = {}

    def copy(self) -> None:
        """Copies the contents of tensors. Called before the pass."""
        copies: dict[int, torch.Tensor] = {}
        for kept in self._tensors:
            if kept.version is not None and (kept.is_always_copied or kept.path not in self._unchanged):
                kept.copy = _copy(kept.tensor, copies)

    def settle(self, name: str) -> None:
        """Drops the copies that the pass did not need. Called right after it. name: of the module. Raises GanglineError
        `parallelism.activation_checkpointing` for a tensor that has changed and was not copied."""
        for kept in self._tensors:
            if kept.version is None or (kept.copy is not None and kept.is_always_copied):
                continue
            is_changed = _version(kept.tensor) != kept.version
            if kept.copy is None:
                if is_changed:
                    raise self._changed_late(name, kept)
            elif not is_changed and torch.equal(kept.tensor, kept.copy):
                self._unchanged.add(kept.path)
                kept.copy = None

    def __enter__(self) -> None:
        copies: dict[int, torch.Tensor] = {}
        presents: list[tuple[Place, dict[Any, Any]]] = []
        self._presents.append(presents)
        for place, before in self._places:
            present = place.read()
            presents.append((place, present))
            _write(place, {key: _restored(value, copies) for key, value in before.items()}, present)
        for parameters, name, kept in self._parameters:
            if kept.copy is not None:
                own = place_of(parameters)
                assert own is not None
                present = own.read()
                presents.append((own, present))
                _write(own, {**present, name: _restored(kept, copies)}, present)

    def __exit__(self, *failure: object) -> None:
        for place, present in reversed(self._presents.pop()):
            _write(place, present, place.read())

    def _take(self, value: Any, path: Path) -> Any:
        """Returns what stands for a value in the record of a place."""
        if isinstance(value, torch.Tensor):
            return self._keep(value, path)
        if isinstance(value, tuple) and any(isinstance(item, torch.Tensor | tuple) for item in value):
            return _Row(type(value), tuple(self._take(item, (*path, place)) for place, item in enumerate(value)))
        return value

    def _keep(self, tensor: torch.Tensor, path: Path) -> _Kept:
        kept = self._kept.get(id(tensor))
        if kept is None:
            # The graph of an earlier pass would keep that pass's state, and so that of all passes before.
            held = tensor if tensor.grad_fn is None else tensor.detach().requires_grad_()
            kept = self._kept[id(tensor)] = _Kept(held, path, _version(tensor))
        return kept

    def _changed_late(self, name: str, kept: _Kept) -> GanglineError:
        _, number, *keys = kept.path
        inner = self._names[number] if isinstance(number, int) else ""
        where = ".".join(str(key) for key in ([inner] if inner else []) + keys)
        return invalid(
            "parallelism.activation_checkpointing",
            f"parallelism.activation_checkpointing: {name} has changed its {where} ({kept.tensor.nbytes} bytes), which "
            "its first batch left unchanged, so its values from before are missing and it cannot run again; let its "
            "forward change it from the first batch on, or leave activation_checkpointing out",
        )


def find_obstacle(module: nn.Module) -> str:
    """Returns why a module's forward pass cannot run again from the same state; empty for one that can."""
    try:
        ForwardState(module, set())
    except Unrestorable as obstacle:
        return str(obstacle)
    return ""


class _Walk:
    """Finds the places that can be reached from the attributes of modules. take: returns what stands for a value in the
    record of a place."""

    def __init__(self, take: Callable[[Any, Path], Any]) -> None:
        self._take = take
        self._seen: set[int] = set()
        self._found: list[tuple[Place, dict[Any, Any]]] = []
        self._waiting: list[tuple[Any, Path]] = []

    def add_module(self, module: nn.Module, path: Path, with_hooks: bool) -> None:
        """with_hooks: whether the module's own hooks run in the pass. Those of the module that runs again do not."""
        self._add(own_attributes(module), path)
        buffers = place_of(module._buffers)
        assert buffers is not None
        self._add(buffers, path)
        if with_hooks:
            for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
                self._waiting.append((hook, (*path, "a hook")))

    def add_parts(self, values: Sequence[Any], path: Path) -> None:
        self._waiting += [(value, (*path, number)) for number, value in enumerate(values)]

    def run(self) -> Iterator[tuple[Place, dict[Any, Any]]]:
        while self._waiting:
            value, path = self._waiting.pop()
            if type(value) in _UNWALKED or isinstance(value, _NO_PLACES) or id(value) in self._seen:
                continue
            self._seen.add(id(value))
            if len(self._seen) > _MOST_OBJECTS:
                raise Unrestorable(f"more than {_MOST_OBJECTS} objects in its attributes, up to {_text(path)}")
            place = place_of(value, lambda path=path: _text(path))  # type: ignore[misc]  # mypy cannot type the default
            if place is not None:
                self._add(place, path)
            else:
                self._waiting += [(part, (*path, number)) for number, part in enumerate(parts_of(value))]
        return iter(self._found)

    def _add(self, place: Place, path: Path) -> None:
        contents = place.read()
        if place.is_walked:
            for key, value in contents.items():
                if type(value) not in _UNWALKED:
                    own = path if isinstance(place.holder, CellType) else (*path, key)
                    contents[key] = self._take(value, own)
                    self._waiting.append((value, own))
        self._found.append((place, contents))


def _text(path: Path) -> str:
    keys = path[1:] if isinstance(path[1], str) else path[2:]
    return ".".join(str(key) for key in keys)


def _restored(value: Any, copies: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, _Kept):
        # The pass may change a copy, and a later pass of the same state needs it as it was.
        return (
            value.tensor if value.copy is None else _copy(value.copy, copies).requires_grad_(value.tensor.requires_grad)
        )
    if isinstance(value, _Row):
        items = [_restored(item, copies) for item in value.items]
        return value.kind._make(items) if hasattr(value.kind, "_make") else value.kind(items)
    return value


def _write(place: Place, wanted: Mapping[Any, Any], present: Mapping[Any, Any]) -> None:
    is_same = len(wanted) == len(present) and all(
        key in present and present[key] is value for key, value in wanted.items()
    )
    if not is_same:
        place.write(wanted)


def _version(tensor: torch.Tensor) -> int | None:
    """Returns torch's counter of changes; None for a tensor that has no contents of its own kind here, as a part of a
    divided parameter."""
    is_plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    return None if not is_plain or tensor.is_meta or tensor.is_inference() else tensor._version


def _copy(tensor: torch.Tensor, copies: dict[int, torch.Tensor]) -> torch.Tensor:
    """Returns a copy of a tensor. Copies of tensors with common memory have common memory, too. copies: those made
    before, by their memory."""
    plain, storage = tensor.detach(), tensor.untyped_storage()
    if storage._cdata not in copies:
        is_alone = plain.nbytes == storage.nbytes()
        whole = plain if is_alone else torch.empty(0, dtype=torch.uint8, device=plain.device).set_(storage)
        copies[storage._cdata] = whole.clone()
        if is_alone:
            return copies[storage._cdata].view_as(plain)
    memory = copies[storage._cdata].untyped_storage()
    view = torch.empty(0, dtype=plain.dtype, device=plain.device)
    return view.set_(memory, plain.storage_offset(), plain.size(), plain.stride())
