"""PURE: the address at which Prometheus scrapes a trial runner.

A runner's agent names the address, after it has seen the runner's own process listen there
(`agent/allocations/runner_metrics.py`). Reports of runners do not count, because a trial can report in its runner's
name. The address is used as a whole: at another address of the host, a trial could listen at the same port. A record
may come from an earlier version that stored what a trial had reported. So discovery applies the same rule again: the
host must be one of the agent's, the port none of the host's services, and the address no other target's.
"""

from __future__ import annotations

from gangline.domain.resource import Agent

# The kernel gives a runner a free port, which is never one of the host's well-known services.
FIRST_PORT = 1024


def runner_metrics_address(agent: Agent | None, named: str) -> str:
    """Returns the named "host:port"; empty unless Prometheus can reach it on this agent's host.

    The host must be that of the agent's own /metrics, or the address of one of its interfaces. Loopback counts only
    where the agent is reached over it as well, because it names another machine for a Prometheus elsewhere. Agents have
    no IPv6 interfaces on record, so the host of the agent's /metrics replaces an IPv6 address.
    """
    host, port = _split(named)
    if agent is None or port < FIRST_PORT:
        return ""
    metrics_host = _split(agent.metrics_address)[0]
    if host.startswith("["):
        host = metrics_host
    hosts = [metrics_host] if metrics_host else []
    is_local = all(map(_is_loopback, hosts or [interface.address for interface in agent.interfaces]))
    hosts += [interface.address for interface in agent.interfaces]
    address = f"{host}:{port}"
    if host not in hosts or (_is_loopback(host) and not is_local) or address == agent.metrics_address:
        return ""
    return address


def _split(address: str) -> tuple[str, int]:
    """Splits an address. Port 0 means that it has none."""
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    return host, int(port) if is_port else 0


def _is_loopback(host: str) -> bool:
    return host.startswith("127.")
