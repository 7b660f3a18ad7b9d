"""`gangline trial ...`: reads, follows, traces and ends one trial of an experiment, and fetches its output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli import experiment, logs
from gangline.cli.option_record import spread
from gangline.cli.output.text import format_bytes
from gangline.cli.shared import Json, connect, new_group, show, warn
from gangline.domain.id import absent
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.client import TraceOrder, TrialView

app = new_group("Read, trace and end single trials.")

TrialArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of the trial, as 7.1.")]


@app.command()
def describe(trial_id: TrialArgument, is_json: Json = False) -> None:
    """Show one trial with its hyperparameters and results."""
    with connect() as client:
        view = client.get_experiment(_experiment_of(trial_id))
    trial = next((trial for trial in view.trials if trial.trial.id == trial_id), None)
    if trial is None:
        raise absent("trial", trial_id)
    show(trial, is_json, lambda: _description(trial))


@app.command("logs")
@spread(selection=logs.LineSelection)
def print_logs(
    trial_id: TrialArgument,
    *,
    follow: experiment.Follow = False,
    selection: logs.LineSelection,
    is_json: Json = False,
) -> None:
    """Print the output of a trial, each line with its time, level and rank.

    Only lines that match all given options are printed; with --follow this holds for new lines too.
    """
    logs.print_logs(_experiment_of(trial_id), trial_id, selection, follow=follow, is_json=is_json)


@app.command()
def metrics(
    trial_id: TrialArgument,
    *,
    follow: experiment.Follow = False,
    group: Annotated[str, typer.Option(help="training, validation or any other that was reported; default: all.")] = "",
    metric: Annotated[
        str, typer.Option(metavar="NAME", help="Print this metric alone, in a bounded number of points.")
    ] = "",
    max_points: Annotated[
        int,
        typer.Option(metavar="N", help="With --metric: at most so many; the extremes of a longer series are left."),
    ] = 1000,
    attempt: experiment.Attempt = None,
    all_attempts: experiment.AllAttempts = False,
    is_json: Json = False,
) -> None:
    """Print the metrics that a trial reported, oldest first. Newer attempts replace what older ones reported for the
    same batches."""
    chosen = experiment.chosen_attempt(attempt, all_attempts)
    if metric:
        if follow:
            raise invalid("series.follow", "--metric prints what there is by now; leave out --follow")
        _print_series(trial_id, metric, group or "training", max_points, chosen, is_json=is_json)
    else:
        experiment.print_metrics(_experiment_of(trial_id), follow, trial_id, group, chosen, is_json=is_json)


def _print_series(
    trial_id: str, metric: str, group: str, max_points: int, attempt: int | None, *, is_json: bool
) -> None:
    _experiment_of(trial_id)
    with connect() as client:
        series = client.get_metric_series(trial_id, metric, group, max_points, attempt=attempt)
    show(
        series,
        is_json,
        lambda: [f"{point.batches_completed:>10} batches  {point.value:.6g}" for point in series.points],
    )
    if not series.num_values:
        warn(f"trial {trial_id} reported no {metric!r} under {group!r}; gangline trial metrics {trial_id} shows all")
    elif series.num_nonfinite:
        warn(f"{series.num_nonfinite} of {series.num_values} values are infinite or no number; they are left out")


@app.command()
def output(
    trial_id: TrialArgument,
    folder: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new folder; default: output-ID.", show_default=False)
    ] = None,
    is_json: Json = False,
) -> None:
    """Fetch the files that a trial's processes wrote into $GANGLINE_OUTPUT_DIR; they are kept when the processes
    end."""
    _experiment_of(trial_id)
    target = folder or Path(f"output-{trial_id}")
    with connect() as client:
        num_bytes = client.download_output(trial_id, target)
    record = {"trial_id": trial_id, "folder": str(target.resolve()), "num_bytes": num_bytes}
    show(record, is_json, lambda: [f"{format_bytes(num_bytes)} in {target.resolve()}"])


@app.command()
def kill(trial_id: TrialArgument, is_json: Json = False) -> None:
    """End a trial at once; the others of its experiment go on."""
    _experiment_of(trial_id)
    with connect() as client:
        trial = client.kill_trial(trial_id)
    show(trial, is_json, lambda: [f"trial {trial.id}: {trial.outcome or trial.state}"])


@app.command()
def profile(
    trial_id: TrialArgument,
    batches: Annotated[int, typer.Option(metavar="N", help="How many batches to trace, 1 to 50.")] = 10,
    is_json: Json = False,
) -> None:
    """Trace the next batches of a running trial with torch's profiler."""
    _experiment_of(trial_id)
    with connect() as client:
        order = client.profile_trial(trial_id, batches)
    show(order, is_json, lambda: _prospect(order))


def _prospect(order: TraceOrder) -> list[str]:
    """Returns the next events, and the places to watch them."""
    folder = order.tensorboard_url.removeprefix("file://")
    num = f"{order.batches} batches are" if order.batches > 1 else "1 batch is"
    return [
        f"trial {order.trial_id}: {num} traced once the trial has heard of it, within seconds while it trains",
        f"  when it begins and when it is written: gangline trial logs -f {order.trial_id}",
        f"  the trace comes to: {folder}/*.pt.trace.json",
        f"  look at it: tensorboard --logdir {folder} (with torch-tb-profiler), or open it in ui.perfetto.dev",
    ]


def _experiment_of(trial_id: str) -> int:
    from gangline.domain.id import parse_trial_id  # noqa: PLC0415 - with the client's records

    return parse_trial_id(trial_id)[0]


def _description(view: TrialView) -> list[str]:
    from gangline.cli.output.summary import (  # noqa: PLC0415 - loads the client's records
        batches_of,
        flatten,
        format_values,
        place_of,
        trial_lines,
        waiting_for,
    )

    trial = view.trial
    words = [f"trial {trial.id}: {trial.outcome or trial.state}", batches_of(view)]
    lines = [", ".join(words)]
    lines += [f"  on {place}" for place in [place_of(view)] if place]
    lines += [f"  waits: {reason}" for reason in [waiting_for(view, names_failure=False)] if reason]
    # Before its end a trial's last failure has a line of its own.
    if trial.reason and (trial.outcome or trial.last_failure is None):
        lines.append(f"  reason: {trial.reason}")
    lines.append(f"  hyperparameters: {format_values(flatten(json.loads(trial.hyperparameters_json or '{}')))}")
    if trial.best_validation is not None:
        lines.append(f"  best validation: {trial.best_validation:.4g} (after {trial.best_validation_batches} batches)")
    if trial.restarts and (trial.outcome == "FAILED" or trial.last_failure is None):  # else trial_lines names them
        lines.append(f"  restarts: {trial.restarts}")
    return [*lines, *trial_lines(view, trial.reason)]
