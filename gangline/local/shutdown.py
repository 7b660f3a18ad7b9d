"""Stops all processes of a local cluster, in the order in which no state is lost.

Agents stop first, so that no new work starts. Then the trial runners stop, which may save a checkpoint and report it
while scheduler and gateway still listen. Scheduler and gateway follow, and etcd is last. It works on processes by
identity. So the supervisor can do it for its children, and `down` for the processes that a killed supervisor left
behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gangline.local.identity import Identity, find_marked, find_openers, stop
from gangline.local.layout import Layout
from gangline.local.process_table import ServiceEntry
from gangline.local.program import MARKER

_SERVICE_GRACE_SECONDS = 10.0
_ORDER = (("scheduler", "gateway"), ("etcd",))


def stop_cluster(
    layout: Layout, services: Sequence[ServiceEntry], grace_seconds: float, report: Callable[[str], None]
) -> None:
    """Returns when no process of the cluster is left. grace_seconds: for the trials. report: gets a line for each
    process that had to be killed."""
    _stop(_of_kind(services, ("agent",)), _SERVICE_GRACE_SECONDS, report)
    _stop(find_runners(layout), grace_seconds, report)
    service_pids = {entry.pid for entry in services}
    # All processes but the services, such as ranks that outlived their runner.
    ranks = [process for process in find_cluster_processes(layout) if process.pid not in service_pids]
    _stop(ranks, 1.0, report)
    for kinds in _ORDER:
        _stop(_of_kind(services, kinds), _SERVICE_GRACE_SECONDS, report)
    _stop(find_cluster_processes(layout), 1.0, report)


def find_cluster_processes(layout: Layout) -> list[Identity]:
    """Returns every process that was started for this data directory, by any parent."""
    return find_marked(MARKER, str(layout.root))


def find_runners(layout: Layout) -> list[Identity]:
    """Returns the trial runners. A living one keeps the lock file in its allocation's folder open."""
    return find_openers(find_cluster_processes(layout), (layout.root / "agents").glob("*/allocations/*/lock"))


def _of_kind(services: Sequence[ServiceEntry], kinds: tuple[str, ...]) -> list[Identity]:
    return [entry.identity for entry in services if entry.kind in kinds and entry.identity is not None]


def _stop(processes: Sequence[Identity], grace_seconds: float, report: Callable[[str], None]) -> None:
    for process in stop(processes, grace_seconds):
        report(f"process {process.pid} did not stop within {grace_seconds:g} s and was killed")
