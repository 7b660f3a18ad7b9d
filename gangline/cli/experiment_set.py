"""`gangline experiment set ...` and `... label ...`: changes the resources, texts and labels of an experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli import experiment
from gangline.cli.output.terminal import can_ask, mention
from gangline.cli.output.text import count, format_bytes
from gangline.cli.shared import ExperimentId, Json, connect, new_group, show
from gangline.domain.settled.reading import settle
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.domain.experiment import Checkpoint, Experiment

WhenFree = Annotated[bool, typer.Option("--when-free", help="Stop no trial for it: wait until trials end.")]

app = new_group("Change the resources of an experiment that waits or runs, or the texts of any.")
experiment.app.add_typer(app, name="set")
label_app = new_group("Add labels to an experiment, or remove some.")
experiment.app.add_typer(label_app, name="label")

LabelWords = Annotated[list[str], typer.Argument(metavar="LABEL...", help="One word or more.")]
Best = Annotated[int | None, typer.Option(metavar="N", help="The best checkpoints of the experiment.")]
TrialBest = Annotated[int | None, typer.Option(metavar="N", help="The best checkpoints of each trial.")]
TrialLatest = Annotated[int | None, typer.Option(metavar="N", help="The latest checkpoints of each trial.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]
# Checkpoints that the question names; it counts the others.
_MOST_SHOWN = 20
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


@app.command("gc-policy")
def gc_policy(
    experiment_id: ExperimentId,
    *,
    save_experiment_best: Best = None,
    save_trial_best: TrialBest = None,
    save_trial_latest: TrialLatest = None,
    is_yes: Yes = False,
    is_json: Json = False,
) -> None:
    """Set how many checkpoints are kept, and delete the others, also after its end.

    It shows what it deletes and asks. A number that is not given stays as it is.
    """
    with connect() as client:
        if not is_yes:
            lost = client.preview_retention(
                experiment_id,
                save_experiment_best=save_experiment_best,
                save_trial_best=save_trial_best,
                save_trial_latest=save_trial_latest,
            )
            _confirm_policy(experiment_id, lost)
        changed = client.change_retention(
            experiment_id,
            save_experiment_best=save_experiment_best,
            save_trial_best=save_trial_best,
            save_trial_latest=save_trial_latest,
        )
        _show_policy(changed, is_json)


@app.command("log-retention")
def log_retention(
    experiment_id: ExperimentId,
    *,
    days: Annotated[
        int | None, typer.Option(metavar="DAYS", help="After the end of each trial; -1 keeps them for ever.")
    ] = None,
    metric_days: Annotated[
        int | None, typer.Option(metavar="DAYS", help="The same for metrics, of which the newest always stay.")
    ] = None,
    is_forever: Annotated[bool, typer.Option("--forever", help="Keep the logs for ever.")] = False,
    is_json: Json = False,
) -> None:
    """Set for how many days after the end of its trials logs are kept."""
    if is_forever and days is not None:
        raise invalid("retention.days", "give either --days or --forever")
    with connect() as client:
        days = -1 if is_forever else days
        changed = client.change_retention(experiment_id, log_retention_days=days, metric_retention_days=metric_days)
        _show_policy(changed, is_json)


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


def _confirm_policy(experiment_id: int, lost: list[Checkpoint]) -> None:
    """Shows the checkpoints that go, and asks. Raises GanglineError `retention.unconfirmed` where there is no terminal
    for the question."""
    if not lost:
        return
    num_bytes = sum(sum(checkpoint.file_bytes.values()) for checkpoint in lost)
    what = f"{count(len(lost), 'checkpoint')} of experiment {experiment_id} ({format_bytes(num_bytes)})"
    if not can_ask():
        raise invalid(
            "retention.unconfirmed",
            f"nothing was changed: {what} would be deleted for good, and there is no terminal to ask; add --yes",
        )
    for checkpoint in lost[:_MOST_SHOWN]:
        mention(f"  {checkpoint.id}  trial {checkpoint.trial_id}, batch {checkpoint.batches_completed}")
    if len(lost) > _MOST_SHOWN:
        mention(f"  and {len(lost) - _MOST_SHOWN} more")
    if not typer.confirm(f"delete {what} for good?", err=True):
        mention("nothing was changed")
        raise typer.Exit(1)


def _show_policy(experiment: Experiment, is_json: bool) -> None:
    show(experiment, is_json, lambda: [_policy(experiment)])


def _policy(experiment: Experiment) -> str:
    """Returns a line such as: experiment 7 digits keeps the best 0 checkpoints, ..., logs for ever."""
    settled = settle(experiment.config_json)
    storage, policy = settled.checkpoint_storage, settled.retention_policy
    words = [
        f"save_experiment_best {storage.save_experiment_best}",
        f"save_trial_best {storage.save_trial_best}",
        f"save_trial_latest {storage.save_trial_latest}",
        f"logs {_days(policy.log_retention_days)}",
        f"metrics {_days(policy.metric_retention_days)}",
    ]
    return f"experiment {experiment.id} {experiment.name} keeps: {', '.join(words)}"


def _days(days: int | None) -> str:
    if days is None:
        return "as long as the gateway does"
    return "for ever" if days == -1 else f"for {count(days, 'day')}"


def _show_texts(experiment: Experiment, is_json: bool) -> None:
    labels = ", ".join(experiment.labels) or "none"
    show(experiment, is_json, lambda: [f"experiment {experiment.id} {experiment.name}: labels: {labels}"])


def show_resources(experiment: Experiment, is_json: bool) -> None:
    show(experiment, is_json, lambda: [_text(experiment)])


def _text(experiment: Experiment) -> str:
    """Returns a line such as: experiment 7 digits: priority 10, weight 1, no max_slots."""
    resources = settle(experiment.config_json).resources
    words = [
        "the pool's default priority" if resources.priority is None else f"priority {resources.priority}",
        f"weight {resources.weight:g}",
        f"max_slots {resources.max_slots}" if resources.max_slots else "no max_slots",
    ]
    return f"experiment {experiment.id} {experiment.name}: {', '.join(words)}"
