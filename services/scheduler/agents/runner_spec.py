"""Builds the spec with which a trial runner is started, from the leader's records and its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gangline.domain.allocation import Allocation, Member
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.resource import Agent
from gangline.domain.user import User
from gangline.protocol import wire
from gangline.v1 import runner_pb2
from services.common.access.security import allocation_token
from services.scheduler.agents.lease_table import committee_of
from services.scheduler.state.directory import Directory
from services.scheduler.state.records import Records, get


@dataclass(frozen=True)
class SpecSource:
    """Holds the values that all specs of one term share."""

    cluster_id: str
    cluster_token: str
    storage_url: str
    own_address: str  # address of this scheduler
    rendezvous_seconds: float
    network_interface: str
    directory: Directory
    lease_seconds: float
    storage_wait_seconds: float

    def build(self, records: Records, allocation: Allocation, member: Member) -> runner_pb2.RunnerSpec:
        experiment = get(records, Experiment, allocation.experiment_id)
        trial = get(records, Trial, allocation.trial_id)
        checkpoint = records.find(Checkpoint, allocation.checkpoint_id)
        agent = get(records, Agent, member.agent_id)
        owner = records.find(User, experiment.owner)
        slot_by_id = {slot.id: slot for slot in agent.slots}
        return runner_pb2.RunnerSpec(
            allocation=wire.to_proto(allocation),
            node_rank=member.node_rank,
            trial=wire.to_proto(trial),
            config_json=experiment.config_json,
            code_sha256=experiment.code_sha256,
            latest_checkpoint=wire.to_proto(checkpoint) if checkpoint else None,
            cluster_id=self.cluster_id,
            storage_url=self.storage_url,
            scheduler_addresses=self.directory.schedulers_after(self.own_address),
            gateway_addresses=self.directory.addresses_of("gateway"),
            gateway_http_address=self.directory.http_address_of("gateway"),
            token=allocation_token(self.cluster_token, allocation.id),
            rendezvous_seconds=self.rendezvous_seconds,
            slots=[wire.to_proto(slot_by_id[slot_id]) for slot_id in member.slot_ids if slot_id in slot_by_id],
            network_interface=self.network_interface,
            num_agent_slots=len(agent.slots),
            lease_seconds=self.lease_seconds,
            committee=witnesses_of(committee_of(records.all_of(Agent))),
            owner=experiment.owner,
            owner_id=owner.id if owner is not None else 0,
            storage_wait_seconds=self.storage_wait_seconds,
            storage_marker=self.directory.storage_marker,
            has_other_users=has_other_users(records.all_of(User), experiment.owner),
        )


def has_other_users(users: Iterable[User], owner: str) -> bool:
    """Returns whether anybody can submit work who may not open what the owner runs. An administrator may."""
    return any(not (user.is_admin or user.is_deactivated or user.name == owner) for user in users)


def witnesses_of(committee: Iterable[Agent]) -> list[runner_pb2.Witness]:
    return [runner_pb2.Witness(agent_id=agent.id, address=agent.metrics_address) for agent in committee]
