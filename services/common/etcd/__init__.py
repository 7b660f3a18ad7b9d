"""The one client of etcd: what services import.

See `client.py` for the calls and `record.py` for what they exchange. Owns no code.
"""

from services.common.etcd.client import EtcdClient
from services.common.etcd.health import HealthWatch
from services.common.etcd.lease import Lease
from services.common.etcd.record import (
    Committed,
    Compacted,
    Delete,
    EtcdHealth,
    Event,
    Guard,
    KeyValue,
    Listing,
    Put,
    Unsure,
    WatchBatch,
)
from services.common.etcd.settings import EtcdSettings

__all__ = [
    "Committed",
    "Compacted",
    "Delete",
    "EtcdClient",
    "EtcdHealth",
    "EtcdSettings",
    "Event",
    "Guard",
    "HealthWatch",
    "KeyValue",
    "Lease",
    "Listing",
    "Put",
    "Unsure",
    "WatchBatch",
]
