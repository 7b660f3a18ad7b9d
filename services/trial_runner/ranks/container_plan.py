"""PURE: the container in which an attempt's ranks run on one machine, and the command that starts it.

container.py starts it. The container shares the network of the machine. It has the folders of the attempt and
Gangline's library at the same paths as the machine, so every path in the ranks' environment holds on both sides.
"""

from __future__ import annotations

import base64
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.domain.container import (
    DEFAULT_SHM_BYTES,
    find_bad_capability,
    find_bad_image,
    find_bad_mount,
    image_of,
    is_docker,
    names_container,
    parse_memory_size,
)
from gangline.domain.settled.record import Settled, SettledMount
from gangline.errors import GanglineError, invalid
from services.common.rank_rules import RankRules, RankUser

_DOCKER_HUB = "docker.io"
_DOCKERS_HUB_KEY = "https://index.docker.io/v1/"


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the machine in a container."""

    source: str  # path on the machine
    target: str  # path in the container
    is_read_only: bool = False
    propagation: str = "rprivate"

    def argument(self) -> str:
        parts = ["type=bind", f"source={self.source}", f"target={self.target}"]
        parts += ["readonly"] if self.is_read_only else []
        return ",".join([*parts, f"bind-propagation={self.propagation}"])


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """The container that an experiment asks for."""

    image: str
    python: str  # interpreter in the image that runs the ranks
    mounts: tuple[Mount, ...]  # the experiment's own mounts
    shm_bytes: int
    add_capabilities: tuple[str, ...]
    drop_capabilities: tuple[str, ...]
    is_pulled_always: bool
    auth: Mapping[str, Any]  # content of `registry_auth`; empty without one


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """The surroundings of a container on one agent."""

    agent_id: str
    allocation_id: str
    name: str  # name of the container
    directory: str
    mounts: tuple[Mount, ...]  # mounts of the attempt
    gpus: tuple[str, ...]  # ids of the container's GPUs
    user: RankUser | None  # user of the ranks; None for the agent's own, which has the ids uid and gid
    uid: int
    gid: int
    socket_path: str  # path at which the nursery in the container finds its runner
    is_bare: bool  # whether no rank uses Gangline's libraries
    library: str  # folder that has the package `gangline`
    auth_folder: str  # folder for the login at a registry

    @property
    def is_root(self) -> bool:
        return self.uid == 0


def find_request(settled: Settled, code_directory: str, *, is_gpu: bool) -> ContainerRequest | None:
    """Returns the container that the configuration asks for; None for none. Raises GanglineError `environment.image`.

    A relative `container_path` is below the code's folder.
    """
    if not settled.has_image:
        return None
    environment = settled.environment
    problem = find_bad_image(environment.image)
    for names in (environment.add_capabilities, environment.drop_capabilities):
        problem = problem or find_bad_capability(names)
    if problem:
        raise _refused(problem)
    image = image_of(environment.image, is_gpu=is_gpu)
    if not image:
        raise _refused(f"it names no image for {'GPU' if is_gpu else 'CPU'} slots")
    if not names_container(image):
        return None
    size = settled.resources.shm_size
    return ContainerRequest(
        image,
        _find_python(environment.python),
        tuple(_mount_of(mount, code_directory) for mount in settled.bind_mounts),
        DEFAULT_SHM_BYTES if size is None else parse_memory_size(size),
        environment.add_capabilities,
        environment.drop_capabilities,
        environment.force_pull_image,
        environment.registry_auth or {},
    )


def plan_run(request: ContainerRequest, place: ContainerPlace, rules: RankRules) -> list[str]:
    """Returns the command that runs the container in the foreground. Raises GanglineError `environment.image`."""
    if not rules.container_command:
        text = "has no program that runs containers; install podman or docker there"
        raise _refused(f"{place.agent_id} {text}, or use environment.python in place of environment.image")
    command = list(rules.container_command)
    runs_docker = is_docker(command[0])
    if request.auth and runs_docker:
        command += ["--config", place.auth_folder]
    command += ["run", "--rm", "--name", place.name, "--label", f"gangline.allocation={place.allocation_id}"]
    if request.auth and not runs_docker:
        command += ["--authfile", str(Path(place.auth_folder, "config.json"))]
    command += ["--pull", "always" if request.is_pulled_always else "missing"]
    command += ["--network", "host", "--security-opt", "label=disable", "--shm-size", f"{request.shm_bytes}b"]
    command += [
        "--workdir",
        place.directory,
        "--env",
        f"PYTHONPATH={place.library}",
        "--env",
        "PYTHONDONTWRITEBYTECODE=1",
    ]
    command += _user_arguments(place, request, is_docker=runs_docker)
    command += _capability_arguments(request)
    command += _gpu_arguments(place.gpus, is_docker=runs_docker)
    for mount in (*place.mounts, *request.mounts):
        command += ["--mount", mount.argument()]
    command += [*rules.container_options, "--entrypoint", request.python, request.image]
    command += ["-P", "-m", "gangline.rank.cold_nursery", "--connect", place.socket_path]
    return [*command, "--bare"] if place.is_bare else command


def registry_config(request: ContainerRequest) -> str:
    """Returns the login of `registry_auth` in the form that docker and podman read. Raises GanglineError
    `environment.image` if it has no name or password."""
    auth = request.auth
    token = auth.get("auth")
    if not token and auth.get("username") and auth.get("password"):
        token = base64.b64encode(f"{auth['username']}:{auth['password']}".encode()).decode()
    if not token:
        raise _refused("environment.registry_auth needs a username and a password")
    server = auth.get("serveraddress") or _registry_of(request.image)
    keys = (_DOCKER_HUB, _DOCKERS_HUB_KEY) if server in (_DOCKER_HUB, _DOCKERS_HUB_KEY) else (server,)
    return json.dumps({"auths": {key: {"auth": token} for key in keys}})


def _registry_of(image: str) -> str:
    """Returns the registry in an image's name; a name without one is on Docker Hub."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else _DOCKER_HUB


def _find_python(named: str) -> str:
    """Returns the interpreter that `environment.python` names in the image: itself, or that of a virtual
    environment."""
    if not named:
        return "python3"
    return named if posixpath.basename(named).startswith("python") else posixpath.join(named, "bin/python3")


def _mount_of(mount: SettledMount, code_directory: str) -> Mount:
    if problem := find_bad_mount(mount.host_path, mount.container_path, mount.propagation):
        raise _refused(f"bind_mounts: {problem}")
    target = posixpath.join(code_directory, mount.container_path)
    return Mount(mount.host_path, target, mount.read_only, mount.propagation)


def _user_arguments(place: ContainerPlace, request: ContainerRequest, *, is_docker: bool) -> list[str]:
    """Returns the user in the container. Ranks get no more rights by a container than they have without it: the daemon
    of docker would run them as root for any agent. podman of another user than root gives them that user's rights."""
    if place.user is None and (place.is_root or not is_docker):
        return []
    if place.user is not None and not place.is_root:
        raise _refused(f"{place.agent_id} runs ranks as {place.user.name} in containers only if the agent runs as root")
    if request.add_capabilities:
        who = place.user.name if place.user is not None else f"the user {place.uid}"
        raise _refused(f"environment.add_capabilities: {place.agent_id} runs ranks as {who}, without any capability")
    ids = (place.user.uid, place.user.gid) if place.user is not None else (place.uid, place.gid)
    arguments = ["--user", f"{ids[0]}:{ids[1]}", "--security-opt", "no-new-privileges", "--env", "HOME=/tmp"]
    for group in place.user.groups if place.user is not None else ():
        arguments += ["--group-add", str(group)]
    return arguments


def _capability_arguments(request: ContainerRequest) -> list[str]:
    added = [part for name in request.add_capabilities for part in ("--cap-add", name)]
    return added + [part for name in request.drop_capabilities for part in ("--cap-drop", name)]


def _gpu_arguments(gpus: Sequence[str], *, is_docker: bool) -> list[str]:
    if not gpus:
        return []
    if is_docker:
        # docker reads the value as a line of CSV, in which the list needs the quotation marks.
        return ["--gpus", f'"device={",".join(gpus)}"']
    return [part for gpu in gpus for part in ("--device", f"nvidia.com/gpu={gpu}")]


def _refused(problem: str) -> GanglineError:
    text = problem if problem.startswith(("environment.", "bind_mounts")) else f"environment.image: {problem}"
    return invalid("environment.image", text)
