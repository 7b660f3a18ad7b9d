"""`gangline experiment move`: moves an experiment into another project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.experiment import app
from gangline.cli.shared import MOST_ID, ExperimentId, Json, connect, show
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.client import Client

Place = Annotated[
    list[str],
    typer.Argument(metavar="PROJECT_ID | WORKSPACE PROJECT", help="The id of the project, or the names of both."),
]


@app.command()
def move(experiment_id: ExperimentId, place: Place, is_json: Json = False) -> None:
    """Move an experiment into another project."""
    with connect() as client:
        project_id = _project_id(client, place)
        experiment = client.move_to_project(experiment_id, project_id)
    show(experiment, is_json, lambda: [f"experiment {experiment_id} {experiment.name} is in project {project_id}"])


def _project_id(client: Client, place: list[str]) -> int:
    """Raises GanglineError `project.place`, and that of a name that does not exist."""
    if len(place) == 2:
        return client.find_project(*place).project.id
    text = place[0]
    if len(place) > 1 or not (text.isascii() and text.isdigit()) or not 0 < int(text[:20]) <= MOST_ID:
        raise invalid(
            "project.place",
            f"{' '.join(place)!r} is no project; give its id, as 'gangline project list' shows it, or the names of its "
            "workspace and of itself",
        )
    return int(text)
