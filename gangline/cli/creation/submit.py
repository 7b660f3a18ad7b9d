"""Submits for `gangline experiment create`: a lost answer makes no second experiment, and a repeated command asks
first.

Owns the order: look for an earlier submit of the same content, write the request id to disk, send, record the outcome.
A request id on disk survives this process, so the same command resumes the request.
"""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import typer

from gangline.cli.creation.repetition import SubmitEntry, age_of
from gangline.cli.creation.submit_memory import SubmitMemory, read_clock
from gangline.cli.output.terminal import can_ask, complain, mention
from gangline.cli.shared import say_on_interrupt
from gangline.client.attempts import say_create
from gangline.client.call_message import new_request_id
from gangline.errors import Effect, ErrorKind, GanglineError, conflict

if TYPE_CHECKING:
    from gangline.client import Client, Created, Submission


@say_on_interrupt("nothing was created")
def submit(
    client: Client, submission: Submission, *, request_id: str = "", is_again: bool = False, is_quiet: bool = False
) -> Created:
    """Submits an experiment. request_id: the user's own, for which no question is asked; empty to make one or take one
    over.

    is_again: makes another experiment without asking. is_quiet: never asks. Raises GanglineError `experiment.repeated`,
    and the errors of the client. Where the outcome is not known, the message names the command that finds it out.
    """
    memory, digest = SubmitMemory(), submission.digest(client.login.token, request_id)
    cluster, own_id = _find_cluster(client, memory, digest), request_id or new_request_id()
    allowed = None if is_again else 0
    try:
        while (entry := memory.begin(digest, cluster, own_id, allowed=allowed)).experiment_id:
            if not request_id and not _may_repeat(client, entry, is_quiet):
                mention("nothing was created")
                raise typer.Exit(1)
            allowed = entry.experiment_id
    except OSError as failure:
        complain(
            "warning", f"the request id cannot be kept ({failure}), so a repeated command would not know of this one"
        )
        return _send(client, submission, own_id, f"repeat it with --request-id {own_id}", is_open=False)
    is_open = entry.num_commands > 1
    if is_open:
        at = time.strftime("%H:%M:%S", time.localtime(entry.wall))
        mention(f"note: goes on with request {entry.request_id} of {at}, whose outcome is not known")
    return _send_noted(client, submission, memory, entry.request_id, is_open)


def _send_noted(
    client: Client, submission: Submission, memory: SubmitMemory, request_id: str, is_open: bool
) -> Created:
    try:
        done = _send(client, submission, request_id, "repeat it, which makes no second one", is_open=is_open)
    except KeyboardInterrupt:
        # _send keeps the interrupts after which the experiment may exist.
        with suppress(OSError):
            memory.failed(request_id)
        raise
    except GanglineError as error:
        if error.effect is Effect.NONE:
            with suppress(OSError):
                memory.failed(request_id)
        raise
    with suppress(OSError):
        memory.created(request_id, done.experiment.id)
    return done


def _send(client: Client, submission: Submission, request_id: str, advice: str, *, is_open: bool) -> Created:
    unknown = f"it is not known whether the experiment was created; {_what_to_do(request_id, advice)}"
    try:
        with say_on_interrupt(unknown) if is_open else nullcontext():
            client.upload_prepared(submission, request_id, is_open=is_open)
        with say_on_interrupt(unknown):
            return client.submit_prepared(submission, request_id, is_open=is_open)
    except GanglineError as error:
        if error.effect is Effect.NONE:
            raise
        raise error.reworded(f"{error.message}; {_what_to_do(request_id, advice)}") from error


def _what_to_do(request_id: str, advice: str) -> str:
    return f"{advice}, or look: gangline experiment find {request_id}"


def _find_cluster(client: Client, memory: SubmitMemory, digest: str) -> str:
    """Returns the id of the cluster. Without it nothing is sent, so an earlier command's outcome stays as open as it
    was."""
    try:
        return client.get_cluster().cluster.id or client.login.address
    except GanglineError as error:
        earlier = memory.find(digest, "")
        is_open = earlier is not None and not earlier.experiment_id
        error.effect = Effect.UNKNOWN if is_open else Effect.NONE
        error.request_id = earlier.request_id if earlier is not None and is_open else ""
        text = say_create(error)
        if is_open:
            text = f"{text}; {_what_to_do(error.request_id, 'repeat it, which makes no second one')}"
        raise error.reworded(text) from error


def _may_repeat(client: Client, earlier: SubmitEntry, is_quiet: bool) -> bool:
    """Asks the user to confirm. Raises GanglineError `experiment.repeated` where there is no terminal for the
    question."""
    number, age = earlier.experiment_id, age_of(earlier, read_clock())
    if _has_failed(client, number):
        return True
    text = f"experiment {number} was created {age:.0f} s ago from the same configuration and code"
    if is_quiet or not can_ask():
        raise conflict(
            "experiment.repeated",
            f"{text}; to make another one, add --again; to see it: gangline experiment describe {number}",
        )
    return typer.confirm(f"{text}; make another one?", err=True)


def _has_failed(client: Client, experiment_id: int) -> bool:
    """Returns whether another experiment is no repetition: the earlier one is gone, or it has ended without success."""
    try:
        experiment = client.get_experiment(experiment_id).experiment
    except GanglineError as error:
        return error.kind is ErrorKind.NOT_FOUND or error.code == "experiment.deleting"
    return experiment.outcome in ("FAILED", "CANCELED")
