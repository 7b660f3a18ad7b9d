"""Where Prometheus scrapes a runner: at the address that its agent names, if it is on the agent's host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.resource import Agent, NetworkInterface
from services.common.metrics_address import runner_metrics_address

_LO = NetworkInterface("lo", "127.0.0.1", 8)
_ETH0 = NetworkInterface("eth0", "10.0.0.7", 24)
_ETH1 = NetworkInterface("eth1", "10.1.0.7", 24)


_REMOTE = Agent("a1", interfaces=(_LO, _ETH0, _ETH1), metrics_address="10.0.0.7:8084")


@pytest.mark.parametrize("named", ["10.0.0.7:9001", "10.1.0.7:9001"])
def test_runner_is_scraped_where_it_listens_on_its_agents_host(named: str) -> None:
    assert runner_metrics_address(_REMOTE, named) == named
    assert runner_metrics_address(replace(_REMOTE, metrics_address=""), named) == named
    assert runner_metrics_address(replace(_REMOTE, metrics_address="gpu1:8084"), named) == named


@pytest.mark.parametrize("named", ["10.9.9.9:9001", "169.254.169.254:9001", "evil@host/x?:9001", "10.0.0.7:8084", ":9"])
def test_no_other_host_or_target_is_scraped(named: str) -> None:
    assert runner_metrics_address(_REMOTE, named) == ""


def test_loopback_is_scraped_only_where_the_agent_is_reached_over_it() -> None:
    named = "127.0.0.1:9001"
    assert runner_metrics_address(_REMOTE, named) == ""
    assert runner_metrics_address(replace(_REMOTE, metrics_address=""), named) == ""
    assert runner_metrics_address(replace(_REMOTE, metrics_address="127.0.0.1:8084"), named) == named
    assert runner_metrics_address(Agent("a1", interfaces=(_LO,)), named) == named


def test_ipv6_address_is_replaced_by_the_host_of_the_agents_metrics() -> None:
    assert runner_metrics_address(Agent("a1", metrics_address="[fd00::7]:8084"), "[fd00::9]:9001") == "[fd00::7]:9001"
    assert runner_metrics_address(Agent("a1", interfaces=(_ETH0,)), "[fd00::9]:9001") == ""


@pytest.mark.parametrize("reported", ["", "h", "h:", "h:0", "h:70000", "h:-1", "h:9001/x", "h:²", "h:1e3"])
def test_report_without_a_port_is_no_target(reported: str) -> None:
    assert runner_metrics_address(Agent("a1", metrics_address="10.0.0.7:8084"), reported) == ""


def test_unknown_agent_is_no_target() -> None:
    assert runner_metrics_address(None, "10.0.0.7:9001") == ""
    assert runner_metrics_address(Agent("a1"), "10.0.0.7:9001") == ""
