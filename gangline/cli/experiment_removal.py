"""`gangline experiment delete`, `archive` and `unarchive`: removes ended experiments, or hides them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.experiment import app, change_each, do_each
from gangline.cli.output.terminal import can_ask, mention
from gangline.cli.shared import ExperimentIds, Json, connect
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.client import Client

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]


@app.command()
def delete(experiment_ids: ExperimentIds, is_yes: Yes = False, is_json: Json = False) -> None:
    """Delete ended experiments for good: checkpoints, TensorBoard files, logs, metrics, and code that no other uses.

    The files go in the background; until then `experiment list` shows DELETING. Deleting a deleted one does nothing.
    """
    if not is_yes:
        _confirm(experiment_ids)
    with connect() as client:
        do_each(experiment_ids, lambda number: _delete_one(client, number), is_json, _deletion_line)


@app.command()
def archive(experiment_ids: ExperimentIds, is_json: Json = False) -> None:
    """Take ended experiments out of `experiment list`; nothing else changes."""
    with connect() as client:
        change_each(experiment_ids, client.archive_experiment, is_json)


@app.command()
def unarchive(experiment_ids: ExperimentIds, is_json: Json = False) -> None:
    """Show archived experiments in `experiment list` again."""
    with connect() as client:
        change_each(experiment_ids, client.unarchive_experiment, is_json)


def _confirm(experiment_ids: list[int]) -> None:
    """Asks the user. Raises GanglineError `experiment.unconfirmed` where there is no terminal for the question."""
    numbers = " ".join(map(str, dict.fromkeys(experiment_ids)))
    what = f"experiment{'' if len(set(experiment_ids)) == 1 else 's'} {numbers}"
    if not can_ask():
        text = f"nothing was deleted: deleting {what} cannot be undone, and there is no terminal to ask; add --yes"
        raise invalid("experiment.unconfirmed", text)
    if not typer.confirm(f"delete {what} with all checkpoints, logs and metrics? This cannot be undone", err=True):
        mention("nothing was deleted")
        raise typer.Exit(1)


def _delete_one(client: Client, experiment_id: int) -> dict[str, int | str]:
    is_gone = client.delete_experiment(experiment_id) is None
    return {"id": experiment_id, "state": "DELETED" if is_gone else "DELETING"}


def _deletion_line(deletion: dict[str, int | str]) -> str:
    how_far = "is deleted" if deletion["state"] == "DELETED" else "is being deleted"
    return f"experiment {deletion['id']} {how_far}"
