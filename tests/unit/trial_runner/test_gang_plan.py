"""A runner's place in its gang and what its ranks find in their environment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangline.cluster_info import ENVIRONMENT_KEY, ClusterInfo
from gangline.v1 import types_pb2
from services.trial_runner.gang.gang_plan import (
    GatewayTls,
    Network,
    describe_earlier,
    find_place,
    find_program,
    needs_no_warmth,
    rank_environment,
    threads_per_rank,
)
from tests.support.runner_process import make_spec

MEMBERS = [("a1", 4), ("a2", 2), ("a3", 1)]
NETWORK = Network(("10.0.0.1", "10.0.0.2", "10.0.0.3"), 4000, "eth1")


def environment(
    node_rank: int,
    rank: int,
    base: dict[str, str] | None = None,
    config: object = None,
    entrypoint: str = "model:Trial",
    **more: Any,
) -> dict[str, str]:
    spec = make_spec(MEMBERS, node_rank, entrypoint, config={"environment": config} if config else None)
    spec.gateway_http_address = "10.0.0.9:8080"
    place = find_place(spec)
    return rank_environment(
        spec,
        place,
        NETWORK,
        rank,
        base=base or {},
        code_directory="/code",
        programs_directory="/bin",
        beat_path="/beats",
        socket_path="/tmp/s/rank.sock",
        num_threads=3,
        **more,
    )


def test_ranks_are_numbered_through_the_members() -> None:
    places = [find_place(make_spec(MEMBERS, node_rank, "x:Y")) for node_rank in range(3)]
    assert [list(place.ranks) for place in places] == [[0, 1, 2, 3], [4, 5], [6]]
    assert {place.world_size for place in places} == {7}
    assert [place.is_head for place in places] == [True, False, False]


def test_torch_finds_its_variables() -> None:
    variables = environment(1, 5)
    assert {name: variables[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "7",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert (variables["GROUP_RANK"], variables["GROUP_WORLD_SIZE"]) == ("1", "3")
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("10.0.0.1", "4000")
    assert variables["GLOO_SOCKET_IFNAME"] == variables["NCCL_SOCKET_IFNAME"] == "eth1"
    assert variables["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert (variables["OMP_NUM_THREADS"], variables["CUDA_VISIBLE_DEVICES"]) == ("3", "")


def test_a_script_finds_determineds_variables() -> None:
    variables = environment(1, 5, {"DET_MASTER": "of another cluster"})
    found = {name: value for name, value in variables.items() if name.startswith("DET_")}
    assert json.loads(found.pop("DET_EXPERIMENT_CONFIG"))["entrypoint"] == "model:Trial"
    assert found == {
        "DET_CLUSTER_ID": "test",
        "DET_AGENT_ID": "a2",
        "DET_TASK_TYPE": "TRIAL",
        "DET_TASK_ID": "7.1",
        "DET_ALLOCATION_ID": "7.1.1",
        "DET_EXPERIMENT_ID": "7",
        "DET_TRIAL_ID": "700001",
        "DET_TRIAL_SEED": "1",
        "DET_HPARAMS": "{}",
        "DET_SLOT_IDS": "[0, 1]",
        "DET_CHIEF_IP": "10.0.0.1",
        "DET_INTER_NODE_NETWORK_INTERFACE": "eth1",
        "DET_UNIQUE_PORT_OFFSET": "0",
        "DET_MASTER": "http://10.0.0.9:8080",
        "DET_CONTAINER_ID": "7.1.1.1",
        "DET_RESOURCES_ID": "7.1.1.1",
        "DET_TRIAL_RUN_ID": "1",
        "DET_STEPS_COMPLETED": "0",
        "DET_USE_GPU": "0",
        "DET_SLOT_TYPE": "cpu",
    }


@pytest.mark.parametrize("ca_file", ["/etc/gangline/tls/ca.crt", ""])
def test_a_script_finds_the_certificate_of_the_gateway(ca_file: str) -> None:
    variables = environment(1, 5, gateway_tls=GatewayTls("gateway.lab", ca_file))
    assert variables["DET_MASTER"] == "https://10.0.0.9:8080"
    names = {name: value for name, value in variables.items() if name.startswith("DET_MASTER_CERT")}
    expected = {"DET_MASTER_CERT_NAME": "gateway.lab", "DET_MASTER_CERT_FILE": ca_file}
    assert names == (expected if ca_file else {})


def test_the_port_offset_is_the_first_slot_of_the_head() -> None:
    spec = make_spec([("a1", 2), ("a2", 2)], 1, "model:Trial")
    spec.allocation.members[0].slot_ids[:] = ["a1/cpu-5", "a1/cpu-3"]
    variables = rank_environment(
        spec,
        find_place(spec),
        NETWORK,
        2,
        base={},
        code_directory="/code",
        programs_directory="/bin",
        beat_path="/beats",
        socket_path="/tmp/s/rank.sock",
        num_threads=1,
    )
    assert variables["DET_UNIQUE_PORT_OFFSET"] == "3"


def test_a_script_runs_once_on_each_machine_with_all_of_its_slots() -> None:
    places = [find_place(make_spec(MEMBERS, node_rank, "bash run.sh")) for node_rank in range(3)]
    assert [list(place.ranks) for place in places] == [[0], [4], [6]]
    assert [list(place.slot_ranks) for place in places] == [[0, 1, 2, 3], [4, 5], [6]]
    assert [place.process_of(5) for place in places] == [0, 4, 6]
    assert not any(place.needs_store for place in places)
    variables = environment(1, 4, {"WORLD_SIZE": "9", "NNODES": "9"}, entrypoint="bash run.sh")
    names = ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "DET_SLOT_IDS", "DET_CHIEF_IP")
    assert [variables[name] for name in names] == ["3", "1", "2", "10.0.0.1", "4000", "[0, 1]", "10.0.0.1"]
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"} & {*variables}
    info = ClusterInfo.parse(variables[ENVIRONMENT_KEY])
    assert (info.runs_once, info.rank, info.world_size, info.node_rank) == (True, 4, 7, 1)


def test_a_rank_that_is_alone_hosts_its_own_store() -> None:
    spec = make_spec([("a1", 1)], 0, "model:Trial")
    variables = rank_environment(
        spec,
        find_place(spec),
        Network(("127.0.0.1",), 0),
        0,
        base={},
        code_directory="/code",
        programs_directory="/bin",
        beat_path="/beats",
        socket_path="/tmp/s/rank.sock",
        num_threads=1,
    )
    assert (variables["WORLD_SIZE"], variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("1", "127.0.0.1", "0")
    assert "TORCHELASTIC_USE_AGENT_STORE" not in variables


def test_only_other_programs_need_nothing_warm() -> None:
    alone, pair = [("a1", 1)], [("a1", 1), ("a2", 1)]
    assert needs_no_warmth(make_spec(alone, 0, "bash run.sh"))
    assert not needs_no_warmth(make_spec(alone, 0, "python3 train.py"))
    assert needs_no_warmth(make_spec(pair, 0, "bash run.sh")), "it runs once, so it has no store"
    in_every_slot = "python3 -m gangline.launch.torch_distributed bash run.sh"
    assert not needs_no_warmth(make_spec(pair, 0, in_every_slot)), "node rank 0 hosts the store"
    assert needs_no_warmth(make_spec(pair, 1, in_every_slot))
    assert find_program(make_spec(alone, 0, "echo $RANK")) == ["/bin/sh", "-c", "echo $RANK"]


def test_no_credentials_and_nothing_of_the_runners_own_reaches_a_rank() -> None:
    base = {"GANGLINE_CLUSTER_TOKEN_FILE": "/secret", "RANK": "9", "MASTER_PORT": "1", "PATH": "/bin", "RANKS": "mine"}
    variables = environment(0, 0, base)
    assert "GANGLINE_CLUSTER_TOKEN_FILE" not in variables
    assert (variables["PATH"], variables["RANK"], variables["MASTER_PORT"], variables["RANKS"]) == (
        "/bin",
        "0",
        "4000",
        "mine",
    )
    assert "test-token" not in repr(variables)


def test_the_experiments_variables_win_over_the_machines_but_not_over_torchs() -> None:
    configured = {"environment_variables": {"cpu": ["PATH=/mine", "RANK=7", "A=b=c"], "cuda": ["A=gpu"]}}
    variables = environment(0, 0, {"PATH": "/bin"}, configured)
    assert (variables["PATH"], variables["RANK"], variables["A"]) == ("/mine", "0", "b=c")


def test_a_scripts_python_is_the_ranks_own() -> None:
    assert environment(0, 0, {"PATH": "/usr/bin"})["PATH"] == "/bin:/usr/bin"
    assert environment(0, 0, {"PATH": "/bin:/usr/bin"})["PATH"] == "/bin:/usr/bin"


def devices_of(rank: int, *uuids: str, entrypoint: str = "x:Y") -> dict[str, str]:
    """The variables about devices of a rank on a machine that has these slots; without a name one is gpu-3."""
    spec = make_spec([("a0", 1), ("a1", len(uuids))], 1, entrypoint)
    del spec.slots[:]
    for uuid in uuids:
        spec.slots.append(types_pb2.Slot(id=f"a1/{uuid or 'gpu-3'}", kind=types_pb2.SLOT_KIND_GPU, uuid=uuid))
    variables = rank_environment(
        spec,
        find_place(spec),
        NETWORK,
        rank,
        base={},
        code_directory="/c",
        programs_directory="/bin",
        socket_path="/s",
        beat_path="/b",
        num_threads=1,
    )
    return {name: value for name, value in variables.items() if name.startswith(("CUDA_", "NCCL_MULTI"))}


def test_a_rank_sees_all_gpus_of_its_member_and_numbers_mean_what_they_mean_to_nvml() -> None:
    assert devices_of(2, "GPU-1", "") == {"CUDA_VISIBLE_DEVICES": "GPU-1,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_rank_sees_its_own_mig_device_because_cuda_shows_only_the_first_of_several() -> None:
    both = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    assert devices_of(1, "MIG-a", "MIG-b") == {"CUDA_VISIBLE_DEVICES": "MIG-a", **both}
    assert devices_of(2, "MIG-a", "MIG-b") == {"CUDA_VISIBLE_DEVICES": "MIG-b", **both}
    assert devices_of(2, "GPU-a", "MIG-b") == {"CUDA_VISIBLE_DEVICES": "MIG-b", **both}
    once = devices_of(1, "MIG-a", "MIG-b", entrypoint="bash run.sh")
    assert once == {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b", **both}, "the script gives each worker its own"
    assert devices_of(1, "MIG-a") == {"CUDA_VISIBLE_DEVICES": "MIG-a", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_the_cluster_info_says_where_and_what() -> None:
    info = ClusterInfo.parse(environment(1, 5)[ENVIRONMENT_KEY])
    assert (info.allocation_id, info.agent_id, info.node_rank, info.num_nodes) == ("7.1.1", "a2", 1, 3)
    assert (info.slot_ids, info.code_directory, info.attempt) == (["a2/0", "a2/1"], "/code", 1)
    assert info.addresses == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert info.trial.config["entrypoint"] == "model:Trial"
    assert info.latest_checkpoint is None


def test_a_rank_has_its_slots_part_of_the_cores() -> None:
    """A trial on one of eight slots leaves the cores of the other seven to the work that runs there."""
    spec = make_spec([("a1", 1)], 0, "model:Trial")
    assert threads_per_rank(spec, find_place(spec), 64) == 64, "nothing is known of other slots"
    spec.num_agent_slots = 8
    assert threads_per_rank(spec, find_place(spec), 64) == 8
    assert threads_per_rank(spec, find_place(spec), 4) == 1
    four = make_spec(MEMBERS, 0, "model:Trial")
    four.num_agent_slots = 8
    assert threads_per_rank(four, find_place(four), 64) == 8
    four.num_agent_slots = 2
    assert threads_per_rank(four, find_place(four), 64) == 16, "slots that the agent has lost since"


def test_the_experiment_says_how_many_threads() -> None:
    variables = {"environment_variables": {"cpu": ["OMP_NUM_THREADS=3"], "cuda": ["OMP_NUM_THREADS=5"]}}
    spec = make_spec([("a1", 1)], 0, "model:Trial", config={"environment": variables})
    spec.num_agent_slots = 8
    assert threads_per_rank(spec, find_place(spec), 64) == 3
    spec.slots.append(types_pb2.Slot(id="a1/gpu-0", kind=types_pb2.SLOT_KIND_GPU))
    assert threads_per_rank(spec, find_place(spec), 64) == 5


def test_ranks_are_told_why_they_go_on_from_an_older_checkpoint() -> None:
    spec = make_spec([("a1", 1)], 0, "model:Trial")
    spec.trial.last_failure.MergeFrom(
        types_pb2.ExitReport(kind=types_pb2.EXIT_KIND_CHECKPOINT_CORRUPT, message="/s/c2/a differs", failed_at=50.0)
    )

    def warnings() -> list[str]:
        variables = rank_environment(
            spec,
            find_place(spec),
            NETWORK,
            0,
            base={},
            code_directory="",
            programs_directory="",
            beat_path="",
            socket_path="",
            num_threads=1,
        )
        return ClusterInfo.parse(variables[ENVIRONMENT_KEY]).warnings

    assert warnings() == []
    spec.latest_checkpoint.MergeFrom(types_pb2.Checkpoint(id="c1", batches_completed=10, created_at=40.0))
    assert warnings() == ["/s/c2/a differs: training goes on from the older checkpoint c1 after batch 10"]
    spec.latest_checkpoint.created_at = 60.0
    assert warnings() == []


def test_the_log_says_how_the_attempt_before_failed() -> None:
    spec = make_spec([("a1", 1)], 0, "model:Trial")
    assert describe_earlier(spec) == []
    failure = types_pb2.ExitReport(kind=types_pb2.EXIT_KIND_RUNNER_LOST, agent_id="a2", message="gone", failed_at=50.0)
    spec.trial.last_failure.MergeFrom(failure)
    spec.trial.attempt_usages.add(attempt=1, started_at=10.0, ended_at=51.0)
    assert describe_earlier(spec) == ["the attempt before this one (attempt 1) failed: a2: gone"]
    spec.trial.last_failure.rank = 0
    assert describe_earlier(spec) == ["the attempt before this one (attempt 1) failed: rank 0 on a2: gone"]
    spec.trial.attempt_usages.add(attempt=2, started_at=52.0, ended_at=60.0)
    assert describe_earlier(spec) == [], "the second attempt was preempted"
