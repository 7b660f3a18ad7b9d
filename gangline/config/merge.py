"""PURE: merges the settings that an experiment inherits with its own configuration, by Determined's rules of templates.

Mappings merge key by key, lists are concatenated, and any other value of the stronger layer replaces the weaker one. A
null counts as absent. Some values are one thing although they are mappings or lists, such as a hyperparameter or a
length; they are replaced as a whole. Each value of the result keeps its origin, so that an error can name it. Overrides
of a command replace single values.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gangline.config.complaint import Path
from gangline.config.searcher import SEARCHER_ROWS
from gangline.config.storage import KEYS_BY_TYPE
from gangline.config.yaml_document import parse_document
from gangline.domain.experiment import ConfigLayer
from gangline.errors import invalid

# The source of the values that the experiment's own configuration has.
OWN = ""
# Sections whose key names the kind of the section, and the keys that all kinds share. Where two layers name different
# kinds, the weaker layer keeps only these keys; of a searcher, those that _kept_keys returns.
_KINDS: dict[Path, tuple[str, frozenset[str]]] = {
    ("searcher",): ("name", frozenset.intersection(*(frozenset(row.allowed) for row in SEARCHER_ROWS.values()))),
    ("checkpoint_storage",): ("type", frozenset.intersection(*map(frozenset, KEYS_BY_TYPE.values()))),
    ("parallelism",): ("strategy", frozenset()),
    ("optimizations", "gradient_compression"): ("hook", frozenset()),
}
# Values that are replaced as a whole.
_WHOLE: frozenset[Path] = frozenset(
    [("entrypoint",), ("searcher", "max_length"), ("min_validation_period",), ("min_checkpoint_period",)]
)
_VARIABLES: Path = ("environment", "environment_variables")


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """The place of a value in the layer that set it."""

    source: str  # OWN, or the name of an inherited layer
    path: Path


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge of layers."""

    values: Mapping[str, Any]
    origin_by_path: Mapping[Path, SettingOrigin]  # origin of every value and every key of the result that one layer set


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value that is replaced as a whole."""

    value: Any
    origin: SettingOrigin


_Node = _Leaf | dict[str, "_Node"] | list["_Node"]


def merge(layers: Sequence[ConfigLayer], own_values: Mapping[str, Any]) -> Merged:
    """Merges the layers, of increasing precedence, and then the experiment's own values."""
    tree: _Node = {}
    for layer in layers:
        tree = _merge(tree, _annotate(json.loads(layer.config_json), SettingOrigin(layer.source, ())), ())
    tree = _merge(tree, _annotate(own_values, SettingOrigin(OWN, ())), ())
    origins: dict[Path, SettingOrigin] = {}
    return Merged(_strip(tree, (), origins), origins)


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Reads overrides such as "searcher.max_length.batches=200". The value is YAML. The last of equal keys counts.

    Raises GanglineError `config.override`.
    """
    overrides: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not all(part and part == part.strip() for part in key.split(".")):
            raise invalid(
                "config.override", f"--config {text!r} is no KEY=VALUE, such as searcher.max_length.batches=200"
            )
        overrides.pop(key, None)
        overrides[key] = parse_document(value).values if value.strip() else None
    return overrides


def with_overrides(values: Any, overrides: Mapping[str, Any]) -> Any:
    """Returns the values with others at the given dotted keys. A value of None removes a key. A part of a value that is
    one thing, such as a length in batches, replaces the whole; another kind of searcher keeps the keys that it has."""
    for key, value in overrides.items():
        values = _with_value(values, tuple(key.split(".")), value, ())
    return values


def _with_value(values: Any, keys: Path, value: Any, path: Path) -> Any:
    if not keys:
        return value
    key = str(keys[0])
    inner = dict(values) if isinstance(values, Mapping) and path not in _WHOLE else {}
    if path in _KINDS and key == _KINDS[path][0] and len(keys) == 1 and inner.get(key) not in (None, value):
        kept_keys = _kept_keys(path, value)
        inner = {name: entry for name, entry in inner.items() if name in kept_keys}
    changed = _with_value(inner.get(key), keys[1:], value, (*path, key))
    if changed is None:
        inner.pop(key, None)
    else:
        inner[key] = changed
    return inner


def describe_merged(merged: Merged) -> list[str]:
    """Returns one line for each setting, with its value and the layer that set it."""
    lines = []
    for path, value in _settings(merged.values, ()):
        sources = [merged.origin_by_path[inner].source for inner in merged.origin_by_path if inner[: len(path)] == path]
        lines.append(f"{'.'.join(map(str, path))}: {json.dumps(value)}  ({', '.join(dict.fromkeys(sources))})")
    return lines


def _settings(values: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _settings(value, (*path, key))
        else:
            yield (*path, key), value


def _annotate(value: Any, origin: SettingOrigin) -> _Node:
    if origin.path in _WHOLE or (isinstance(value, Mapping) and _is_hyperparameter(value, origin.path)):
        return _Leaf(value, origin)
    if isinstance(value, Mapping):
        return {str(key): _annotate(entry, _below(origin, str(key))) for key, entry in value.items()}
    if isinstance(value, list) and origin.path == _VARIABLES:
        # The short form of a mapping with the same list for each kind of slot.
        return {
            kind: [_Leaf(entry, _below(origin, place)) for place, entry in enumerate(value)]
            for kind in ("cpu", "cuda", "rocm")
        }
    if isinstance(value, list) and origin.path[:1] != ("hyperparameters",):
        return [_Leaf(entry, _below(origin, place)) for place, entry in enumerate(value)]
    return _Leaf(value, origin)


def _below(origin: SettingOrigin, key: str | int) -> SettingOrigin:
    return SettingOrigin(origin.source, (*origin.path, key))


def _is_hyperparameter(value: Mapping[str, Any], path: Path) -> bool:
    """Returns whether the mapping describes one hyperparameter. A mapping without a type groups hyperparameters."""
    return path[:1] == ("hyperparameters",) and len(path) > 1 and "type" in value


def _merge(low: _Node, high: _Node, path: Path) -> _Node:
    if isinstance(high, _Leaf) and high.value is None:
        return low
    if isinstance(low, dict) and isinstance(high, dict):
        merged = dict(_of_same_kind(low, high, path))
        for key, node in high.items():
            merged[key] = _merge(merged[key], node, (*path, key)) if key in merged else node
        return merged
    if isinstance(low, list) and isinstance(high, list):
        return [*low, *(node for node in high if path != ("labels",) or _value(node) not in map(_value, low))]
    return high


def _of_same_kind(low: dict[str, _Node], high: dict[str, _Node], path: Path) -> dict[str, _Node]:
    """Returns the settings of the weaker layer that have a meaning for the kind that the stronger layer names."""
    if path not in _KINDS:
        return low
    key, _ = _KINDS[path]
    if key not in low or key not in high or _value(low[key]) == _value(high[key]) or _value(high[key]) is None:
        return low
    kept_keys = _kept_keys(path, _value(high[key]))
    return {name: node for name, node in low.items() if name in kept_keys and name != key}


def _kept_keys(path: Path, kind: Any) -> Collection[str]:
    """Returns the keys of the section that remain where this kind replaces another one. A key of a searcher has the
    same meaning in each searcher that has it; of other sections only the keys that all kinds share remain."""
    row = SEARCHER_ROWS.get(str(kind)) if path == ("searcher",) else None
    return _KINDS[path][1] if row is None else row.allowed


def _value(node: _Node) -> Any:
    return node.value if isinstance(node, _Leaf) else node


def _strip(node: _Node, path: Path, origins: dict[Path, SettingOrigin]) -> Any:
    """Returns the plain value, and notes the origin of each leaf below it."""
    match node:
        case _Leaf():
            origins[path] = node.origin
            return node.value
        case dict():
            return {key: _strip(inner, (*path, key), origins) for key, inner in node.items()}
        case _:
            return [_strip(inner, (*path, place), origins) for place, inner in enumerate(node)]
