"""`gangline experiment kill, pause, activate, cancel, archive, unarchive, delete`.

They are named by their ids, or chosen by conditions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangline.cli.experiment import app, do_each, state_line
from gangline.cli.option_record import spread
from gangline.cli.output.terminal import can_ask, mention
from gangline.cli.selection import (
    ENDED_STATES,
    LIVE_STATES,
    SelectionOptions,
    SomeExperimentIds,
    find_selected,
)
from gangline.cli.shared import Json, connect, show
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.client import Client
    from gangline.domain.experiment import Experiment, ExperimentFilter
    from gangline.domain.state import State

Wait = Annotated[
    bool, typer.Option("--wait", help="Return once the slots are free, that is when all ranks have ended.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]

# Experiments that a question names; it counts the others.
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class _Action:
    """Describes a command."""

    name: str
    done: str  # a participle, such as "paused"
    help: str
    call: Callable[[Client], Callable[[int], Any]]
    states: Sequence[State]  # states in which conditions choose experiments
    archived: bool | None = False  # which of them conditions choose, archived or others; None for all
    is_final: bool = False  # whether it asks even if ids are given
    warning: str = ""  # part of the question; empty for none
    frees_slots: bool = False  # whether it has --wait, for the moment at which the slots are free
    line_of: Callable[[Any], str] = state_line


def _delete_one(client: Client) -> Callable[[int], dict[str, int | str]]:
    def delete(experiment_id: int) -> dict[str, int | str]:
        is_gone = client.delete_experiment(experiment_id) is None
        return {"id": experiment_id, "state": "DELETED" if is_gone else "DELETING"}

    return delete


def _deletion_line(deletion: dict[str, int | str]) -> str:
    how_far = "is deleted" if deletion["state"] == "DELETED" else "is being deleted"
    return f"experiment {deletion['id']} {how_far}"


_ACTIONS = (
    _Action(
        "kill",
        "killed",
        "End experiments at once.",
        lambda client: client.kill_experiment,
        LIVE_STATES,
        frees_slots=True,
    ),
    _Action(
        "pause",
        "paused",
        "Take a checkpoint of every trial and give its slots back until the experiment is activated.",
        lambda client: client.pause_experiment,
        LIVE_STATES,
        frees_slots=True,
    ),
    _Action(
        "activate",
        "activated",
        "Go on with paused experiments, from their checkpoints.",
        lambda client: client.activate_experiment,
        LIVE_STATES,
    ),
    _Action(
        "cancel",
        "canceled",
        "End experiments after a checkpoint of every trial.",
        lambda client: client.cancel_experiment,
        LIVE_STATES,
        frees_slots=True,
    ),
    _Action(
        "archive",
        "archived",
        "Take ended experiments out of `experiment list`; nothing else changes.",
        lambda client: client.archive_experiment,
        ENDED_STATES,
    ),
    _Action(
        "unarchive",
        "unarchived",
        "Show archived experiments in `experiment list` again.",
        lambda client: client.unarchive_experiment,
        ENDED_STATES,
        archived=True,
    ),
    _Action(
        "delete",
        "deleted",
        "Delete ended experiments for good: checkpoints, TensorBoard files, logs, metrics, and code that no other "
        "uses.\n\nThe files go in the background; until then `experiment list` shows DELETING. Deleting a deleted one "
        "does nothing.",
        _delete_one,
        ENDED_STATES,
        archived=None,
        is_final=True,
        warning=" with all checkpoints, logs and metrics? This cannot be undone",
        line_of=_deletion_line,
    ),
)


def _add(action: _Action) -> None:
    @spread(selection=SelectionOptions)
    def run(
        experiment_ids: SomeExperimentIds = None,
        *,
        selection: SelectionOptions,
        is_waiting: Wait = False,
        is_yes: Yes = False,
        is_json: Json = False,
    ) -> None:
        wanted = selection.make_filter(action.states)
        if bool(experiment_ids) == selection.is_given:
            raise invalid(
                "experiment.which",
                f"name the experiments by their ids, or choose them, as with: gangline experiment {action.name} "
                "--label LABEL; not both",
            )
        if experiment_ids and action.is_final and not is_yes:
            _confirm(action, _numbers(experiment_ids))
        with connect() as client:
            if not experiment_ids:
                experiment_ids = _choose(client, action, selection, wanted, is_yes=is_yes, is_json=is_json)
            changing = partial(do_each, experiment_ids, is_json=is_json, line_of=action.line_of)
            if is_waiting:
                _change_and_wait(client, action, changing)
            else:
                changing(action.call(client))

    if not action.frees_slots:
        signature = inspect.signature(run)
        kept = [parameter for name, parameter in signature.parameters.items() if name != "is_waiting"]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # what typer reads
    app.command(action.name, help=action.help)(run)


for _action in _ACTIONS:
    _add(_action)


def _change_and_wait(client: Client, action: _Action, changing: Callable[[Callable[[int], Any]], None]) -> None:
    """Waits only after all experiments were changed, also where some were refused."""
    changed: list[int] = []
    call = action.call(client)

    def change(experiment_id: int) -> Any:
        record = call(experiment_id)
        changed.append(experiment_id)
        return record

    refusal: typer.Exit | None = None
    try:
        changing(change)
    except typer.Exit as end:
        refusal = end
    for experiment_id in changed:
        client.wait_released(experiment_id)
        mention(f"experiment {experiment_id}: its slots are free")
    if refusal is not None:
        raise refusal


def _choose(
    client: Client,
    action: _Action,
    selection: SelectionOptions,
    wanted: ExperimentFilter,
    *,
    is_yes: bool,
    is_json: bool,
) -> list[int]:
    """Returns the ids of the selected experiments after the user has agreed. Ends the command if there are none."""
    selected = find_selected(client, selection, wanted, action.archived)
    if not selected:
        show([], is_json, lambda: [f"no experiment matches, so none was {action.done}"])
        raise typer.Exit
    if not is_yes:
        _confirm(action, _describe(selected))
    return [experiment.id for experiment in selected]


def _describe(selected: Sequence[Experiment]) -> str:
    named = ", ".join(f"{experiment.id} {experiment.name}" for experiment in selected[:_MOST_NAMED])
    more = f" and {len(selected) - _MOST_NAMED} more" if len(selected) > _MOST_NAMED else ""
    return f"{len(selected)} experiment{'' if len(selected) == 1 else 's'} ({named}{more})"


def _numbers(experiment_ids: Sequence[int]) -> str:
    numbers = " ".join(map(str, dict.fromkeys(experiment_ids)))
    return f"experiment{'' if len(set(experiment_ids)) == 1 else 's'} {numbers}"


def _confirm(action: _Action, what: str) -> None:
    """Asks the user. Raises GanglineError `experiment.unconfirmed` where there is no terminal for the question."""
    if not can_ask():
        undone = f": deleting {what} cannot be undone, and" if action.is_final else f" of {what}:"
        text = f"nothing was {action.done}{undone} there is no terminal to ask; add --yes"
        raise invalid("experiment.unconfirmed", text)
    if not typer.confirm(f"{action.name} {what}{action.warning or '?'}", err=True):
        mention(f"nothing was {action.done}")
        raise typer.Exit(1)
