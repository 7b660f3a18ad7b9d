"""`gangline experiment fork`: creates an experiment from another one's configuration and code."""

from __future__ import annotations

from typing import Annotated

import typer

from gangline.cli.experiment import app
from gangline.cli.shared import ExperimentId, Json, Overrides, Paused, connect, show, warn


@app.command()
def fork(
    experiment_id: ExperimentId,
    *,
    overrides: Overrides = None,
    is_paused: Paused = False,
    request_id: Annotated[
        str, typer.Option(help="An id of your own; a second fork with it returns the same experiment.")
    ] = "",
    is_json: Json = False,
) -> None:
    """Create an experiment from the configuration and the code of another one, with changes."""
    with connect() as client:
        from gangline.config import parse_overrides  # noqa: PLC0415 - loads pydantic

        changes = parse_overrides(overrides or ())
        created = client.fork_experiment(experiment_id, changes, is_paused=is_paused, request_id=request_id or None)
    for warning in created.warnings:
        warn(warning)
    experiment = created.experiment
    text = f"created experiment {experiment.id} {experiment.name} from experiment {experiment_id}"
    show(created, is_json, lambda: [text, f"follow it: gangline experiment logs -f {experiment.id}"])
