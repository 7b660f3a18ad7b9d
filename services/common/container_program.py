"""The program that runs containers, podman or docker: which one it is, and the removal of a container by its name.

Trial runners start containers and remove them. The agent removes what a runner that died has left.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence

import structlog

from gangline.domain.container import is_docker

# Limit for the removal of a container.
REMOVE_SECONDS = 30.0
# In place of a program: the agent runs no containers.
NONE = "none"

log = structlog.get_logger(__name__)


def find_program(named: Sequence[str], which: Callable[[str], str | None] = shutil.which) -> tuple[str, ...]:
    """Returns the program with its first arguments; empty if there is none. named: by the operator, or else podman or
    docker, whichever this machine has."""
    if named:
        return () if list(named) == [NONE] else tuple(named)
    return next(((name,) for name in ("podman", "docker") if which(name)), ())


def plan_removal(program: Sequence[str], name: str) -> list[str]:
    """Returns the command that ends a container at once and removes it."""
    now = [] if is_docker(program[0]) else ["--ignore", "--time", "0"]
    return [*program, "rm", "--force", *now, name]


async def remove_container(program: Sequence[str], name: str) -> bool:
    """Ends and removes a container. Returns whether it is gone; a container that does not exist is."""
    try:
        removing = await asyncio.create_subprocess_exec(
            *plan_removal(program, name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        log.error("cannot remove a container", container=name, error=str(error))
        return False
    try:
        async with asyncio.timeout(REMOVE_SECONDS):
            _, told = await removing.communicate()
    except TimeoutError:
        removing.kill()
        await removing.wait()
        told = b"no answer"
    text = told.decode(errors="replace").strip()
    if removing.returncode and "no such container" not in text.lower():
        log.error("cannot remove a container", container=name, error=text)
        return False
    return True
