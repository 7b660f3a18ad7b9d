from typing import Final

from gangline.client import AsyncClient as AsyncClient
from gangline.client import Checkpoint as Checkpoint
from gangline.client import Client as Client
from gangline.client import Experiment as Experiment
from gangline.client import Trial as Trial
from gangline.cluster_info import ClusterInfo as ClusterInfo
from gangline.cluster_info import get_cluster_info as get_cluster_info
from gangline.errors import GanglineError as GanglineError
from gangline.errors import InvalidHP as InvalidHP

__version__: Final[str]
