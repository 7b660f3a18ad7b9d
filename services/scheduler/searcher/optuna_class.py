"""PURE: the samplers and pruners of Optuna that a configuration names.

Owns the check of their names and arguments. Optuna is imported where it is needed, because its import takes a second.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gangline.errors import GanglineError, invalid

if TYPE_CHECKING:
    import optuna

DEFAULT_SAMPLER = "TPESampler"
# Their next point depends on the results alone, and on a seed, so each trial has a sampler of its own.
STATELESS = ("TPESampler", "RandomSampler", "GPSampler")
_OF_GRID = ("BruteForceSampler", "GridSampler", "PartialFixedSampler")
_WRAPPED = "wrapped_pruner"
# What some classes import when they are first asked, which may be many trials after the submit, with the extra of
# Gangline that has it.
_PACKAGES = {
    "CmaEsSampler": {"cmaes": "search"},
    "GPSampler": {"scipy": "search", "torch": "train"},
    "QMCSampler": {"scipy": "search"},
    "WilcoxonPruner": {"scipy": "search"},
}
# What the type of an argument holds if a YAML file cannot give it.
_CODE = ("Callable", "Base", "FrozenTrial", "ndarray", "Mapping", "dict")


def name_of_sampler(part: Mapping[str, Any] | None) -> str:
    """Returns the class's name. part: searcher.sampler. Raises GanglineError `config.searcher.sampler`."""
    return str(_find("sampler", part or {"name": DEFAULT_SAMPLER}).__name__)


def make_sampler(part: Mapping[str, Any] | None, seed: int) -> optuna.samplers.BaseSampler:
    """Makes the sampler. Raises GanglineError `config.searcher.sampler`."""
    part = part or {"name": DEFAULT_SAMPLER}
    sampler: optuna.samplers.BaseSampler = _make("sampler", part, {"seed": seed})
    return sampler


def make_pruner(part: Mapping[str, Any] | None) -> optuna.pruners.BasePruner | None:
    """Makes the pruner; None for none. Raises GanglineError `config.searcher.pruner`."""
    return None if part is None else _make("pruner", part, {})


def check_packages(sampler: Mapping[str, Any] | None, pruner: Mapping[str, Any] | None) -> None:
    """Refuses classes that need a package which this scheduler does not have. Only a submit is checked: a search that
    runs goes on under a leader that lacks a package, until it is needed. Raises GanglineError
    `config.searcher.sampler` and `config.searcher.pruner`."""
    for kind, part in (("sampler", sampler), ("pruner", pruner)):
        inner = part
        while inner is not None:
            name = _find(kind, inner).__name__
            for package, extra in _PACKAGES.get(name, {}).items():
                if importlib.util.find_spec(package) is None:
                    text = f"{name} needs {package}, which the scheduler does not have; install gangline[{extra}] there"
                    raise _fault(kind, text)
            inner = inner.get(_WRAPPED)


def _make(kind: str, part: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    """own: the arguments that Gangline sets."""
    made = _find(kind, part)
    parameters = inspect.signature(made.__init__).parameters
    arguments = {name: value for name, value in part.items() if name != "name"}
    for name in arguments:
        if name in own:
            raise _fault(kind, f"{made.__name__} gets its {name} from the experiment; remove it")
        if name not in parameters or name == "self":
            hidden = {"self", *own}
            known = sorted(key for key in parameters if key not in hidden and not _needs_code(parameters, key))
            nearest = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(known) or 'none'}"
            raise _fault(kind, f"{made.__name__} has no argument {name}; {advice}")
        if _needs_code(parameters, name):
            raise _fault(kind, f"{made.__name__} takes {name} only from Python code; remove it")
    if _WRAPPED in arguments:
        arguments[_WRAPPED] = _make(kind, arguments[_WRAPPED], {})
    seeded = {name: value for name, value in own.items() if name in parameters}
    try:
        with warnings.catch_warnings():
            # Optuna marks new classes as experimental.
            warnings.simplefilter("ignore")
            return made(**arguments, **seeded)
    except (TypeError, ValueError, AssertionError) as error:
        shown = ", ".join(f"{name}: {value}" for name, value in arguments.items()) or "none"
        raise _fault(kind, f"{made.__name__} refuses these arguments ({shown}); see Optuna's documentation") from error


def _find(kind: str, part: Mapping[str, Any]) -> Any:
    import optuna  # noqa: PLC0415 - see the module's docstring

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    module = {"sampler": optuna.samplers, "pruner": optuna.pruners}[kind]
    base = {"sampler": optuna.samplers.BaseSampler, "pruner": optuna.pruners.BasePruner}[kind]
    classes = {
        name: getattr(module, name)
        for name in module.__all__
        if inspect.isclass(getattr(module, name))
        and issubclass(getattr(module, name), base)
        and not inspect.isabstract(getattr(module, name))
    }
    name = str(part["name"])
    full_names = {full.lower(): full for full in classes}
    full = full_names.get(name.lower()) or full_names.get(f"{name}{kind}".lower())
    if full in _OF_GRID:
        raise _fault(kind, f"{full} walks through a grid; use the searcher grid")
    if full is None:
        nearest = difflib.get_close_matches(name, classes, n=1)
        known = ", ".join(known for known in classes if known not in _OF_GRID)
        advice = f"did you mean {nearest[0]}?" if nearest else f"the names are {known}"
        raise _fault(kind, f"Optuna has no {kind} {name!r}; {advice}")
    return classes[full]


def _needs_code(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    return name != _WRAPPED and any(word in str(parameters[name].annotation) for word in _CODE)


def _fault(kind: str, text: str) -> GanglineError:
    return invalid(f"config.searcher.{kind}", f"searcher.{kind}: {text}")
