"""The one client of etcd, and the names that services import: calls, transactions, leases, watches, health.

The calls are in `client.py`, the records that they exchange in `record.py`. This module owns no code.

Start: client.py
"""

from services.common.etcd.client import EtcdClient
from services.common.etcd.health import HealthWatch
from services.common.etcd.lease import Lease
from services.common.etcd.record import (
    Committed,
    Compacted,
    Delete,
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
