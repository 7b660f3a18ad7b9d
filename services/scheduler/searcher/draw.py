"""PURE: hyperparameters drawn at random: a function of the seed and the trial's number, and of nothing else.

A sampler of its own for each trial makes it so: which trials were drawn before, by which leader, does not matter.
Optuna draws; it takes a second to import, so that waits until there is a range to draw from, and the scheduler has it
loaded beside its work (`warm_up`) before a transition needs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gangline.config.hyperparameter import Const, ranges_of, sample

if TYPE_CHECKING:
    import optuna


def draw(hyperparameters: Mapping[str, Any], seed: int, number: int) -> dict[str, Any]:
    """One value for each hyperparameter. number: the trial's."""
    return sample(hyperparameters, _Draws(seed, number))


def is_drawn(hyperparameters: Mapping[str, Any]) -> bool:
    """Whether anything but constants is among them."""
    return not all(isinstance(found, Const) for _, found in ranges_of(hyperparameters))


def warm_up() -> None:
    """Loads Optuna. May be called from any thread, and again."""
    _ask(0)


def derive_seed(seed: int, number: int) -> int:
    """One of 2**31 seeds for each trial; that of the first trial is the experiment's own."""
    if number == 1:
        return seed
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class _Draws:
    """Each call is one more parameter of a trial of Optuna's. The order of the calls is that of the section."""

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

    # It would announce every study on stderr, between the lines of the structured log.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
