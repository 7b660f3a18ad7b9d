"""PURE: hyperparameters drawn at random, as a function of the seed and the trial's number alone.

Each trial has a sampler of its own, so it does not matter which trials were drawn before, or by which leader. Optuna
draws. Its import takes a second, so it waits until there is a range to draw from; the scheduler loads it in the
background (`warm_up`) before a transition needs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gangline.config.hyperparameter import Const, ranges_of, sample

if TYPE_CHECKING:
    import optuna


def draw(hyperparameters: Mapping[str, Any], seed: int, number: int) -> dict[str, Any]:
    """Draws one value for each hyperparameter. number: the trial's."""
    return sample(hyperparameters, _Draws(seed, number))


def is_drawn(hyperparameters: Mapping[str, Any]) -> bool:
    """Returns whether any hyperparameter is not a constant, as may be a range that only another version can read."""
    try:
        return not all(isinstance(value_range, Const) for _, value_range in ranges_of(hyperparameters))
    except ValidationError:
        return True


def warm_up() -> None:
    """Loads Optuna. May be called from any thread, and more than once."""
    _ask(0)


def derive_seed(seed: int, number: int) -> int:
    """Returns one of 2**31 seeds for each trial; that of the first trial is the experiment's own."""
    if number == 1:
        return seed
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class _Draws:
    """Draws values. Each call adds a parameter to one Optuna trial, in the order of the configuration's section."""

    def __init__(self, seed: int, number: int) -> None:
        self._seed = derive_seed(seed, number)
        self._trial: optuna.Trial | None = None
        self._num_drawn = 0

    def randint(self, a: int, b: int, /) -> int:
        trial, name = self._next()
        return trial.suggest_int(name, a, b)

    def uniform(self, a: float, b: float, /) -> float:
        trial, name = self._next()
        return trial.suggest_float(name, a, b)

    def choice(self, seq: Sequence[Any], /) -> Any:
        trial, name = self._next()
        return seq[trial.suggest_categorical(name, range(len(seq)))]

    def _next(self) -> tuple[optuna.Trial, str]:
        if self._trial is None:
            self._trial = _ask(self._seed)
        self._num_drawn += 1
        return self._trial, str(self._num_drawn)


def _ask(seed: int) -> optuna.Trial:
    import optuna  # noqa: PLC0415 - a second, which most processes and searches can do without

    # By default Optuna logs every study to stderr, between the lines of the structured log.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
