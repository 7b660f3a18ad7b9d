"""PURE: makes and parses ids, and makes the error for an id that names no record.

An experiment is a number (7), its trials are "7.1", "7.2", and the attempts to run one are its allocations "7.1.1",
"7.1.2". So an id names its parent, sorts by age and can be typed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from gangline.errors import GanglineError, invalid, not_found
from gangline.printable import find_unprintable

# The longest count of digits whose numbers all fit into 64 bits.
_MOST_DIGITS = 18
# Determined's ids of trials are numbers. More than the trials of a search, replaced ones included.
_TRIALS_OF_EXPERIMENT = 100_000
# A shorter beginning of an id fits too many ids.
_LEAST_PREFIX = 4
# Checkpoints in one request to delete, all in one transaction, which etcd limits to 128 operations.
MAX_NAMED_CHECKPOINTS = 100


def trial_id(experiment_id: int, number: int) -> str:
    """Returns a trial's id. number counts from 1 within the experiment."""
    return f"{experiment_id}.{number}"


def allocation_id(trial: str, attempt: int) -> str:
    """Returns an allocation's id. attempt counts from 1 within the trial."""
    return f"{trial}.{attempt}"


def parse_trial_id(text: str) -> tuple[int, int]:
    """Returns the experiment id and the number. Raises GanglineError `id.trial`."""
    experiment, number = _parse_numbers(text, 2, "trial", "7.1")
    return experiment, number


def experiment_id_of(trial: str) -> int:
    """Returns the id of a trial's experiment. Raises GanglineError `id.trial`."""
    return parse_trial_id(trial)[0]


def number_of(trial: str) -> int:
    """Returns the number of a trial for users of Determined: 700001 for "7.1"."""
    experiment_id, _, number = trial.partition(".")
    return int(experiment_id) * _TRIALS_OF_EXPERIMENT + int(number or 0)


def trial_id_of(number: int) -> str:
    """Returns the id of the trial with this number, the reverse of `number_of`. Raises GanglineError `id.trial`."""
    experiment_id, trial = divmod(number, _TRIALS_OF_EXPERIMENT)
    if experiment_id < 1 or trial < 1:
        raise invalid(
            "id.trial",
            f"{number} is no number of a trial; it is the experiment's, times {_TRIALS_OF_EXPERIMENT}, plus its own, "
            "as 700001 for trial 7.1",
        )
    return trial_id(experiment_id, trial)


def parse_allocation_id(text: str) -> tuple[str, int]:
    """Returns the trial id and the attempt. Raises GanglineError `id.allocation`."""
    experiment, number, attempt = _parse_numbers(text, 3, "allocation", "7.1.1")
    return trial_id(experiment, number), attempt


def describe_allocation(allocation: str) -> str:
    """Returns "trial 7.1, attempt 2" for the allocation 7.1.2, because users know trials. A text that is no such id
    stays: files of the simulator name their tasks freely."""
    trial, _, attempt = allocation.rpartition(".")
    return f"{describe_trial(trial)}, attempt {attempt}" if _is_id(allocation, 3) else allocation


def describe_trial(trial: str) -> str:
    """Returns "trial 7.1"; a text that is no id of a trial stays."""
    return f"trial {trial}" if _is_id(trial, 2) else trial


def describe_allocations(allocations: Iterable[str]) -> str:
    """Returns "trial 7.1 (attempt 2), trial 8.1 (attempt 1)"."""
    described = [describe_allocation(allocation).partition(", ") for allocation in allocations]
    return ", ".join(f"{trial} ({attempt})" if attempt else trial for trial, _, attempt in described)


def parse_job_id(text: str) -> tuple[int, str]:
    """Returns the experiment id, and the trial id where the text names a trial. Raises GanglineError `id.job`."""
    if _is_number(text):
        return int(text), ""
    try:
        return parse_trial_id(text)[0], text
    except GanglineError as error:
        raise invalid("id.job", f"{text!r} is no id of an experiment, as '7', and none of a trial, as '7.1'") from error


def check_checkpoint_id(text: str) -> None:
    """Raises GanglineError `checkpoint.id` for a text that is no id. A folder of this name is deleted one day, so it
    must name no other folder."""
    if not text or text.startswith(".") or not set(text).isdisjoint("/\\") or find_unprintable(text):
        raise invalid("checkpoint.id", f"{text!r} is no id of a checkpoint; give the one that saving it returned")


def check_num_checkpoints(checkpoint_ids: Collection[str]) -> None:
    """Raises GanglineError `checkpoint.too_many` for more ids than one request to delete may have."""
    if len(checkpoint_ids) > MAX_NAMED_CHECKPOINTS:
        text = f"{len(checkpoint_ids)} checkpoints cannot be deleted at once; name at most {MAX_NAMED_CHECKPOINTS}"
        raise invalid("checkpoint.too_many", text)


def _is_id(text: str, count: int) -> bool:
    parts = text.split(".")
    return len(parts) == count and all(map(_is_number, parts))


def _parse_numbers(text: str, count: int, what: str, example: str) -> tuple[int, ...]:
    if not _is_id(text, count):
        raise _other_id(text, what) or _malformed(text, what, example)
    return tuple(int(part) for part in text.split("."))


def _other_id(text: str, what: str) -> GanglineError | None:
    """Returns the error for an id of another kind of record; None for a text that is no id."""
    parts = text.split(".")
    if _is_id(text, 1):
        near = f"{text} is an experiment; list its trials with: gangline experiment trials {text}"
    elif what == "trial" and _is_id(text, 3):
        near = f"{text} is an attempt of trial {'.'.join(parts[:2])}; give the id of the trial"
    elif what == "allocation" and _is_id(text, 2):
        near = f"{text} is a trial; an attempt of it looks like '{text}.1'"
    else:
        return None
    return invalid(f"id.{what}", near)


def _is_number(text: str) -> bool:
    """Returns whether the text is a positive count of at most 64 bits. Python refuses to read thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) > 0


def _malformed(text: str, what: str, example: str) -> GanglineError:
    return invalid(f"id.{what}", f"{text!r} is no {what} id; one looks like {example!r}")


_LISTED_BY = {
    "experiment": "gangline experiment list",
    "checkpoint": "gangline checkpoint list",
    "agent": "gangline agent list",
}


def find_by_prefix(text: str, ids: Iterable[str]) -> list[str]:
    """Returns the ids that begin with the text, sorted; none for a text that is too short to mean one of them."""
    return sorted(known for known in ids if known.startswith(text)) if len(text) >= _LEAST_PREFIX else []


def absent(name: str, record_id: int | str, near: Sequence[str] = ()) -> GanglineError:
    """Makes the error `<name>.not_found`. name: of any record, also of one that no command lists. near: ids that may be
    meant."""
    if near:
        more = f" ({len(near)} begin so)" if len(near) > 1 else ""
        return not_found(f"{name}.not_found", f"there is no {name} {record_id}; did you mean {near[0]}?{more}")
    listed_by = _LISTED_BY.get(name, "")
    if name == "trial":
        listed_by = f"gangline experiment trials {str(record_id).partition('.')[0]}"
    advice = f"; list them with: {listed_by}" if listed_by else ""
    return not_found(f"{name}.not_found", f"there is no {name} {record_id}{advice}")
