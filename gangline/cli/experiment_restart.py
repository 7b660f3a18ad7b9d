"""`gangline experiment continue`, `fork` and `code`: goes on with an experiment, or begins anew with its code.

A training that ended by a mistake in its code goes on from its checkpoint: fetch the code, mend it, continue with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gangline.cli.experiment import app, follow_to_end
from gangline.cli.output.text import format_bytes
from gangline.cli.shared import (
    ExperimentId,
    Json,
    Overrides,
    Paused,
    connect,
    say_on_interrupt,
    show,
    show_created,
    waits_to_be_activated,
    warn,
)
from gangline.errors import invalid
from gangline.text_file import read_text

_OtherCode = Annotated[
    Path | None, typer.Argument(metavar="[CODE]", help="The folder of other code; default: the code that it has.")
]
_ConfigFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A YAML file whose sections replace those of the experiment; --config wins over it."
    ),
]

_Follows = Annotated[bool, typer.Option("--follow", "-f", help="Show it until it ends.")]


@app.command("continue")
def resume(
    experiment_id: ExperimentId,
    code: _OtherCode = None,
    *,
    overrides: Overrides = None,
    config_file: _ConfigFile = None,
    request_id: Annotated[
        str, typer.Option(help="An id of your own; a second command with it changes nothing more.")
    ] = "",
    follow: _Follows = False,
    is_json: Json = False,
) -> None:
    """Go on with the trial of an ended experiment from its newest checkpoint.

    For longer with --config searcher.max_length.batches=N. With other code, such as with a mended bug, name its folder.
    """
    with connect() as client:
        changes = _read_changes(config_file, overrides)
        unknown = f"it is not known whether it continues; look: gangline experiment describe {experiment_id}"
        with say_on_interrupt(unknown):
            continued = client.continue_experiment(experiment_id, changes, request_id or None, code=code)
        for warning in continued.warnings:
            warn(warning)
        if follow:
            follow_to_end(client, experiment_id, is_json)
            return
    show_created(continued, f"experiment {experiment_id} {continued.experiment.name} continues", is_json)


@app.command()
def fork(
    experiment_id: ExperimentId,
    code: _OtherCode = None,
    *,
    overrides: Overrides = None,
    config_file: _ConfigFile = None,
    is_paused: Paused = False,
    request_id: Annotated[
        str, typer.Option(help="An id of your own; a second fork with it returns the same experiment.")
    ] = "",
    follow: _Follows = False,
    is_json: Json = False,
) -> None:
    """Create an experiment from the configuration and the code of another one, with changes."""
    with connect() as client:
        from gangline.client.call_message import new_request_id  # noqa: PLC0415 - loads grpc

        changes, own_id = _read_changes(config_file, overrides), request_id or new_request_id()
        with say_on_interrupt(f"it is not known whether it was created; look: gangline experiment find {own_id}"):
            created = client.fork_experiment(experiment_id, changes, is_paused=is_paused, request_id=own_id, code=code)
        for warning in created.warnings:
            warn(warning)
        experiment = created.experiment
        if follow and not waits_to_be_activated(created):
            follow_to_end(client, experiment.id, is_json)
            return
    text = f"created experiment {experiment.id} {experiment.name} from experiment {experiment_id}"
    show_created(created, text, is_json)


@app.command("code")
def fetch_code(
    experiment_id: ExperimentId,
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new folder; default: experiment-ID.")] = None,
    version: Annotated[
        int,
        typer.Option(
            metavar="N", help="Counts from 1, the code with which it was created; default: the present code.", min=0
        ),
    ] = 0,
    is_json: Json = False,
) -> None:
    """Fetch the code of an experiment into a folder."""
    folder = output or Path(f"experiment-{experiment_id}")
    with connect() as client:
        num_bytes = client.download_code(experiment_id, folder, version)
    record = {"experiment_id": experiment_id, "folder": str(folder.resolve()), "num_bytes": num_bytes}
    show(record, is_json, lambda: [f"{format_bytes(num_bytes)} in {folder.resolve()}"])


def _read_changes(config_file: Path | None, overrides: list[str] | None) -> dict[str, Any]:
    """Returns values by dotted keys. Raises GanglineError `config.*`."""
    from gangline.config import parse_overrides  # noqa: PLC0415 - loads pydantic
    from gangline.config.yaml_document import parse_document  # noqa: PLC0415

    sections = parse_document(read_text(config_file)).values if config_file is not None else {}
    if not isinstance(sections, dict):
        raise invalid("config.wrong_type", f"{config_file} has no mapping such as resources: {{slots_per_trial: 2}}")
    return {str(name): value for name, value in sections.items()} | parse_overrides(overrides or ())
