"""Settles the container of an attempt: the files that it gets, and the command that runs it.

container_plan.py decides about the arguments, ranks/container.py runs them. The runner calls `make_container` once,
before anything of the attempt starts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import gangline
from gangline.errors import GanglineError, invalid, unavailable
from gangline.launch.beat_file import stacks_path_of
from gangline.v1 import runner_pb2, types_pb2
from services.common.access.user_rights import resolve_as
from services.common.concurrency import in_own_thread
from services.common.disk import write_atomic
from services.common.rank_rules import RankUser
from services.common.state_folder import SharedFolder
from services.trial_runner.gang.gang_plan import Place, needs_no_library, settled_of
from services.trial_runner.ranks.confinement import STORAGE_SECONDS, Confinement
from services.trial_runner.ranks.container import SOCKET, Container
from services.trial_runner.ranks.container_plan import (
    ContainerPlace,
    Mount,
    find_request,
    plan_run,
    registry_config,
)
from services.trial_runner.ranks.owner_account import holds_storage, storage_folder


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """The folders, files and rules of an attempt that its container gets."""

    spec: runner_pb2.RunnerSpec
    place: Place
    folder: SharedFolder
    beat_paths: Mapping[int, Path]  # by rank
    confinement: Confinement


def make_container(files: AttemptFiles, note: Callable[[str], None]) -> Container | None:
    """Returns the container that the experiment asks for, not yet started; None for none.

    note: writes a line to the trial's log. Raises GanglineError `environment.*` if this agent cannot run it.
    """
    spec, folder = files.spec, files.folder
    gpus = tuple(slot.uuid or slot.id.rpartition("/")[2] for slot in spec.slots if _is_gpu(slot))
    code = str(folder.code_path.absolute())
    request = find_request(settled_of(spec), code, is_gpu=bool(gpus))
    if request is None:
        return None
    user = files.confinement.user
    request = replace(request, mounts=tuple(_own_mount(mount, user, files.place.agent_id) for mount in request.mounts))
    name = name_of(folder, files.place.agent_id)
    place = ContainerPlace(
        agent_id=files.place.agent_id,
        allocation_id=spec.allocation.id,
        name=name,
        directory=code,
        mounts=_mounts(files),
        gpus=gpus,
        user=user,
        uid=os.geteuid(),
        gid=os.getegid(),
        socket_path=str(folder.ranks_path.absolute() / SOCKET),
        is_bare=needs_no_library(spec),
        library=str(_package().parent),
        auth_folder=str(folder.registry_path),
    )
    rules = files.confinement.rules
    command = plan_run(request, place, rules)
    if request.auth:
        _write_login(folder.registry_path, registry_config(request))
    return Container(
        folder=folder,
        image=request.image,
        agent_id=place.agent_id,
        name=name,
        python=request.python,
        command=command,
        program=rules.container_command,
        note=note,
        prepare_files=lambda: _prepare_files(files),
    )


def _own_mount(mount: Mount, user: RankUser | None, agent_id: str) -> Mount:
    """Returns a mount of the experiment with its source as the ranks' user finds it. The program that runs containers
    has more rights: it would follow links and enter folders that the user may not. Raises GanglineError
    `environment.image`."""
    if user is None and os.geteuid() == 0:
        return mount
    source = resolve_as(user, Path(mount.source))
    if source is None:
        who = user.name if user is not None else f"the agent's user {os.geteuid()}"
        text = f"bind_mounts: {who} reaches no {mount.source} on {agent_id}; mount what this user may open"
        raise invalid("environment.image", text)
    return replace(mount, source=str(source))


async def _prepare_files(files: AttemptFiles) -> None:
    """Makes the files that the container mounts, and gives them to the user of the ranks. Called when the code is
    there."""
    confinement, folder = files.confinement, files.folder
    for path in _single_files(files):
        path.touch(0o600)
        confinement.give_file(path)
    folder.output_path.mkdir(mode=0o700, exist_ok=True)
    for each in (folder.code_path, folder.output_path, folder.ranks_path):
        confinement.give(each)
    storage = storage_folder(files.spec.storage_url)
    if storage is None:
        return
    errors: list[GanglineError] = []
    if not await in_own_thread(partial(_prepare_storage, storage, files, errors.append), STORAGE_SECONDS):
        raise _no_storage(storage, f"it has not answered within {STORAGE_SECONDS:g} s")
    if errors:
        raise errors[0]


def _prepare_storage(storage: Path, files: AttemptFiles, on_error: Callable[[GanglineError], None]) -> None:
    """Makes a storage of which no marker is known. Reports GanglineError `storage.away` in place of mounting a folder
    that is not the storage: a container does not see a mount that comes back later."""
    marker, confinement = files.spec.storage_marker, files.confinement
    try:
        is_new = not holds_storage(storage, marker)
        if is_new and (confinement.user is None or not confinement.user.is_dynamic):
            storage.mkdir(parents=True, exist_ok=True)
            confinement.give(storage)
    except GanglineError as error:
        on_error(error)
    except OSError as error:
        on_error(_no_storage(storage, f"it cannot be made: {error.strerror}"))


def _mounts(files: AttemptFiles) -> tuple[Mount, ...]:
    folder = files.folder
    writable = [folder.code_path, folder.output_path, folder.ranks_path, *_single_files(files)]
    storage = storage_folder(files.spec.storage_url)
    if storage is not None:
        writable.append(storage)
    library = str(_package())
    own = tuple(Mount(str(path.absolute()), str(path.absolute())) for path in writable)
    return (*own, Mount(library, library, is_read_only=True))


def _single_files(files: AttemptFiles) -> list[Path]:
    """The ranks' files in the allocation's folder, of which they see nothing else."""
    beats = [each for path in files.beat_paths.values() for each in (path, stacks_path_of(path))]
    return [*beats, files.folder.hook_listing_path]


def _package() -> Path:
    return Path(gangline.__file__).resolve().parent


def name_of(folder: SharedFolder, agent_id: str) -> str:
    """Returns a name that no other agent of this machine uses, not even one of another cluster."""
    state = hashlib.sha256(str(folder.state.path.absolute()).encode()).hexdigest()[:8]
    return f"gangline-{folder.allocation_id}-{agent_id}-{state}"


def _write_login(folder: Path, text: str) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    write_atomic(folder / "config.json", text, mode=0o600, is_durable=False)


def _is_gpu(slot: types_pb2.Slot) -> bool:
    return slot.kind == types_pb2.SLOT_KIND_GPU


def _no_storage(storage: Path, why: str) -> GanglineError:
    return unavailable("environment.no_container", f"cannot mount the storage's folder {storage}: {why}")
