"""The targets that Prometheus is told to scrape."""

from __future__ import annotations

from gangline.domain.allocation import Allocation, Member, Timeline
from gangline.domain.resource import Agent, ServiceInstance
from gangline.domain.state import AgentState, State
from services.gateway.mirror.discovery import list_targets


def test_every_kind_of_service_has_its_labels() -> None:
    targets = list_targets(
        [
            ServiceInstance("s1", "scheduler", "h:1", metrics_address="h:8083"),
            ServiceInstance("g1", "gateway", "h:2", http_address="h:8080"),
        ],
        [Agent("a1", metrics_address="h:8084")],
        [Allocation("7.1.2", "7.1", 7, 2, 1, "default", (Member("a1", 0, metrics_address="h:9001"),), State.RUNNING)],
    )
    assert {target.address: target.labels for target in targets} == {
        "h:8083": {"service": "scheduler", "instance_id": "h:8083"},
        "h:8080": {"service": "gateway", "instance_id": "h:8080"},
        "h:8084": {"service": "agent", "instance_id": "a1", "agent_id": "a1", "pool": "default"},
        "h:9001": {
            "service": "trial_runner",
            "instance_id": "7.1.2/0",
            "agent_id": "a1",
            "pool": "default",
            "experiment_id": "7",
            "trial_id": "7.1",
            "allocation_id": "7.1.2",
        },
    }


def test_who_serves_no_metrics_or_is_gone_is_left_out() -> None:
    ended = Allocation("7.1.1", "7.1", 7, 1, 1, "p", (Member("a1", 0, metrics_address="h:9"),), State.TERMINAL)
    starting = Allocation("7.1.2", "7.1", 7, 2, 1, "p", (Member("a1", 0),), State.STARTING)
    agents = [Agent("a1"), Agent("a2", state=AgentState.LOST, metrics_address="h:8")]
    assert list_targets([ServiceInstance("s1", "scheduler", "h:1")], agents, [ended, starting]) == []


def test_address_of_another_target_is_not_that_of_a_runner() -> None:
    def started(allocation_id: str, at: float, address: str) -> Allocation:
        members = (Member("a1", 0, metrics_address=address),)
        trial_id = allocation_id.rpartition(".")[0]
        timeline = Timeline(placed_at=at)
        return Allocation(allocation_id, trial_id, 7, 1, 1, "p", members, State.RUNNING, timeline=timeline)

    targets = list_targets(
        [ServiceInstance("g1", "gateway", "h:2", http_address="h:8080")],
        [Agent("a1", metrics_address="h:8084")],
        [
            started("9.1.1", 5.0, "h:9001"),
            started("8.1.1", 4.0, "h:9001"),
            started("5.1.1", 1.0, "h:8080"),
            started("6.1.1", 2.0, "h:8084"),
            started("7.1.1", 3.0, "h:80"),
        ],
    )
    runners = [target for target in targets if target.labels["service"] == "trial_runner"]
    assert [(target.address, target.labels["allocation_id"]) for target in runners] == [("h:9001", "8.1.1")]


def test_order_does_not_depend_on_the_order_of_the_state() -> None:
    agents = [Agent(f"a{number}", metrics_address=f"h:{number}") for number in range(5)]
    assert list_targets([], agents, []) == list_targets([], agents[::-1], [])
