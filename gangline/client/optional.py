"""The parts of the SDK that need a package which `pip install gangline` leaves out: pandas and torch.

Nothing here loads such a package before a caller asks for it. Called by gangline.client.handle.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gangline.domain.history import StoredMetrics
from gangline.errors import GanglineError, invalid

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")


def check_pandas() -> None:
    """Raises GanglineError `client.no_pandas` where pandas is not installed."""
    _check("pandas", "pandas", "or read the entries one by one")


def make_frame(entries: Sequence[StoredMetrics]) -> DataFrame:
    """Returns one row for each report, in their order, with the columns trial_id, group, batches_completed,
    attempt, at (in UTC), and one column for each metric. A number that a report lacks is NaN, any other metric None."""
    import pandas  # noqa: PLC0415 - takes half a second to load, and is not always there

    names = dict.fromkeys(name for entry in entries for name in entry.point.metrics)
    columns: dict[str, Any] = {
        "trial_id": [entry.trial_id for entry in entries],
        "group": [entry.point.group for entry in entries],
        "batches_completed": [entry.point.batches_completed for entry in entries],
        "attempt": [entry.attempt for entry in entries],
        "at": pandas.to_datetime([entry.at for entry in entries], unit="s", utc=True),
    }
    # A trial may name a metric like one of these columns.
    for name in names:
        column = f"metric_{name}" if name in columns else name
        columns[column] = [entry.point.metrics.get(name) for entry in entries]
    numbers = list(columns)[5:]
    values = [entry.point.values for entry in entries]
    for name in dict.fromkeys(name for each in values for name in each):
        column = f"value_{name}" if name in columns else name
        columns[column] = pandas.Series([each.get(name) for each in values], dtype="object")
    return pandas.DataFrame(columns).astype(dict.fromkeys(numbers, "float64"))


def load_trial(
    folder: Path, trial_class: type[T], trial_kwargs: Mapping[str, Any] | None, config: Mapping[str, Any] | None
) -> T:
    """Returns a trial with the states of a checkpoint's folder, as gangline.pytorch.load_trial_from_checkpoint_path."""
    _check("torch", "train", "or use download() and read the files where torch is installed")
    from gangline.pytorch.load import load_trial_from_checkpoint_path  # noqa: PLC0415 - loads torch
    from gangline.pytorch.trial.trial import PyTorchTrial  # noqa: PLC0415 - loads torch

    if not (isinstance(trial_class, type) and issubclass(trial_class, PyTorchTrial)):
        raise invalid(
            "checkpoint.no_code", f"{trial_class!r:.100} is no class of trials; give the PyTorchTrial that saved it"
        )
    return load_trial_from_checkpoint_path(folder, trial_class, trial_kwargs, exp_conf=config)


def _check(package: str, extra: str, otherwise: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as failure:
        raise GanglineError(
            f"client.no_{package}",
            f"{package} cannot be imported ({failure}); install it with: pip install 'gangline[{extra}]' "
            f"(docs/install.md says from where), {otherwise}",
        ) from failure
