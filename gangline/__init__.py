"""The library that users import. Importing it loads neither torch nor grpc."""

from gangline.cluster_info import ClusterInfo, get_cluster_info
from gangline.errors import GanglineError, InvalidHP

__version__ = "0.1.0"

__all__ = ["ClusterInfo", "GanglineError", "InvalidHP", "__version__", "get_cluster_info"]
