"""Runs `gangline experiment create --test`: an experiment of one batch, waited for, and archived when it has ended."""

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
    """Creates the experiment and waits for its end. Ends the command with status 1 unless it completed, with a
    validation and a checkpoint. Its files and logs stay until it is deleted."""
    # A test is meant to be repeated, so no earlier one counts as the same.
    number = client.create_prepared(submission, new_request_id()).experiment.id
    mention(f"test experiment {number}: one trial of one batch; gangline experiment logs -f {number}")
    view = client.wait_experiment(number)
    archived = client.archive_experiment(number)
    num_checkpoints = len(client.list_checkpoints(number))
    has_validation = any(entry.trial.validated_batches for entry in view.trials)
    is_passed = archived.outcome is Outcome.COMPLETED and num_checkpoints > 0 and has_validation
    lines = [
        f"test {'passed' if is_passed else 'FAILED'}: {archived.outcome}: {archived.reason}",
        f"  validation: {'yes' if has_validation else 'NO'}; checkpoints: {num_checkpoints or 'NONE'}",
        f"  experiment {number} is archived; read it: gangline experiment logs {number}",
    ]
    show({"experiment": archived, "passed": is_passed, "checkpoints": num_checkpoints}, is_json, lambda: lines)
    if not is_passed:
        raise typer.Exit(1)
