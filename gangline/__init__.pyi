from typing import Final

from gangline.client import AsyncClient, Checkpoint, Client, Experiment, Trial
from gangline.cluster_info import ClusterInfo, get_cluster_info
from gangline.errors import GanglineError, InvalidHP

__version__: Final[str]

__all__ = [
    "AsyncClient",
    "Checkpoint",
    "Client",
    "ClusterInfo",
    "Experiment",
    "GanglineError",
    "InvalidHP",
    "Trial",
    "__version__",
    "get_cluster_info",
]
