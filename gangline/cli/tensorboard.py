"""`gangline tensorboard ID`: fetches the TensorBoard files of trials, and shows them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.output.terminal import mention
from gangline.cli.output.text import format_bytes
from gangline.cli.shared import connect
from gangline.errors import GanglineError, invalid

# For an orderly end of TensorBoard.
_STOP_SECONDS = 5.0


def tensorboard(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="An experiment, as 7, or one of its trials, as 7.1.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Keep the files in this folder; default: a temporary one.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port on which TensorBoard listens.", min=1, max=65535)] = 6006,
    interval: Annotated[float, typer.Option(help="Seconds between two looks for new data.", min=1)] = 30.0,
    only_fetch: Annotated[bool, typer.Option("--fetch", help="Fetch the files into --output once, and leave.")] = False,
) -> None:
    """Show the metrics and profiles of trials in TensorBoard, kept up to date until Ctrl-C."""
    from gangline.domain.id import parse_job_id  # noqa: PLC0415 - with the client's records

    experiment_id, trial_id = parse_job_id(job_id)
    if only_fetch and output is None:
        raise invalid("tensorboard.no_output", "--fetch needs a folder for the files; give it with --output FOLDER")
    program = [] if only_fetch else _find_tensorboard()
    with ExitStack() as stack, connect() as client:
        folder = output or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangline-tensorboard-")))
        num_bytes = client.download_tensorboard(experiment_id, folder, trial_id)
        if not num_bytes and not any(folder.rglob("*")):
            what = f"trial {trial_id}" if trial_id else f"experiment {experiment_id}"
            raise invalid("tensorboard.empty", f"{what} has written no files for TensorBoard yet; try again later")
        mention(f"{format_bytes(num_bytes)} in {folder}")
        if program:
            fetch = partial(client.download_tensorboard, experiment_id, folder, trial_id)
            _show([*program, "--logdir", str(folder), "--port", str(port)], interval, fetch)


def _find_tensorboard() -> list[str]:
    """Returns the command that starts TensorBoard. Raises GanglineError `tensorboard.missing`."""
    if importlib.util.find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    path = shutil.which("tensorboard")
    if path is None:
        raise invalid(
            "tensorboard.missing",
            "TensorBoard is not installed here; install it with: pip install tensorboard; or only fetch the files with "
            "--fetch --output FOLDER",
        )
    return [path]


def _show(command: list[str], interval: float, fetch: Callable[[], object]) -> None:
    """Runs TensorBoard until it ends or Ctrl-C, and fetches new data meanwhile. TensorBoard sees by itself when files
    grow."""
    process = subprocess.Popen(command)
    try:
        while True:
            try:
                status = process.wait(interval)
            except subprocess.TimeoutExpired:
                _refresh(fetch)
            else:
                raise typer.Exit(1 if status else 0)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _refresh(fetch: Callable[[], object]) -> None:
    try:
        fetch()
    except GanglineError as error:
        mention(f"no new data for now: {error.message}")
