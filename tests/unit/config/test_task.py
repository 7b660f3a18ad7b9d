"""Commands, shells and notebooks as configurations of experiments."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.config import read_config
from gangline.config.task import parse_duration, plan_task
from gangline.domain.entrypoint import Command, parse_entrypoint
from gangline.domain.experiment import Experiment, ExperimentFilter
from gangline.domain.state import TaskKind
from gangline.errors import GanglineError


@pytest.mark.parametrize(
    ("entrypoint", "words"),
    [
        (["echo", "a b"], ["/bin/sh", "-c", 'exec "$@"', "sh", "echo", "a b"]),
        (["echo hi && ls"], ["/bin/sh", "-c", "echo hi && ls"]),
        ("python3 train.py", ["/bin/sh", "-c", "python3 train.py"]),
        (["python3", "train.py"], ["/bin/sh", "-c", 'exec "$@"', "sh", "python3", "train.py"]),
    ],
)
def test_a_command_is_a_program_with_one_attempt(entrypoint: object, words: list[str]) -> None:
    config, warnings = read_config(plan_task(TaskKind.COMMAND, {"entrypoint": entrypoint}))
    assert config.entrypoint == words
    assert isinstance(parse_entrypoint(config.entrypoint), Command)
    assert config.task is not None
    assert (config.task.kind, config.max_restarts, warnings) == (TaskKind.COMMAND, 0, [])
    resources = config.resources
    assert (resources.slots_per_trial, resources.is_single_node, resources.preemptible) == (1, True, False)


def test_the_settings_of_determined_have_their_places() -> None:
    command = {
        "description": "look",
        "entrypoint": "ls",
        "resources": {"slots": 2, "priority": 7, "resource_pool": "big", "weight": None},
        "environment": {"environment_variables": ["A=1"]},
        "work_dir": "sub",
        "bind_mounts": None,
    }
    config, _ = read_config(plan_task(TaskKind.COMMAND, command))
    assert (config.name, config.resources.slots_per_trial, config.resources.priority) == ("look", 2, 7)
    assert (config.resources.resource_pool, config.environment.working_directory) == ("big", "sub")
    assert config.environment.environment_variables.cpu == ["A=1"]


def test_a_name_is_one_printable_line() -> None:
    config, _ = read_config(plan_task(TaskKind.COMMAND, {"entrypoint": "echo \x1b[31m\n  ls  " + "x" * 99}))
    assert config.name.startswith("command: echo [31m ls xxx")
    assert len(config.name) == 60


def test_a_notebook_runs_our_launcher_and_may_end_when_idle() -> None:
    config, _ = read_config(plan_task(TaskKind.NOTEBOOK, {"idle_timeout": "1h30m"}))
    assert config.entrypoint == ["/bin/sh", "-c", 'exec "$GANGLINE_TASK_PYTHON" -I -m gangline.launch.notebook']
    assert config.task is not None
    assert (config.name, config.task.idle_seconds) == ("notebook", 5400.0)


@pytest.mark.parametrize(
    ("kind", "command", "message"),
    [
        (TaskKind.COMMAND, {}, "there is no command to run; write it at the end: gangline cmd run -- COMMAND"),
        (TaskKind.COMMAND, {"entrypoint": [" "]}, "there is no command to run"),
        (TaskKind.COMMAND, {"entrypoint": ["a", 1]}, "there is no command to run"),
        (TaskKind.SHELL, {"entrypoint": "ls"}, "a shell has no entrypoint; run a command with: gangline cmd run"),
        (TaskKind.COMMAND, {"entrypoint": "ls", "resources": 3}, "resources is no mapping, such as {slots: 1}"),
        (TaskKind.COMMAND, {"entrypoint": "ls", "environment": 3, "work_dir": "x"}, "environment is no mapping"),
        (TaskKind.NOTEBOOK, {"idle_timeout": "soon"}, "idle_timeout is 'soon'; write a duration such as 30m or 1h30m"),
        (TaskKind.COMMAND, {"entrypoint": "ls", "slots": 1}, "slots: unknown key"),
        (TaskKind.COMMAND, {"entrypoint": "ls", "resources": {"slots": -1}}, "resources.slots_per_trial: "),
    ],
)
def test_a_mistake_is_one_line(kind: TaskKind, command: dict[str, Any], message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        read_config(plan_task(kind, command))
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_trial_class_is_no_task() -> None:
    values = {**plan_task(TaskKind.COMMAND, {"entrypoint": "ls"}), "entrypoint": "model_def:T"}
    with pytest.raises(GanglineError, match="is a trial class, and a command runs a command"):
        read_config(values)


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800.0), ("1h2m3s", 3723.0), (90, 90.0), ("1.5h", 5400.0)])
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_listings_keep_tasks_and_trainings_apart() -> None:
    training = Experiment(1, "a", "ann", "{}", "")
    shell = Experiment(2, "b", "ann", "{}", "", task_kind=TaskKind.SHELL)
    assert [ExperimentFilter().matches(each) for each in (training, shell)] == [True, False]
    shells, commands = (ExperimentFilter(task_kinds=(kind,)) for kind in (TaskKind.SHELL, TaskKind.COMMAND))
    assert [shells.matches(each) for each in (training, shell)] == [False, True]
    assert [commands.matches(each) for each in (training, shell)] == [False, False]
