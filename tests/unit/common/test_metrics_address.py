"""Where Prometheus scrapes a runner: the port that it reports, on the host that its agent has on record."""

from __future__ import annotations

import pytest

from gangline.domain.resource import Agent, NetworkInterface
from services.common.metrics_address import runner_metrics_address

_LO = NetworkInterface("lo", "127.0.0.1", 8)
_ETH0 = NetworkInterface("eth0", "10.0.0.7", 24)
_ETH1 = NetworkInterface("eth1", "10.1.0.7", 24)


@pytest.mark.parametrize("reported", ["10.9.9.9:9001", "169.254.169.254:9001", "127.0.0.1:9001", "evil@host/x?:9001"])
def test_host_is_that_of_the_agents_own_metrics(reported: str) -> None:
    assert runner_metrics_address(Agent("a1", metrics_address="10.0.0.7:8084"), reported) == "10.0.0.7:9001"
    assert runner_metrics_address(Agent("a1", metrics_address="[fd00::7]:8084"), reported) == "[fd00::7]:9001"


@pytest.mark.parametrize(
    ("reported", "address"),
    [
        ("10.1.0.7:9001", "10.1.0.7:9001"),
        ("169.254.169.254:9001", "10.0.0.7:9001"),
        ("127.0.0.1:9001", "10.0.0.7:9001"),
    ],
)
def test_agent_without_metrics_has_its_interfaces(reported: str, address: str) -> None:
    assert runner_metrics_address(Agent("a1", interfaces=(_LO, _ETH0, _ETH1)), reported) == address
    assert runner_metrics_address(Agent("a1", interfaces=(_LO,)), reported) == "127.0.0.1:9001"


@pytest.mark.parametrize("reported", ["", "h", "h:", "h:0", "h:70000", "h:-1", "h:9001/x", "h:²", "h:1e3"])
def test_report_without_a_port_is_no_target(reported: str) -> None:
    assert runner_metrics_address(Agent("a1", metrics_address="10.0.0.7:8084"), reported) == ""


def test_unknown_agent_is_no_target() -> None:
    assert runner_metrics_address(None, "10.0.0.7:9001") == ""
    assert runner_metrics_address(Agent("a1"), "10.0.0.7:9001") == ""
