"""PURE: the arguments of `gangline up`, as plain data that the supervisor reads from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from gangline.errors import invalid


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The plan of a local cluster."""

    num_agents: int
    slots: str  # slots of each agent; "auto" takes the machine's GPUs
    port_by_name: dict[str, int] = field(default_factory=dict)  # by names such as "gateway.http"; empty until chosen

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def parse(text: str) -> ClusterPlan:
        return ClusterPlan(**json.loads(text))

    @property
    def agent_names(self) -> list[str]:
        return [f"agent-{number}" for number in range(1, self.num_agents + 1)]

    def count_slots(self, slots_by_agent: Mapping[str, int]) -> int | None:
        """Returns the slots of its agents once each has joined with the slots that it was started with; None until
        then. Slots of an agent in slots_by_agent may be from its last run."""
        joined = [slots_by_agent.get(name) for name in self.agent_names]
        counts = [number for number in joined if number is not None and self.slots in ("auto", str(number))]
        return sum(counts) if len(counts) == self.num_agents else None

    @property
    def port_names(self) -> list[str]:
        """Returns the name of every port that the cluster needs."""
        fixed = ["scheduler.grpc", "scheduler.metrics", "gateway.grpc", "gateway.http"]
        return [*fixed, *(f"{agent}.metrics" for agent in self.agent_names)]


@dataclass(frozen=True, slots=True)
class UpRequest:
    """The arguments of `gangline up` as the user gave them."""

    num_agents: int | None = None  # None if left out
    slots: str | None = None  # None if left out
    http_port: int = 0  # 0 if left out
    grpc_port: int = 0  # 0 if left out

    def find_differences(self, plan: ClusterPlan) -> list[str]:
        """Returns the options that a running cluster of this plan does not have as they were given."""
        has = {
            "--agents": (self.num_agents, plan.num_agents),
            "--slots": (self.slots, plan.slots),
            "--http-port": (self.http_port or None, plan.port_by_name.get("gateway.http")),
            "--grpc-port": (self.grpc_port or None, plan.port_by_name.get("gateway.grpc")),
        }
        return [f"{name} {own}" for name, (wanted, own) in has.items() if wanted is not None and wanted != own]


def make_plan(num_agents: int | None, slots: str | None, http_port: int = 0, grpc_port: int = 0) -> ClusterPlan:
    """Checks a user's arguments. num_agents None: two with artificial slots, one with GPUs. slots None: 2.

    Raises GanglineError: local.slots, local.agents, local.port.
    """
    slots = "2" if slots is None else slots
    if slots != "auto" and not (slots.isascii() and slots.isdigit() and 0 < int(slots) <= 64):
        raise invalid(
            "local.slots", f"--slots takes a number from 1 to 64, or auto for this machine's GPUs, not {slots!r}"
        )
    if num_agents is None:
        num_agents = 1 if slots == "auto" else 2
    if not 1 <= num_agents <= 64:
        raise invalid("local.agents", f"--agents takes a number from 1 to 64, not {num_agents}")
    if slots == "auto" and num_agents > 1:
        raise invalid("local.agents", f"--slots auto gives this machine's GPUs to one agent, not to {num_agents}")
    if http_port and http_port == grpc_port:
        raise invalid("local.port", f"--http-port and --grpc-port are both {http_port}; give two different ports")
    wanted_ports = {"gateway.http": http_port, "gateway.grpc": grpc_port}
    return ClusterPlan(num_agents, slots, {name: port for name, port in wanted_ports.items() if port})
