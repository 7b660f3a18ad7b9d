"""The names of `determined` itself, beside its submodules."""

from gangline.alias.cluster_info import ClusterInfo, TrialInfo, get_cluster_info
from gangline.errors import InvalidHP

LOG_FORMAT = "%(levelname)s: [%(process)d] %(name)s: %(message)s"
# The version of Determined whose names and meanings these are.
__version__ = "0.38.1"

__all__ = ["LOG_FORMAT", "ClusterInfo", "InvalidHP", "TrialInfo", "__version__", "get_cluster_info"]
