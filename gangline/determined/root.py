"""The names of the package `determined` itself.

Those of `surface.py`, and a few that load more: the finder asks for each name only when a program uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangline.alias.surface import LOG_FORMAT, ClusterInfo, InvalidHP, TrialInfo, __version__, get_cluster_info
from gangline.determined.experiment_config import ExperimentConfig
from gangline.determined.import_path import import_from_path

if TYPE_CHECKING:
    from gangline.pytorch import PyTorchTrialContext as TrialContext

__all__ = [
    "LOG_FORMAT",
    "ClusterInfo",
    "ExperimentConfig",
    "InvalidHP",
    "TrialContext",
    "TrialInfo",
    "__version__",
    "get_cluster_info",
    "import_from_path",
]


def __getattr__(name: str) -> Any:
    """Returns TrialContext, the base of Determined's contexts, of which there is one here. Only its use loads torch."""
    if name != "TrialContext":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gangline.pytorch import PyTorchTrialContext  # noqa: PLC0415  see above

    return PyTorchTrialContext
