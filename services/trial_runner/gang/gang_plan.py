"""PURE: this runner's place in its gang, and the environment of each of its processes: its ranks, or the one process
that runs the entrypoint once on this machine.

Owns the names of the variables that torch.distributed, NCCL, gloo and Gangline's library read. The runner calls it with
the network that the rendezvous chose.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from gangline.cluster_info import CHIEF_PORT_KEY, CheckpointInfo, ClusterInfo, TrialInfo
from gangline.domain.entrypoint import program_of, runs_in_every_slot
from gangline.domain.id import number_of
from gangline.domain.settled.reading import load_document, settle
from gangline.domain.settled.record import Settled
from gangline.domain.storage.storage_fault import DEFAULT_WAIT_SECONDS
from gangline.domain.visible_device import ORDER_KEY, PCI_ORDER, VISIBLE_KEY, is_mig
from gangline.launch.beat_file import BEAT_KEY
from gangline.v1 import runner_pb2, types_pb2

LOOPBACK_INTERFACE = "lo"
# A higher number at the end of a slot's name is part of a device's serial number.
_MOST_SLOTS = 64
# Linux starts no program with a longer variable: its name, an equals sign, its value and a null byte.
MAX_VARIABLE_BYTES = 128 << 10
# Variables of the agent's and the runner's own environment that a rank must not inherit: their settings, and the place
# of another torch process.
_FOREIGN = re.compile(
    r"^(GANGLINE_|DET_|TORCHELASTIC_|MASTER_|PET_)|"
    r"^(RANK|LOCAL_RANK|GROUP_RANK|NODE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_WORLD_SIZE|NNODES|NPROC_PER_NODE)$"
)


@dataclass(frozen=True, slots=True)
class Network:
    """The network that connects the ranks."""

    addresses: tuple[str, ...]  # addresses of the members by node rank; the first one has the store
    store_port: int
    interface: str = LOOPBACK_INTERFACE  # interface of this machine in that network

    @property
    def store_address(self) -> str:
        return self.addresses[0]


@dataclass(frozen=True, slots=True)
class GatewayTls:
    """The TLS of the gateways, for programs of a trial that call one. ca_file: empty if they cannot read it."""

    name: str
    ca_file: str


@dataclass(frozen=True, slots=True)
class Place:
    """This machine's part of the gang."""

    agent_id: str
    node_rank: int
    agent_ids: tuple[str, ...]
    first_rank: int  # global rank of this machine's local rank 0
    local_world_size: int  # slots of this machine
    world_size: int  # slots of the gang
    # Whether one process runs the entrypoint on each machine. It counts as the rank of the machine's first slot, and
    # the processes that it starts are its own.
    runs_once: bool = False

    @property
    def num_nodes(self) -> int:
        return len(self.agent_ids)

    @property
    def is_head(self) -> bool:
        """Whether this machine has rank 0."""
        return self.node_rank == 0

    @property
    def needs_store(self) -> bool:
        """Whether the ranks meet in a store of ours. A single rank needs none. A script starts its workers itself."""
        return self.world_size > 1 and not self.runs_once

    @property
    def ranks(self) -> range:
        """The ranks whose processes this machine's runner starts."""
        return self.slot_ranks[:1] if self.runs_once else self.slot_ranks

    @property
    def slot_ranks(self) -> range:
        """The ranks of all slots of this machine. Workers that a script starts may have any of them."""
        return range(self.first_rank, self.first_rank + self.local_world_size)

    def process_of(self, rank: int) -> int:
        """Returns the rank whose process has started the worker of this rank."""
        return self.first_rank if self.runs_once else rank


def find_place(spec: runner_pb2.RunnerSpec) -> Place:
    members = sorted(spec.allocation.members, key=lambda member: member.node_rank)
    # A member without slots (a task that only coordinates) still runs one process.
    sizes = [max(1, len(member.slot_ids)) for member in members]
    return Place(
        agent_id=members[spec.node_rank].agent_id,
        node_rank=spec.node_rank,
        agent_ids=tuple(member.agent_id for member in members),
        first_rank=sum(sizes[: spec.node_rank]),
        local_world_size=sizes[spec.node_rank],
        world_size=sum(sizes),
        runs_once=not runs_in_every_slot(settled_of(spec).entrypoint),
    )


def rank_environment(
    spec: runner_pb2.RunnerSpec,
    place: Place,
    network: Network,
    rank: int,
    *,
    base: Mapping[str, str],
    code_directory: str,
    programs_directory: str,
    socket_path: str,
    beat_path: str,
    num_threads: int,
    gateway_tls: GatewayTls | None = None,
) -> dict[str, str]:
    """Returns the whole environment of one rank.

    base: the runner's own environment. The experiment's variables take precedence over it, and the variables of
    torch.distributed take precedence over both.
    programs_directory: the folder of this Python. It comes first in PATH, so a script that starts python3 gets the same
    Python. Empty leaves PATH as it is.
    gateway_tls: of programs that call a gateway by HTTP; without a CA file they use their own.
    """
    environment = without_settings(base)
    environment["PATH"] = _with_directory(environment.get("PATH", os.defpath), programs_directory)
    environment["OMP_NUM_THREADS"] = str(num_threads)
    environment |= _determined_variables(spec, place, network, gateway_tls)
    environment |= _device_variables(spec, place, rank)
    environment |= experiment_variables(spec)
    environment |= _torch_variables(spec, place, network, rank)
    environment["GANGLINE_RUNNER_SOCKET"] = socket_path
    environment[BEAT_KEY] = beat_path
    return environment | _cluster_info(spec, place, network, rank, code_directory).to_environment()


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that the user's processes may inherit from the runner."""
    return {name: value for name, value in environment.items() if not _FOREIGN.match(name)}


def is_reserved(name: str) -> bool:
    """Whether the runner alone sets this variable."""
    return bool(_FOREIGN.match(name))


def threads_per_rank(spec: runner_pb2.RunnerSpec, place: Place, num_cores: int) -> int:
    """Returns the experiment's OMP_NUM_THREADS, or else one slot's share of the machine's cores.

    The share counts all slots of the agent, because ranks of other trials use the other ones. If there are more threads
    than cores, all of them become many times slower.
    """
    asked = experiment_variables(spec).get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked):
        return int(asked)
    return max(1, num_cores // max(place.local_world_size, spec.num_agent_slots))


def experiment_variables(spec: runner_pb2.RunnerSpec) -> dict[str, str]:
    """Returns the experiment's environment.environment_variables for this kind of slot."""
    variables = settled_of(spec).environment.environment_variables
    entries = variables.cuda if _is_gpu(spec) else variables.cpu
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def settled_of(spec: runner_pb2.RunnerSpec) -> Settled:
    """Returns the experiment's configuration. It is settled once in a runner, which has one attempt at a time."""
    return _settle(spec.config_json)


@lru_cache(maxsize=1)
def _settle(config_json: str) -> Settled:
    return settle(config_json)


def find_program(spec: runner_pb2.RunnerSpec) -> list[str]:
    """Returns the command that replaces the ranks' processes; empty if Python runs the entrypoint in them."""
    return program_of(settled_of(spec).entrypoint)


def needs_no_library(spec: runner_pb2.RunnerSpec) -> bool:
    """Whether this member starts no process that uses Gangline's libraries: neither its ranks nor a store beside
    them."""
    place = find_place(spec)
    return bool(find_program(spec)) and not (place.needs_store and place.is_head)


def needs_no_warmth(spec: runner_pb2.RunnerSpec) -> bool:
    """Whether a fork of the runner itself can start this member's processes: those of no container, without
    libraries."""
    return needs_no_library(spec) and not settled_of(spec).has_image


def _with_directory(path: str, directory: str) -> str:
    first, _, _ = path.partition(os.pathsep)
    return path if directory in ("", first) else f"{directory}{os.pathsep}{path}"


def _torch_variables(spec: runner_pb2.RunnerSpec, place: Place, network: Network, rank: int) -> dict[str, str]:
    sockets = {"GLOO_SOCKET_IFNAME": network.interface, "NCCL_SOCKET_IFNAME": network.interface}
    if place.runs_once:
        # No rank is set: the script's own launcher numbers its workers, and a script without one is a world of its own.
        return {
            "NODE_RANK": str(place.node_rank),
            "NNODES": str(place.num_nodes),
            "NPROC_PER_NODE": str(place.local_world_size),
            "MASTER_ADDR": network.store_address,
            "MASTER_PORT": str(network.store_port),
            CHIEF_PORT_KEY: str(network.store_port + 1),
            **sockets,
        }
    # A single rank that needs a store hosts it itself, on a port that the kernel picks.
    store = {"TORCHELASTIC_USE_AGENT_STORE": "True"} if place.needs_store else {"MASTER_PORT": "0"}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - place.first_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(place.node_rank),
        "GROUP_WORLD_SIZE": str(place.num_nodes),
        "MASTER_ADDR": network.store_address,
        "MASTER_PORT": str(network.store_port),
        "TORCHELASTIC_RESTART_COUNT": str(spec.allocation.attempt),
        "TORCHELASTIC_RUN_ID": spec.allocation.id,
        **sockets,
        **store,
    }


def _determined_variables(
    spec: runner_pb2.RunnerSpec, place: Place, network: Network, gateway_tls: GatewayTls | None
) -> dict[str, str]:
    """Returns the variables that Determined sets in the processes of a trial, for scripts that read them. Their form is
    that of `determined.get_cluster_info()`.

    DET_SESSION_TOKEN is not among them: a process of a trial holds no credentials of the cluster. DET_MASTER alone
    serves programs that log in by themselves.
    """
    num_slots = len(spec.allocation.members[spec.node_rank].slot_ids)
    steps = spec.latest_checkpoint.batches_completed if spec.HasField("latest_checkpoint") else 0
    variables = {
        "DET_CLUSTER_ID": spec.cluster_id,
        "DET_AGENT_ID": place.agent_id,
        "DET_TASK_TYPE": settled_of(spec).task_kind or "TRIAL",
        "DET_TASK_ID": spec.trial.id,
        "DET_ALLOCATION_ID": spec.allocation.id,
        "DET_EXPERIMENT_ID": str(spec.trial.experiment_id),
        "DET_TRIAL_ID": str(number_of(spec.trial.id)),
        "DET_TRIAL_SEED": str(spec.trial.seed),
        **{name: value for name, value in _determined_documents(spec).items() if _fits(name, value)},
        "DET_SLOT_IDS": json.dumps(list(range(num_slots))),
        "DET_CHIEF_IP": network.store_address,
        "DET_INTER_NODE_NETWORK_INTERFACE": network.interface,
        "DET_UNIQUE_PORT_OFFSET": str(_first_slot_number(spec)),
        "DET_CONTAINER_ID": f"{spec.allocation.id}.{place.node_rank}",
        "DET_RESOURCES_ID": f"{spec.allocation.id}.{place.node_rank}",
        "DET_TRIAL_RUN_ID": str(spec.allocation.attempt),
        "DET_STEPS_COMPLETED": str(steps),
        "DET_USE_GPU": str(int(_is_gpu(spec))),
        "DET_SLOT_TYPE": "cuda" if _is_gpu(spec) else "cpu",
    }
    if spec.gateway_http_address:
        scheme = "http" if gateway_tls is None else "https"
        variables["DET_MASTER"] = f"{scheme}://{spec.gateway_http_address}"
    if gateway_tls is not None and gateway_tls.ca_file:
        # Determined's client compares the certificate with this name in place of the host of DET_MASTER.
        variables["DET_MASTER_CERT_NAME"] = gateway_tls.name
        variables["DET_MASTER_CERT_FILE"] = gateway_tls.ca_file
    if spec.HasField("latest_checkpoint"):
        variables["DET_LATEST_CHECKPOINT"] = spec.latest_checkpoint.id
    return variables


def _determined_documents(spec: runner_pb2.RunnerSpec) -> dict[str, str]:
    """Returns those of Determined's variables that may be too long for a variable."""
    return {
        "DET_HPARAMS": spec.trial.hyperparameters_json or "{}",
        "DET_EXPERIMENT_CONFIG": spec.config_json or "{}",
    }


def _fits(name: str, value: str) -> bool:
    return len(f"{name}={value}".encode()) < MAX_VARIABLE_BYTES


def _describe_left_out(spec: runner_pb2.RunnerSpec) -> list[str]:
    """Returns a line for the trial's log about variables that are too long for Linux; empty if there are none."""
    names = [name for name, value in _determined_documents(spec).items() if not _fits(name, value)]
    if not names:
        return []
    limit = f"Linux takes no variable of {MAX_VARIABLE_BYTES >> 10} KiB or more"
    return [f"{' and '.join(names)} not set: {limit}; read get_cluster_info().trial in its place"]


def _first_slot_number(spec: runner_pb2.RunnerSpec) -> int:
    """Returns the number of the gang's first slot on its machine, which differs between the trials of a machine. All
    machines of a gang return the same."""
    head = min(spec.allocation.members, key=lambda member: member.node_rank)
    numbers = [int(digits[-1]) for slot in head.slot_ids if (digits := re.findall(r"\d+", slot.rpartition("/")[2]))]
    return min((number for number in numbers if number < _MOST_SLOTS), default=0)


def _device_variables(spec: runner_pb2.RunnerSpec, place: Place, rank: int) -> dict[str, str]:
    """Returns the variables that CUDA reads. Every process of a machine sees all GPUs that its allocation has there,
    and a rank uses the one of its local rank. CUDA shows only the first of several MIG devices, so each rank gets its
    own."""
    names = [_device_name(slot) for slot in spec.slots if _is_device(slot)]
    variables = {VISIBLE_KEY: ",".join(names)}
    if not names:
        return variables
    variables[ORDER_KEY] = PCI_ORDER
    if any(map(is_mig, names)) and len(names) > 1:
        # NCCL takes MIG devices of one GPU for the GPU itself, which it refuses to give to several ranks without this.
        variables["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        if not place.runs_once:
            variables[VISIBLE_KEY] = names[rank - place.first_rank]
    return variables


def _device_name(slot: types_pb2.Slot) -> str:
    return slot.uuid or slot.id.rpartition("/")[2].removeprefix("gpu-")


def _is_device(slot: types_pb2.Slot) -> bool:
    return slot.kind == types_pb2.SLOT_KIND_GPU


def _is_gpu(spec: runner_pb2.RunnerSpec) -> bool:
    return any(_is_device(slot) for slot in spec.slots)


def _cluster_info(
    spec: runner_pb2.RunnerSpec, place: Place, network: Network, rank: int, code_directory: str
) -> ClusterInfo:
    trial = TrialInfo(
        trial_id=spec.trial.id,
        experiment_id=spec.trial.experiment_id,
        trial_seed=spec.trial.seed,
        hparams=json.loads(spec.trial.hyperparameters_json or "{}"),
        config=load_document(spec.config_json),
        strategy_choice_json=spec.trial.strategy_choice_json,
    )
    checkpoint = None
    if spec.HasField("latest_checkpoint"):
        latest = spec.latest_checkpoint
        checkpoint = CheckpointInfo(latest.id, latest.url, latest.batches_completed)
    return ClusterInfo(
        cluster_id=spec.cluster_id,
        allocation_id=spec.allocation.id,
        attempt=spec.allocation.attempt,
        agent_id=place.agent_id,
        node_rank=place.node_rank,
        num_nodes=place.num_nodes,
        slot_ids=list(spec.allocation.members[spec.node_rank].slot_ids),
        storage_url=spec.storage_url,
        code_directory=code_directory,
        trial=trial,
        latest_checkpoint=checkpoint,
        addresses=list(network.addresses),
        rank=rank,
        world_size=place.world_size,
        full_world_size=spec.allocation.full_slots,
        runs_once=place.runs_once,
        storage_wait_seconds=spec.storage_wait_seconds or DEFAULT_WAIT_SECONDS,
        storage_marker=spec.storage_marker,
        warnings=_warnings_of(spec),
    )


def describe_start(spec: runner_pb2.RunnerSpec) -> list[str]:
    """Returns the lines with which the trial's log of this attempt begins."""
    return [*describe_earlier(spec), *_describe_left_out(spec)]


def describe_earlier(spec: runner_pb2.RunnerSpec) -> list[str]:
    """Returns a line for the trial's log about the failure of the attempt before this one; empty if that attempt ended
    without a failure. A corrupt checkpoint has a warning of its own."""
    usages, failure = spec.trial.attempt_usages, spec.trial.last_failure
    failed_at = failure.failed_at or failure.ended_at
    if not usages or failed_at < usages[-1].started_at or failure.kind == types_pb2.EXIT_KIND_CHECKPOINT_CORRUPT:
        return []
    who = f"rank {failure.rank} on {failure.agent_id}" if failure.HasField("rank") else failure.agent_id
    return [f"the attempt before this one (attempt {usages[-1].attempt}) failed: {who}: {failure.message}"]


def _warnings_of(spec: runner_pb2.RunnerSpec) -> list[str]:
    """Returns the warnings for the trial's log. A warning about a corrupt checkpoint ends with the first checkpoint
    that is saved after the failure."""
    latest, failure = spec.latest_checkpoint, spec.trial.last_failure
    is_older = latest.created_at < failure.failed_at
    if failure.kind != types_pb2.EXIT_KIND_CHECKPOINT_CORRUPT or not spec.HasField("latest_checkpoint") or not is_older:
        return []
    text = f"training goes on from the older checkpoint {latest.id} after batch {latest.batches_completed}"
    return [f"{failure.message}: {text}"]
