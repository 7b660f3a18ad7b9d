"""The settings of a trial's container: what a submit accepts, and the line for what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gangline.config.experiment import ExperimentConfig
from gangline.config.parse import parse_config
from gangline.domain.container import image_of, parse_memory_size
from gangline.domain.settled.reading import settle_values
from gangline.errors import GanglineError

BASE = {"entrypoint": "python3 train.py", "searcher": {"name": "single", "metric": "loss"}}
MOUNT = {"host_path": "/data", "container_path": "/in"}


def parse(**settings: Any) -> tuple[ExperimentConfig, list[str]]:
    return parse_config(yaml.safe_dump({**BASE, **settings}))


@pytest.mark.parametrize(
    "image", ["ubuntu", "registry:5000/team/base:1.2", "a@sha256:0f", {"cpu": "a", "cuda": "b:1"}, {"gpu": "a"}]
)
def test_an_image_with_mounts_is_accepted_without_a_warning(image: Any) -> None:
    environment = {"image": image, "add_capabilities": ["CAP_SYS_PTRACE"], "force_pull_image": True}
    mounts = [MOUNT, {**MOUNT, "container_path": "relative", "read_only": True, "propagation": "rslave"}]
    assert parse(environment=environment, bind_mounts=mounts, resources={"shm_size": "1g"})[1] == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"environment": {"image": "--privileged"}},
            r"environment\.image.*: expected the name of an image, .*privileged",
        ),
        ({"environment": {"image": "a b"}}, r"environment\.image.*: expected the name of an image"),
        (
            {"environment": {"image": "dir:/root/x"}},
            r"environment\.image.*: expected an image of a registry; 'dir:/root/x'",
        ),
        ({"environment": {"image": {"cpu": "docker-archive:/a"}}}, r"cpu: .* names a place on the agents"),
        ({"environment": {"image": 5}}, r"environment\.image.*: expected the name of an image, .* found 5"),
        ({"environment": {"image": {"tpu": "a"}}}, r"environment\.image.*: expected the kinds of slots .* 'tpu'"),
        ({"environment": {"image": {"cpu": "-v"}}}, r"environment\.image.*: cpu: expected the name of an image"),
        ({"environment": {"image": "a", "add_capabilities": ["A B"]}}, r"environment\.add_capabilities.*: .*'A B'"),
        ({"environment": {"image": "a", "drop_capabilities": [""]}}, r"environment\.drop_capabilities.*: .*''"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(GanglineError, match=problem) as caught:
        parse(**settings)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("mount", "problem"),
    [
        ({"host_path": "data"}, r"host_path: expected an absolute path on the agents, found 'data'"),
        ({"container_path": "/a,readonly=false"}, r"container_path: expected a path without commas"),
        ({"host_path": '/a"b'}, r"host_path: expected a path without commas, quotation marks"),
        ({"container_path": ""}, r"container_path: expected a path"),
        ({"propagation": "rprivate,x"}, r"propagation: expected one of private, .* found 'rprivate,x'"),
    ],
)
def test_wrong_mounts_are_refused_in_one_line(mount: dict[str, str], problem: str) -> None:
    with pytest.raises(GanglineError, match=rf"bind_mounts\[0\].*: {problem}"):
        parse(environment={"image": "a"}, bind_mounts=[{**MOUNT, **mount}])


def test_mounts_without_an_image_are_refused_unless_they_change_nothing() -> None:
    same = {"host_path": "/data", "container_path": "/data"}
    assert parse(bind_mounts=[same])[1] == []
    for mount in (MOUNT, {**same, "read_only": True}):
        with pytest.raises(GanglineError, match=r"bind_mounts\[0\].*: needs environment\.image; .* read /data there"):
            parse(bind_mounts=[mount])


@pytest.mark.parametrize(("kind", "problem"), [("SHELL", "a shell runs in no container"), ("COMMAND", "")])
def test_shells_and_notebooks_have_no_container(kind: str, problem: str) -> None:
    settings = {"environment": {"image": "base"}, "task": {"kind": kind}, "max_restarts": 0}
    if not problem:
        assert parse(**settings)[1] == []
        return
    with pytest.raises(GanglineError, match=rf"environment\.image.*: {problem}"):
        parse(**settings)


def test_settings_that_need_an_image_warn_without_one() -> None:
    assert parse(environment={"force_pull_image": True}, resources={"shm_size": 1})[1] == [
        "environment.force_pull_image: accepted, but has no effect without environment.image",
        "resources.shm_size: accepted, but has no effect without environment.image",
    ]


@pytest.mark.parametrize(
    "image", ["determinedai/environments:py-3.10", {"gpu": "docker.io/determinedai/genai-train", "cpu": None}]
)
def test_an_image_of_determined_warns_and_makes_no_container(image: Any) -> None:
    """Gangline cannot run in it, and nearly every experiment file of Determined names one."""
    config, warnings = parse(environment={"image": image}, resources={"shm_size": "1g"})
    assert [warning.split(":")[0] for warning in warnings] == ["environment.image", "resources.shm_size"]
    assert "in the agents' Python" in warnings[0]
    assert not settle_values(config).has_image
    with pytest.raises(GanglineError, match=r"needs environment\.image"):
        parse(environment={"image": image}, bind_mounts=[MOUNT])


def test_a_stored_configuration_of_an_earlier_version_is_still_read() -> None:
    stored = parse()[0].model_dump(mode="json")
    stored["environment"]["image"] = ["never", "checked"]
    stored["bind_mounts"] = [{"host_path": "data", "container_path": "/in"}]
    assert ExperimentConfig.model_validate(stored).environment.image == ["never", "checked"]


def test_the_image_follows_the_kind_of_slot() -> None:
    named = {"cpu": "for-cpu", "cuda": "for-gpu"}
    assert [image_of(named, is_gpu=is_gpu) for is_gpu in (False, True)] == ["for-cpu", "for-gpu"]
    assert [image_of(each, is_gpu=True) for each in ("any", {"gpu": "old"}, {"cpu": "a"}, None)] == [
        "any",
        "old",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (7, 7),
        ("7", 7),
        ("64m", 64 << 20),
        ("4GiB", 4 << 30),
        ("1.5 gb", 3 << 29),
        (".5k", 512),
        ("2T", 2 << 40),
        ("9b", 9),
    ],
)
def test_sizes_are_powers_of_1024(size: int | str, expected: int) -> None:
    assert parse_memory_size(size) == expected
