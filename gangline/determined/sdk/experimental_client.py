"""`determined.experimental.client`: the calls of `Determined` as functions, over one client of this process.

`login` makes the client; without it the first call uses the login of `gangline login`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from gangline.determined.sdk import experimental
from gangline.determined.sdk.experimental import *  # noqa: F403  Determined has all of its names in both modules
from gangline.determined.sdk.experimental import Determined

P = ParamSpec("P")
T = TypeVar("T")

# The client of this process, or nothing before the first call.
_clients: list[Determined] = []


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    cert_path: str | None = None,
    cert_name: str | None = None,
    noverify: bool = False,
) -> None:
    """Chooses the cluster for the other functions. The arguments are those of `Determined`."""
    _clients[:] = [Determined(master, user, password, cert_path, cert_name, noverify)]


def _function(method: Callable[Concatenate[Determined, P], T]) -> Callable[P, T]:
    """Returns the method as a function of this process's client."""

    @wraps(method)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        if not _clients:
            login()
        return method(_clients[0], *arguments, **options)

    return call


create_experiment = _function(Determined.create_experiment)
get_checkpoint = _function(Determined.get_checkpoint)
get_experiment = _function(Determined.get_experiment)
get_trial = _function(Determined.get_trial)
iter_trials_metrics = _function(Determined.iter_trials_metrics)
list_experiments = _function(Determined.list_experiments)
stream_trials_metrics = _function(Determined.stream_trials_metrics)
stream_trials_training_metrics = _function(Determined.stream_trials_training_metrics)
stream_trials_validation_metrics = _function(Determined.stream_trials_validation_metrics)

__all__ = list(experimental.__all__)
__all__ += [
    "create_experiment",
    "get_checkpoint",
    "get_experiment",
    "get_trial",
    "iter_trials_metrics",
    "list_experiments",
    "login",
    "stream_trials_metrics",
    "stream_trials_training_metrics",
    "stream_trials_validation_metrics",
]
