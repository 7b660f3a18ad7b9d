"""PURE: commands, shells and notebooks as configurations of experiments.

Such a task is an experiment of one trial, whose entrypoint is a command and which has one attempt. The section `task`
marks it. `plan_task` makes the configuration from that of a command of Determined, whose names `gangline cmd`, `shell`
and `notebook` share; gangline.config.read_config then checks it like any other one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from gangline.config.section import Section
from gangline.domain.state import TaskKind
from gangline.domain.task_environment import TASK_PYTHON
from gangline.errors import invalid

_NAME_LENGTH = 60
_LAUNCHERS = {TaskKind.SHELL: "gangline.launch.shell", TaskKind.NOTEBOOK: "gangline.launch.notebook"}
# Keys of Determined's configuration of a command that have another place here.
_RENAMED = ("description", "name", "entrypoint", "resources", "work_dir", "idle_timeout", "notebook_idle_type")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|m|s)")
_SECONDS_BY_UNIT = {"h": 3600.0, "m": 60.0, "s": 1.0}


class TaskSection(Section):
    """Marks a configuration as that of a task. idle_seconds: time without use after which a notebook ends; None for
    never."""

    kind: TaskKind = Field(strict=False)
    idle_seconds: float | None = Field(default=None, gt=0)


def plan_task(kind: TaskKind, command: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration of an experiment. command: the configuration of a command as Determined has it.

    Raises GanglineError `task.*`; everything else is checked by read_config.
    """
    resources = command.get("resources") or {}
    if not isinstance(resources, Mapping):
        raise invalid("task.resources", "resources is no mapping, such as {slots: 1}")
    own_resources = {key: value for key, value in resources.items() if key != "slots" and value is not None}
    slots = resources.get("slots")
    values: dict[str, Any] = {key: value for key, value in command.items() if key not in _RENAMED and value is not None}
    entrypoint = _entrypoint(kind, command.get("entrypoint"))
    environment = command.get("environment") or {}
    if not isinstance(environment, Mapping):
        raise invalid("task.environment", "environment is no mapping, such as {environment_variables: [A=1]}")
    if command.get("work_dir"):
        environment = {**environment, "working_directory": command["work_dir"]}
    task: dict[str, Any] = {"kind": kind.value}
    if command.get("idle_timeout"):
        task["idle_seconds"] = parse_duration(command["idle_timeout"])
    return values | {
        "name": command.get("name") or command.get("description") or _name(kind, command.get("entrypoint")),
        "entrypoint": entrypoint,
        "environment": environment,
        # A task has one process, which sees the slots of one machine, and no checkpoint to go on from.
        "resources": {
            **own_resources,
            "slots_per_trial": 1 if slots is None else slots,
            "is_single_node": True,
            "preemptible": False,
        },
        "searcher": {"name": "single", "metric": "none"},
        "max_restarts": 0,
        "task": task,
    }


def _entrypoint(kind: TaskKind, given: Any) -> list[str]:
    """Returns the words of the program. A single word goes through the shell, because it may be a line of one."""
    if kind in _LAUNCHERS:
        if given:
            raise invalid(
                "task.entrypoint", f"a {kind.lower()} has no entrypoint; run a command with: gangline cmd run"
            )
        return ["/bin/sh", "-c", f'exec "${TASK_PYTHON}" -I -m {_LAUNCHERS[kind]}']
    words = [given] if isinstance(given, str) else given
    is_words = isinstance(words, Sequence) and all(isinstance(word, str) for word in words)
    if not is_words or not "".join(words or ()).strip():
        raise invalid("task.entrypoint", "there is no command to run; write it at the end: gangline cmd run -- COMMAND")
    if len(words) == 1:
        return ["/bin/sh", "-c", words[0]]
    return ["/bin/sh", "-c", 'exec "$@"', "sh", *words]


def _name(kind: TaskKind, entrypoint: Any) -> str:
    if kind is not TaskKind.COMMAND:
        return str(kind.lower())
    line = (
        entrypoint if isinstance(entrypoint, str) else entrypoint[0] if len(entrypoint) == 1 else shlex.join(entrypoint)
    )
    printable = "".join(letter if letter.isprintable() else " " for letter in line)
    return f"command: {' '.join(printable.split())}"[:_NAME_LENGTH]


def parse_duration(value: Any) -> float:
    """Returns the seconds of a number, or of a text such as "1h30m". Raises GanglineError `task.idle_timeout`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    parts = _DURATION.findall(str(value))
    if "".join(number + unit for number, unit in parts) != str(value).strip() or not parts:
        raise invalid(
            "task.idle_timeout", f"idle_timeout is {str(value)[:40]!r}; write a duration such as 30m or 1h30m"
        )
    return sum(float(number) * _SECONDS_BY_UNIT[unit] for number, unit in parts)
