"""`gangline experiment set ...` and `... label ...`: changes the resources, texts and labels of an experiment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli import experiment
from gangline.cli.shared import ExperimentId, Json, connect, new_group, show

if TYPE_CHECKING:
    from gangline.domain.experiment import Experiment

WhenFree = Annotated[bool, typer.Option("--when-free", help="Stop no trial for it: wait until trials end.")]

app = new_group("Change the resources of an experiment that waits or runs, or the texts of any.")
experiment.app.add_typer(app, name="set")
label_app = new_group("Add labels to an experiment, or remove some.")
experiment.app.add_typer(label_app, name="label")

LabelWords = Annotated[list[str], typer.Argument(metavar="LABEL...", help="One word or more.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="The new text; quote it.")]


@app.command()
def priority(
    experiment_id: ExperimentId,
    value: Annotated[int, typer.Argument(metavar="PRIORITY", help="1 (most urgent) to 99.")],
    is_json: Json = False,
) -> None:
    """Set how urgent it is."""
    with connect() as client:
        show_resources(client.update_experiment(experiment_id, priority=value), is_json)


@app.command()
def weight(
    experiment_id: ExperimentId,
    value: Annotated[float, typer.Argument(metavar="WEIGHT", help="Its share in a fair_share pool; default: 1.")],
    is_json: Json = False,
) -> None:
    """Set its share."""
    with connect() as client:
        show_resources(client.update_experiment(experiment_id, weight=value), is_json)


@app.command("max-slots")
def max_slots(
    experiment_id: ExperimentId,
    value: Annotated[int, typer.Argument(metavar="SLOTS", help="The most at a time; 0 for no cap.")],
    when_free: WhenFree = False,
    is_json: Json = False,
) -> None:
    """Set how many slots all of its trials may hold at a time; the newest trials beyond it checkpoint and wait."""
    with connect() as client:
        show_resources(client.update_experiment(experiment_id, max_slots=value, when_free=when_free), is_json)


@app.command()
def name(experiment_id: ExperimentId, text: Text, is_json: Json = False) -> None:
    """Set its name."""
    with connect() as client:
        _show_texts(client.edit_experiment(experiment_id, name=text), is_json)


@app.command()
def description(experiment_id: ExperimentId, text: Text, is_json: Json = False) -> None:
    """Set its description."""
    with connect() as client:
        _show_texts(client.edit_experiment(experiment_id, description=text), is_json)


@app.command()
def notes(experiment_id: ExperimentId, text: Text, is_json: Json = False) -> None:
    """Set its notes."""
    with connect() as client:
        _show_texts(client.edit_experiment(experiment_id, notes=text), is_json)


@label_app.command("add")
def add_labels(experiment_id: ExperimentId, labels: LabelWords, is_json: Json = False) -> None:
    """Add labels; those that it has already change nothing."""
    with connect() as client:
        _show_texts(client.edit_experiment(experiment_id, add_labels=labels), is_json)


@label_app.command("remove")
def remove_labels(experiment_id: ExperimentId, labels: LabelWords, is_json: Json = False) -> None:
    """Remove labels; those that it does not have change nothing."""
    with connect() as client:
        _show_texts(client.edit_experiment(experiment_id, remove_labels=labels), is_json)


def _show_texts(experiment: Experiment, is_json: bool) -> None:
    labels = ", ".join(experiment.labels) or "none"
    show(experiment, is_json, lambda: [f"experiment {experiment.id} {experiment.name}: labels: {labels}"])


def show_resources(experiment: Experiment, is_json: bool) -> None:
    show(experiment, is_json, lambda: [_text(experiment)])


def _text(experiment: Experiment) -> str:
    """Returns a line such as: experiment 7 digits: priority 10, weight 1, no max_slots."""
    resources = json.loads(experiment.config_json or "{}").get("resources") or {}
    priority, max_slots = resources.get("priority"), resources.get("max_slots")
    words = [
        "the pool's default priority" if priority is None else f"priority {priority}",
        f"weight {resources.get('weight', 1):g}",
        f"max_slots {max_slots}" if max_slots else "no max_slots",
    ]
    return f"experiment {experiment.id} {experiment.name}: {', '.join(words)}"
