"""The command that runs a trial's container, and what is refused before it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from gangline.domain.settled.reading import settle_values
from gangline.errors import GanglineError
from services.common.rank_rules import RankRules, RankUser
from services.trial_runner.ranks.container_plan import (
    ContainerPlace,
    ContainerRequest,
    Mount,
    find_request,
    plan_run,
    registry_config,
)

PODMAN = RankRules(container_command=("/usr/bin/podman", "--runtime", "runc"), container_options=("--ipc", "host"))
DOCKER = RankRules(container_command=("docker",))
USER = RankUser("train", 1001, 1002, (1002, 44), "/home/train", "/bin/sh")
PLACE = ContainerPlace(
    agent_id="a1",
    allocation_id="7.1.1",
    name="gangline-7.1.1-a1",
    directory="/state/code",
    mounts=(Mount("/state/code", "/state/code"), Mount("/lib/gangline", "/lib/gangline", is_read_only=True)),
    gpus=(),
    user=None,
    uid=0,
    gid=0,
    socket_path="/state/ranks/nursery.sock",
    is_bare=False,
    library="/lib",
    auth_folder="/state/registry",
)


def request(environment: dict[str, Any] | None = None, **config: Any) -> ContainerRequest:
    section = {"image": "base:1", **(environment or {})}
    found = find_request(settle_values({"environment": section, **config}), "/state/code", is_gpu=False)
    assert found is not None
    return found


def values(command: list[str], option: str) -> list[str]:
    return [command[number + 1] for number, word in enumerate(command[:-1]) if word == option]


def test_the_whole_command_of_podman() -> None:
    mounts = [
        {"host_path": "/data", "container_path": "/in", "read_only": True, "propagation": "rslave"},
        {"host_path": "/big", "container_path": "big"},
    ]
    asked = request({"python": "/opt/env"}, bind_mounts=mounts, resources={"shm_size": "1g"})
    assert plan_run(asked, PLACE, PODMAN) == [
        *("/usr/bin/podman", "--runtime", "runc", "run", "--rm", "--name", "gangline-7.1.1-a1"),
        *("--label", "gangline.allocation=7.1.1", "--pull", "missing", "--network", "host"),
        *("--security-opt", "label=disable", "--shm-size", "1073741824b", "--workdir", "/state/code"),
        *("--env", "PYTHONPATH=/lib", "--env", "PYTHONDONTWRITEBYTECODE=1"),
        *("--mount", "type=bind,source=/state/code,target=/state/code,bind-propagation=rprivate"),
        *("--mount", "type=bind,source=/lib/gangline,target=/lib/gangline,readonly,bind-propagation=rprivate"),
        *("--mount", "type=bind,source=/data,target=/in,readonly,bind-propagation=rslave"),
        *("--mount", "type=bind,source=/big,target=/state/code/big,bind-propagation=rprivate"),
        *("--ipc", "host", "--entrypoint", "/opt/env/bin/python3", "base:1"),
        *("-P", "-m", "gangline.rank.cold_nursery", "--connect", "/state/ranks/nursery.sock"),
    ]


def test_commands_load_no_library_and_an_image_is_fetched_anew_where_asked() -> None:
    command = plan_run(request({"force_pull_image": True}), replace(PLACE, is_bare=True), DOCKER)
    assert (command[-1], values(command, "--pull")) == ("--bare", ["always"])
    assert values(command, "--shm-size") == [f"{4 << 30}b"]
    assert values(command, "--entrypoint") == ["python3"]


@pytest.mark.parametrize(
    ("rules", "option", "expected"),
    [
        (PODMAN, "--device", ["nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-2"]),
        (DOCKER, "--gpus", ['"device=GPU-1,GPU-2"']),
    ],
)
def test_only_the_gpus_of_the_allocation_are_passed(rules: RankRules, option: str, expected: list[str]) -> None:
    assert values(plan_run(request(), replace(PLACE, gpus=("GPU-1", "GPU-2")), rules), option) == expected
    assert not values(plan_run(request(), PLACE, rules), option)


def test_the_user_of_the_ranks_gets_no_further_right() -> None:
    command = plan_run(request(), replace(PLACE, user=USER), PODMAN)
    assert values(command, "--user") == ["1001:1002"]
    assert values(command, "--group-add") == ["1002", "44"]
    assert "no-new-privileges" in values(command, "--security-opt")
    with pytest.raises(GanglineError, match=r"add_capabilities: a1 runs ranks as train, without any capability"):
        plan_run(request({"add_capabilities": ["SYS_ADMIN"]}), replace(PLACE, user=USER), PODMAN)


def test_docker_gives_an_agent_without_root_no_root() -> None:
    place = replace(PLACE, uid=500, gid=501)
    assert values(plan_run(request(), place, DOCKER), "--user") == ["500:501"]
    assert not values(plan_run(request(), place, PODMAN), "--user")
    with pytest.raises(GanglineError, match=r"a1 runs ranks as the user 500, without any capability"):
        plan_run(request({"add_capabilities": ["SYS_ADMIN"]}), place, DOCKER)
    with pytest.raises(GanglineError, match=r"a1 runs ranks as train in containers only if the agent runs as root"):
        plan_run(request(), replace(place, user=USER), PODMAN)


def test_capabilities_are_passed() -> None:
    command = plan_run(request({"add_capabilities": ["A", "B"], "drop_capabilities": ["C"]}), PLACE, PODMAN)
    assert (values(command, "--cap-add"), values(command, "--cap-drop")) == (["A", "B"], ["C"])


def test_an_agent_without_a_program_is_named() -> None:
    with pytest.raises(GanglineError, match=r"environment\.image: a1 has no program .* podman or docker there, or use"):
        plan_run(request(), PLACE, RankRules())


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"environment": {"image": "--privileged"}}, r"environment\.image: expected the name"),
        ({"environment": {"image": {"cuda": "a"}}}, r"environment\.image: it names no image for CPU slots"),
        ({"environment": {"image": "a", "add_capabilities": ["x y"]}}, r"expected names of capabilities"),
        (
            {"environment": {"image": "a"}, "bind_mounts": [{"host_path": "/a,b", "container_path": "/c"}]},
            r"bind_mounts: host_path: expected a path without commas",
        ),
    ],
)
def test_what_an_earlier_version_stored_unchecked_becomes_no_option(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(GanglineError, match=problem):
        find_request(settle_values(config), "/state/code", is_gpu=False)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"environment": None},
        {"environment": {"image": None}},
        {"environment": {"image": "determinedai/environments:py-3.10"}},
        {"environment": {"image": {"cpu": "determinedai/environments", "cuda": "mine"}}},
    ],
)
def test_without_an_image_there_is_no_container(config: dict[str, Any]) -> None:
    assert find_request(settle_values(config), "/state/code", is_gpu=False) is None


@pytest.mark.parametrize(
    ("image", "auth", "keys"),
    [
        ("host:5000/base", {}, ["host:5000"]),
        ("registry.example/base:1", {"serveraddress": "other.example"}, ["other.example"]),
        ("localhost/base", {}, ["localhost"]),
        ("team/base", {}, ["docker.io", "https://index.docker.io/v1/"]),
    ],
)
def test_the_login_is_for_the_registry_of_the_image(image: str, auth: dict[str, str], keys: list[str]) -> None:
    asked = request({"image": image, "registry_auth": {"username": "ann", "password": "s3cret", **auth}})
    token = base64.b64encode(b"ann:s3cret").decode()
    assert json.loads(registry_config(asked)) == {"auths": {key: {"auth": token} for key in keys}}
    for rules, option, path in ((PODMAN, "--authfile", "/config.json"), (DOCKER, "--config", "")):
        command = plan_run(asked, PLACE, rules)
        assert values(command, option) == [f"/state/registry{path}"]
        assert not [word for word in command if "s3cret" in word or token in word]


def test_a_login_without_a_password_is_refused() -> None:
    with pytest.raises(GanglineError, match=r"environment\.registry_auth needs a username and a password"):
        registry_config(request({"registry_auth": {"username": "ann"}}))
