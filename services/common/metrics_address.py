"""PURE: the address at which Prometheus scrapes a trial runner.

A runner reports its address, and a trial can report in its runner's name. So the report decides only on the port, and
the host comes from the record of the runner's agent. Otherwise a trial could make Prometheus call any server within its
reach.
"""

from __future__ import annotations

from gangline.domain.resource import Agent


def runner_metrics_address(agent: Agent | None, reported: str) -> str:
    """Returns "host:port"; empty where the agent is not known or the report has no usable port.

    The host is that of the agent's own /metrics. For an agent without /metrics only its interfaces are on record: the
    reported host counts if it is the address of one, else the first interface does. Loopback comes last, because it
    names another machine for a Prometheus elsewhere.
    """
    host, port = _split(reported)
    if agent is None or not port:
        return ""
    if agent.metrics_address:
        return f"{_split(agent.metrics_address)[0]}:{port}"
    own = sorted((interface.address for interface in agent.interfaces), key=_is_loopback)
    chosen = host if host in own and not _is_loopback(host) else next(iter(own), "")
    return f"{chosen}:{port}" if chosen else ""


def _split(address: str) -> tuple[str, int]:
    """Splits an address. Port 0 means that it has none."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    return host, int(port) if is_port else 0


def _is_loopback(host: str) -> bool:
    return host.startswith("127.")
