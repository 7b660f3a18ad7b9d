"""PURE: the address at which Prometheus scrapes a trial runner.

A runner's agent names the address, after it has seen the runner's own process listen there
(`agent/allocations/runner_metrics.py`). Reports of runners do not count, because a trial can report in its runner's
name. Only the port is taken from the agent's message, and the host comes from the record of the agent, at which
Prometheus reaches it. A port below 1024 is that of a service of the host, which no runner has. A record may come from
an earlier version that stored what a trial had reported. So discovery applies the same rule again, and leaves out a
runner at the address of a service or of an earlier attempt.
"""

from __future__ import annotations

from gangline.domain.resource import Agent

# The kernel gives a runner a free port, which is never one of the host's well-known services.
FIRST_PORT = 1024


def runner_metrics_address(agent: Agent | None, named: str) -> str:
    """Returns "host:port"; empty where the agent is not known or the address has no usable port.

    The host is that of the agent's own /metrics. For an agent without /metrics only its interfaces are on record: the
    named host counts if it is the address of one, else the first interface does. Loopback comes last, because it
    names another machine for a Prometheus elsewhere.
    """
    host, port = _split(named)
    if agent is None or port < FIRST_PORT:
        return ""
    if agent.metrics_address:
        address = f"{_split(agent.metrics_address)[0]}:{port}"
        return address if address != agent.metrics_address else ""
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
