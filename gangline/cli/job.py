"""`gangline job ...`: the queue of each pool, the reasons why requests wait, and changes of the order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.cli.experiment_set import WhenFree, show_resources
from gangline.cli.shared import MOST_ID, ExperimentId, Json, Wide, connect, format_instant, new_group, show, show_table
from gangline.errors import GanglineError, invalid

if TYPE_CHECKING:
    from gangline.client import Client

app = new_group("See and change the queues, and ask why something waits.")


@app.command("list")
@app.command("ls", hidden=True)
def list_jobs(
    pool: Annotated[str, typer.Option(help="Only the queue of this pool.")] = "",
    is_json: Json = False,
    is_wide: Wide = False,
) -> None:
    """List running trials and the queue of each pool, in queue order."""
    from gangline.cli.output.job_summary import COLUMNS, in_queue_order, job_row  # noqa: PLC0415 - loads records

    with connect() as client:
        tasks = in_queue_order([task for task in client.list_tasks() if pool in ("", task.pool)])
        if pool and not tasks:
            _check_pool(client, pool)
    now = time.time()
    rows = [job_row(task, now) for task in tasks]
    show_table(tasks, COLUMNS, rows, "nothing runs and nothing waits", is_json=is_json, is_wide=is_wide)


def _check_pool(client: Client, pool: str) -> None:
    """Raises GanglineError `pool.not_found`, because an empty queue may be that of a misspelt pool."""
    try:
        client.get_snapshot(pool)
    except GanglineError as error:
        # Users with roles in some workspaces alone get no snapshot, but the pool is there.
        if error.code != "auth.no_role":
            raise


@app.command()
def explain(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The id of an experiment, as 7, or of a trial, as 7.1.")],
    is_json: Json = False,
) -> None:
    """Explain why an experiment or a trial waits, what would start it and when; or where it runs."""
    from gangline.cli.output.job_summary import explanation_lines  # noqa: PLC0415 - loads records

    with connect() as client:
        explanation = client.explain(job_id)
    show(explanation, is_json, lambda: explanation_lines(explanation, time.time(), format_instant))


@app.command()
def update(
    experiment_id: ExperimentId,
    *,
    priority: Annotated[int | None, typer.Option("--priority", "-p", help="1 (most urgent) to 99.")] = None,
    weight: Annotated[float | None, typer.Option("--weight", "-w", help="Its share in a fair_share pool.")] = None,
    max_slots: Annotated[int | None, typer.Option(help="The most slots at a time; 0 for no cap.")] = None,
    when_free: WhenFree = False,
    ahead_of: Annotated[
        int | None, typer.Option(metavar="ID", help="Put it directly ahead of this one.", min=1, max=MOST_ID)
    ] = None,
    behind_of: Annotated[
        int | None, typer.Option(metavar="ID", help="Put it directly behind this one.", min=1, max=MOST_ID)
    ] = None,
    is_json: Json = False,
) -> None:
    """Change the resources of an experiment that waits or runs, or its place in the queue."""
    resources = [value for value in (priority, weight, max_slots) if value is not None]
    places = [value for value in (ahead_of, behind_of) if value is not None]
    if when_free and not max_slots:
        raise invalid("job.when_free", "--when-free says how a lower --max-slots takes effect; give both")
    if not resources and not places:
        raise invalid("job.no_change", "give --priority, --weight, --max-slots, --ahead-of or --behind-of")
    if len(places) > 1:
        raise invalid("job.two_places", "--ahead-of and --behind-of exclude each other; give one of them")
    if resources and places:
        raise invalid(
            "job.two_changes",
            "a moved experiment takes the priority of the one that it is moved to; change --priority, --weight or "
            "--max-slots with another command",
        )
    with connect() as client:
        if places:
            changed = client.move_experiment(experiment_id, ahead_of=ahead_of, behind=behind_of)
        else:
            changed = client.update_experiment(
                experiment_id, priority=priority, weight=weight, max_slots=max_slots, when_free=when_free
            )
    show_resources(changed, is_json)
