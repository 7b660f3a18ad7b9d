"""PURE: lists the modules and names of Determined that have a counterpart in Gangline."""

from __future__ import annotations

from gangline.alias.cluster_info import ClusterInfo, TrialInfo, get_cluster_info
from gangline.errors import InvalidHP

ROOT = "determined"

TARGET_BY_MODULE = {
    ROOT: "gangline.determined.root",
    "determined.core": "gangline.determined.core",
    "determined.errors": "gangline.determined.error_class",
    "determined.experimental": "gangline.determined.sdk.experimental",
    "determined.experimental.client": "gangline.determined.sdk.experimental_client",
    "determined.experimental.core_v2": "gangline.determined.sdk.core_v2",
    "determined.launch": "gangline.launch",
    "determined.launch.torch_distributed": "gangline.launch.torch_distributed",
    "determined.launch.wrap_rank": "gangline.launch.wrap_rank",
    "determined.pytorch": "gangline.pytorch",
    "determined.pytorch.experimental": "gangline.determined.batch_process",
    "determined.pytorch.samplers": "gangline.pytorch.sampler",
    "determined.tensorboard": "gangline.alias",
    "determined.tensorboard.metric_writers": "gangline.alias",
    "determined.tensorboard.metric_writers.pytorch": "gangline.pytorch.writer",
    "determined.transformers": "gangline.transformers",
    "determined.util": "gangline.determined.function",
}


# Modules that import a library of the user, with their names, for readers that do not have the library.
NAMES_BY_OPTIONAL_MODULE = {
    "determined.transformers": (
        "DetCallback",
        *(f"DetCallback.on_{event}" for event in ("epoch_end", "log", "save", "step_end")),
    )
}

# These run with `python -m`, so the finder must not make packages of them.
PROGRAMS = ("determined.launch.torch_distributed", "determined.launch.wrap_rank")


def is_ours(module: str) -> bool:
    return module == ROOT or module.startswith(f"{ROOT}.")


def submodule(module: str, name: str) -> str | None:
    """Returns the full name of the submodule where Gangline has a counterpart, else None."""
    full = f"{module}.{name}"
    return full if full in TARGET_BY_MODULE else None


LOG_FORMAT = "%(levelname)s: [%(process)d] %(name)s: %(message)s"
# The version of Determined whose names and meanings these are.
__version__ = "0.38.1"

__all__ = ["LOG_FORMAT", "ClusterInfo", "InvalidHP", "TrialInfo", "__version__", "get_cluster_info"]
