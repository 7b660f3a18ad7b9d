"""`gangline experiment ...`: creates, follows, reads and ends experiments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gangline.cli import logs
from gangline.cli.option_record import spread
from gangline.cli.output.table_layout import Column
from gangline.cli.output.terminal import complain, say, say_json, table_lines, terminal_width
from gangline.cli.output.text import count, format_age, format_duration, format_report
from gangline.cli.selection import SelectionOptions
from gangline.cli.shared import (
    ExperimentId,
    Json,
    Overrides,
    Paused,
    Seed,
    Template,
    TrialId,
    Wide,
    connect,
    naming_file,
    new_group,
    say_on_interrupt,
    show,
    show_created,
    show_table,
    trial_of,
    waits_to_be_activated,
    warn,
)
from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.text_file import read_text

if TYPE_CHECKING:
    from gangline.client import Client, ExperimentProgress, ExperimentView
    from gangline.domain.experiment import Experiment

T = TypeVar("T")

app = new_group("Create, follow, read and end experiments.")

_COLUMNS = (
    Column("ID"),
    Column("NAME", 9, least=12),
    Column("STATE", 8, is_state=True),
    Column("OWNER", 4, least=8),
    Column("PROGRESS", 7),
    Column("AGE", 6),
    Column("TOOK", 3),
)

Attempt = Annotated[
    int | None, typer.Option("--attempt", metavar="N", min=1, help="Only what this attempt of each trial reported.")
]
AllAttempts = Annotated[
    bool, typer.Option("--all-attempts", help="Also what newer attempts have replaced by training it again.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the experiment has ended.")]


@app.command()
def create(
    config: Annotated[Path, typer.Argument(help="The experiment's YAML file.")],
    code: Annotated[Path | None, typer.Argument(help="The folder of its code; default: that of the YAML.")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show it until it has ended.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Make another one, even if it was just created.")] = False,
    request_id: Annotated[
        str, typer.Option(help="An id of your own; a second create with it returns the same experiment.")
    ] = "",
    seed: Seed = None,
    template: Template = "",
    overrides: Overrides = None,
    is_paused: Paused = False,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Create nothing; show the trials and what they would cost.")
    ] = False,
    is_test: Annotated[
        bool,
        typer.Option(
            "--test",
            help="Try it: one batch, a validation, a checkpoint, and one batch more from there; then archive it.",
        ),
    ] = False,
    retry_seconds: Annotated[
        float | None, typer.Option(help="How long to try again while the cluster cannot take it; default: 10.", min=0)
    ] = None,
    is_json: Json = False,
) -> None:
    """Check a configuration and its code, upload both and submit them.

    With --follow, the exit status is 0 only if the experiment is COMPLETED; one that is --paused is not followed. Exit
    status 3: it is not known whether it was created; the same command goes on with the same request and makes no second
    one.
    """
    text = read_text(config)
    if is_dry_run:
        from gangline.cli.creation.preview import show_preview  # noqa: PLC0415 - one create in ten needs it

        show_preview(text, config, seed=seed, template=template, overrides=overrides, is_json=is_json)
        return
    with ExitStack() as stack:
        with naming_file(config), say_on_interrupt("nothing was created"):
            client = stack.enter_context(connect(retry_seconds))
            # These follow `connect`, which must run before the first import of grpc.
            from gangline.cli.creation.submit import submit  # noqa: PLC0415
            from gangline.cli.creation.trial_run import run_test, test_overrides  # noqa: PLC0415
            from gangline.cli.output.progress import Bars  # noqa: PLC0415
            from gangline.client import prepare_submission  # noqa: PLC0415
            from gangline.config import parse_overrides  # noqa: PLC0415

            inherited = client.inherit(text, template)
            changes = parse_overrides(overrides or ())
            if is_test:
                changes |= test_overrides(client.preview_search(text, 1, seed, template, changes))
            folder = code or config.resolve().parent
            with Bars() as bars:
                submission = prepare_submission(
                    text, folder, bars, seed=seed, inherited=inherited, overrides=changes, is_paused=is_paused
                )
        if is_test:
            run_test(client, submission, is_json=is_json)
            return
        created = submit(client, submission, request_id=request_id, is_again=again, is_quiet=is_json)
        for warning in created.warnings:
            warn(warning)
        number = created.experiment.id
        if follow and not waits_to_be_activated(created):
            follow_to_end(client, number, is_json)
        else:
            show_created(created, f"created experiment {number} {created.experiment.name}", is_json)


@app.command("list")
@app.command("ls", hidden=True)
@spread(selection=SelectionOptions)
def list_experiments(
    *,
    limit: Annotated[int, typer.Option(help="At most so many, newest first.", min=1, max=1000)] = 50,
    is_all: Annotated[bool, typer.Option("--all", help="Archived ones as well.")] = False,
    is_archived: Annotated[bool, typer.Option("--archived", help="Only archived ones.")] = False,
    selection: SelectionOptions,
    is_json: Json = False,
    is_wide: Wide = False,
) -> None:
    """List experiments, newest first."""
    archived = None if is_all else is_archived
    wanted = selection.make_filter()
    with connect() as client:
        listed = client.list_progress(
            limit, archived=archived, workspace=selection.workspace, project=selection.project, wanted=wanted
        )
    show_experiments(listed, is_json=is_json, is_wide=is_wide)


def show_experiments(
    listed: list[tuple[Experiment, ExperimentProgress | None]], *, is_json: bool, is_wide: bool
) -> None:
    now = time.time()
    rows = [
        (
            experiment.id,
            experiment.name,
            _stage(experiment, progress),
            experiment.owner,
            _progress(progress),
            format_age(experiment.created_at, now),
            _duration(experiment),
        )
        for experiment, progress in listed
    ]
    records = [{**asdict(experiment), "progress": progress} for experiment, progress in listed] if is_json else []
    empty = "no experiments yet; create one with gangline experiment create"
    show_table(records, _COLUMNS, rows, empty, is_json=is_json, is_wide=is_wide)


@app.command()
def find(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST", help="The id that a create has named.")],
    is_json: Json = False,
) -> None:
    """Show which experiment a request has made. Exit status 2: certainly none so far; 1: that cannot be known now."""
    with connect() as client:
        experiment = client.find_experiment(request_id)
    show(experiment, is_json, lambda: [state_line(experiment)])


@app.command()
def describe(experiment_id: ExperimentId, is_json: Json = False) -> None:
    """Show one experiment with its trials and configuration; with --json also what is at its default."""
    with connect() as client:
        view = client.get_experiment(experiment_id)
    show(view, is_json, lambda: _description(view))


@app.command("logs")
@spread(selection=logs.LineSelection)
def print_logs(
    experiment_id: ExperimentId,
    *,
    follow: Follow = False,
    trial: TrialId = "",
    selection: logs.LineSelection,
    is_json: Json = False,
) -> None:
    """Print the output of the trials, each line with its time, level, trial and rank.

    Only lines that match all given options are printed; with --follow this holds for new lines too.
    """
    logs.print_logs(experiment_id, trial_of(experiment_id, trial), selection, follow=follow, is_json=is_json)


@app.command()
def metrics(
    experiment_id: ExperimentId,
    follow: Follow = False,
    trial: TrialId = "",
    group: Annotated[str, typer.Option(help="training, validation or any other that was reported; default: all.")] = "",
    *,
    attempt: Attempt = None,
    all_attempts: AllAttempts = False,
    is_json: Json = False,
) -> None:
    """Print the metrics that were reported, oldest first. Newer attempts of a trial replace what older ones reported
    for the same batches."""
    print_metrics(
        experiment_id,
        follow,
        trial_of(experiment_id, trial),
        group,
        chosen_attempt(attempt, all_attempts),
        is_json=is_json,
    )


def chosen_attempt(attempt: int | None, all_attempts: bool) -> int | None:
    """Returns the choice of attempts as `stream_metrics` takes it."""
    if attempt is not None and all_attempts:
        raise invalid("metrics.attempt", "--attempt and --all-attempts exclude one another; give one of them")
    return 0 if all_attempts else attempt


def print_metrics(
    experiment_id: int, follow: bool, trial: str, group: str, attempt: int | None, *, is_json: bool
) -> None:
    """Prints the metrics of an experiment or of one trial. attempt: as `stream_metrics` takes it."""
    is_empty = True
    with connect() as client:
        for entry in client.stream_metrics(experiment_id, trial, group, follow, attempt=attempt):
            is_empty, point = False, entry.point
            number = f"attempt {entry.attempt}  " if attempt is not None else ""
            text = f"{entry.trial_id}  {number}{point.group:<10}  {point.batches_completed:>8} batches  "
            if is_json:
                say_json(entry, None, flush=follow)
            else:
                say([text + format_report(point)], flush=follow)
    if group and is_empty:
        warn(f"nothing was reported under the group {group!r}; without --group all groups are shown")


@app.command()
def wait(
    experiment_id: ExperimentId,
    timeout: Annotated[float, typer.Option(help="Give up after so many seconds; 0: never.", min=0)] = 0,
    is_json: Json = False,
) -> None:
    """Wait until an experiment has ended; the exit status is 0 only if it is COMPLETED.

    Progress is shown on the terminal, or in plain lines on standard error; with --json not at all.
    """
    with _going_on(experiment_id), connect() as client:
        views = _until(client.watch_experiment(experiment_id, timeout or None), experiment_id, timeout)
        view = _follow(views, is_json, on_stderr=True) or client.get_experiment(experiment_id)
    _show_end(view, is_json)


@app.command("follow")
def follow_experiment(experiment_id: ExperimentId, is_json: Json = False) -> None:
    """Show an experiment until it has ended, as create --follow; the exit status is 0 only if it is COMPLETED."""
    with _going_on(experiment_id), connect() as client:
        view = _follow(client.watch_experiment(experiment_id), is_json) or client.get_experiment(experiment_id)
    _show_end(view, is_json)


@app.command()
def trials(experiment_id: ExperimentId, is_json: Json = False, is_wide: Wide = False) -> None:
    """List the trials of an experiment with the hyperparameters that differ; * marks the best."""
    from gangline.cli.output.summary import trial_columns, trial_rows  # noqa: PLC0415 - loads the client's records

    with connect() as client:
        view = client.get_experiment(experiment_id)
    columns, rows = trial_columns(view), trial_rows(view)
    show_table(view.trials, columns, rows, "no trials yet", is_json=is_json, is_wide=is_wide)


@app.command()
def schema() -> None:
    """Print the JSON schema of the YAML file, for editors that check it while it is written."""
    from gangline.config import export_schema  # noqa: PLC0415 - loads pydantic

    say_json(export_schema())


def state_line(experiment: Experiment) -> str:
    archived = ", archived" if experiment.archived else ""
    return f"experiment {experiment.id} {experiment.name}: {stage_of(experiment)}{archived}"


def do_each(numbers: list[int], change: Callable[[int], T], is_json: bool, line_of: Callable[[T], str]) -> None:
    """Changes each experiment. A refusal does not keep the others from being changed, but the exit status reports it.
    After a failure no further one is tried; the changes before it are printed all the same."""
    changed: list[T] = []
    refused: list[GanglineError] = []
    failure: GanglineError | None = None
    waiting = list(dict.fromkeys(numbers))
    while waiting and failure is None:
        number = waiting.pop(0)
        try:
            changed.append(change(number))
        except GanglineError as error:
            if len(numbers) == 1:
                raise
            if error.kind in (ErrorKind.NOT_FOUND, ErrorKind.CONFLICT, ErrorKind.INVALID):
                refused.append(error)
            else:
                left = f"; not tried: {' '.join(map(str, waiting))}" if waiting else ""
                failure = error.reworded(f"experiment {number}: {error.message}{left}")
    if changed or is_json:
        show(changed[0] if len(numbers) == 1 else changed, is_json, lambda: map(line_of, changed))
    for refusal in refused:
        complain("error", refusal.message)
    if failure is not None:
        raise failure
    if refused:
        raise typer.Exit(2)


def stage_of(experiment: Experiment) -> str:
    """Returns the word that a list shows for how far the experiment has come."""
    return "DELETING" if experiment.is_deleting else experiment.outcome or experiment.state


def _stage(experiment: Experiment, progress: ExperimentProgress | None) -> str:
    ending = progress.num_slots_ending if progress is not None else 0
    return f"{stage_of(experiment)}, {count(ending, 'slot')} until its ranks end" if ending else stage_of(experiment)


def _follow(views: Iterable[ExperimentView], is_json: bool, *, on_stderr: bool = False) -> ExperimentView | None:
    """Shows the views, with --json none of them. Returns the last one; None when there was none."""
    if is_json:
        last = None
        for last in views:  # noqa: B007 - the last one is what is printed
            pass
        return last
    from gangline.cli.output.live import follow  # noqa: PLC0415 - loads rich

    return follow(views, on_stderr=on_stderr)


def follow_to_end(client: Client, number: int, is_json: bool) -> None:
    """Shows the experiment until it ends, and how it ended; exits with 1 when the outcome is not COMPLETED."""
    with _going_on(number):
        view = _follow(client.watch_experiment(number), is_json) or client.get_experiment(number)
    _show_end(view, is_json)


def _going_on(number: int) -> AbstractContextManager[None]:
    """Turns Ctrl-C into a line about the experiment, which goes on."""
    return say_on_interrupt(
        f"experiment {number} goes on; look at it with: gangline experiment follow {number}; "
        f"end it with: gangline experiment kill {number}"
    )


def _until(views: Iterable[ExperimentView], number: int, seconds: float) -> Iterator[ExperimentView]:
    """Yields the views. Raises GanglineError when the experiment has not ended in time. seconds: 0 waits for ever."""
    try:
        yield from views
    except GanglineError as error:
        if not seconds or error.code != "rpc.timeout":
            raise
        raise error.reworded(f"experiment {number} has not ended after {seconds:g} s") from error


def _show_end(view: ExperimentView, is_json: bool) -> None:
    """Prints how it ended; exits with 1 when the outcome is not COMPLETED."""
    from gangline.cli.output.summary import final_lines  # noqa: PLC0415 - loads the client's records

    show(view, is_json, lambda: final_lines(view, terminal_width()))
    if view.experiment.outcome != "COMPLETED":
        raise typer.Exit(1)


def _description(view: ExperimentView) -> list[str]:
    from gangline.cli.output.summary import (  # noqa: PLC0415 - loads the client's records
        failure_lines,
        final_lines,
        is_search,
        metric_warning,
        missing_history,
        shown_rows,
        size_lines,
        status_line,
        trial_columns,
    )
    from gangline.config import describe_config  # noqa: PLC0415 - loads pydantic

    lines = final_lines(view, terminal_width()) if view.experiment.outcome else [status_line(view)]
    if not view.experiment.outcome:
        lines += [f"  {warning}" for warning in [metric_warning(view), *missing_history(view)] if warning]
        lines += failure_lines(view)
        lines += [line for trial in view.trials for line in size_lines(trial)]
    if view.reason is not None and view.experiment.state != "PAUSED":
        lines.append(f"  {view.reason.message}; goes on if {view.reason.would_start_if}")
    if not view.experiment.outcome or not is_search(view):
        rows, more = shown_rows(view)
        lines += [*table_lines(trial_columns(view), rows, indent=2), *(f"  {line}" for line in more)]
    settings = describe_config(view.experiment.config_json).splitlines()
    template = f", with template {view.experiment.template}" if view.experiment.template else ""
    lines += _text_lines(view.experiment)
    return [*lines, f"configuration{template}, without what is at its default:", *(f"  {line}" for line in settings)]


def _text_lines(experiment: Experiment) -> list[str]:
    """Returns what users have written about it, and its origin. The description is in the configuration."""
    lines = [f"  labels: {', '.join(experiment.labels)}"] if experiment.labels else []
    if experiment.forked_from:
        lines.append(f"  fork of experiment {experiment.forked_from}")
    return lines + [f"  notes: {line}" for line in experiment.notes.splitlines()]


def _progress(progress: ExperimentProgress | None) -> str:
    """Returns the trials of a search that have ended, else the batches that are done; a dash while nothing is known."""
    if progress is None:
        return "-"
    if progress.num_trials_planned > 1:
        return f"{progress.num_trials_ended}/{progress.num_trials_planned} trials"
    if progress.batches_total:
        return f"{progress.batches_completed}/{progress.batches_total} batches"
    return f"{progress.batches_completed} batches" if progress.batches_completed else "-"


def _duration(experiment: Experiment) -> str:
    return format_duration(experiment.ended_at - experiment.created_at) if experiment.ended_at else "-"
