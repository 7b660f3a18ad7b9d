"""Runs `gangline experiment create --test`: an experiment of one batch, which then goes on from its checkpoint for one
batch more, and is archived.

Code that resumes a training runs for the first time when something has failed, perhaps after hours. So the test runs it
as well.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from gangline.cli.output.terminal import mention
from gangline.cli.shared import show
from gangline.client.call_message import new_request_id
from gangline.domain.state import Outcome

if TYPE_CHECKING:
    from gangline.client import Client, Submission
    from gangline.domain.search import SearchPreview


def test_overrides(preview: SearchPreview) -> dict[str, Any]:
    """Returns the settings that make one short trial of a search: its first point, one batch, no restart."""
    [point] = map(json.loads, preview.hyperparameters_json[:1] or ("{}",))
    return {
        **{f"hyperparameters.{name}": value for name, value in point.items()},
        "searcher.name": "single",
        "searcher.max_length": {"batches": 1},
        "scheduling_unit": 1,
        "max_restarts": 0,
    }


def run_test(client: Client, submission: Submission, *, is_json: bool) -> None:
    """Creates the experiment, waits for its end and resumes it once. Ends the command with status 1 unless it completed
    both times, with a validation and a checkpoint. Its files and logs stay until it is deleted."""
    # A test is meant to be repeated, so no earlier one counts as the same.
    number = client.create_prepared(submission, new_request_id()).experiment.id
    mention(f"test experiment {number}: one trial of one batch; gangline experiment logs -f {number}")
    view = client.wait_experiment(number)
    has_validation = any(entry.trial.validated_batches for entry in view.trials)
    num_checkpoints = len(client.list_checkpoints(number))
    is_resumable = view.experiment.outcome is Outcome.COMPLETED and num_checkpoints > 0
    if is_resumable:
        mention("it has stopped after its checkpoint; now it goes on from there")
        batches = 1 + max(entry.trial.batches_completed for entry in view.trials)
        client.continue_experiment(number, {"searcher.max_length.batches": batches})
        view = client.wait_experiment(number)
    archived = client.archive_experiment(number)
    is_resumed = is_resumable and archived.outcome is Outcome.COMPLETED
    is_passed = is_resumed and has_validation
    resumed = ("yes" if is_resumed else "NO") if is_resumable else "not tried"
    lines = [
        f"test {'passed' if is_passed else 'FAILED'}: {archived.outcome}: {archived.reason}",
        f"  validation: {'yes' if has_validation else 'NO'}; checkpoints: {num_checkpoints or 'NONE'}; "
        f"resumed: {resumed}",
        f"  experiment {number} is archived; read it: gangline experiment logs {number}",
    ]
    result = {"experiment": archived, "passed": is_passed, "checkpoints": num_checkpoints, "resumed": is_resumed}
    show(result, is_json, lambda: lines)
    if not is_passed:
        raise typer.Exit(1)
