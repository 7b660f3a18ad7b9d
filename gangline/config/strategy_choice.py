"""PURE: the record of how `parallelism: auto` chose the strategy of a trial.

The chief makes it, and sends it as JSON to the scheduler, which keeps it with the trial. The next attempt gets it back,
so that a candidate that ran out of memory, or a strategy that refused the trial's code, is not chosen again. It lies in
checkpoints as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter

from gangline.config.parallelism import STRATEGIES
from gangline.errors import GanglineError, invalid

# Where the record lies in the metadata of a checkpoint.
METADATA_KEY = "strategy_choice"
# A table has a row for each candidate, of about 400 bytes: 20 KiB on 64 slots. The record travels in a rank's
# environment, too, where a variable may have 128 KiB.
MOST_BYTES = 64 * 1024
# Rows of a record; numbers of slots with many divisors have more candidates.
MOST_ROWS = 96
# Characters of a refusal in a record.
MOST_OF_LINE = 400
# Errors with which one strategy refuses a trial that another one may train. Other mistakes, as a name of `split` that
# the model does not have or an added parameter, are refused by all, or are mistakes of the configuration.
_OF_STRATEGY = {
    "parallelism.backward",
    "parallelism.blocks_differ",
    "parallelism.copy",
    "parallelism.data_assigned",
    "parallelism.microbatches",
    "parallelism.model",
    "parallelism.optimizer",
    "parallelism.own_gradients",
    "parallelism.schedule",
    "parallelism.stages",
    "parallelism.train_batch",
}
# Errors of torch that depend on the strategy: see gangline.pytorch.data.torch_error.
_OF_TORCH = {
    "pytorch.parameters_gone",
    "pytorch.shard_used",
    "pytorch.sparse_gradient",
    "pytorch.two_backwards",
    "pytorch.unused_parameters",
}
_MIB = 1024.0**2
# Predicted times of a step that differ by less are no reason to take a later row of the table: measured rates are
# rounded more coarsely than this.
_SAME_RATIO = 0.05
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A row of the table."""

    name: str  # the strategy with its options, unique in the table
    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    activation_checkpointing: str = "none"
    # bytes of the slot that needs most, by purpose, with `total`; empty if the strategy cannot run
    bytes: Mapping[str, int] = field(default_factory=dict)
    step_seconds: float | None = None  # expected time of a step; None if the strategy cannot run
    refusal: str = ""  # why the row is not chosen; empty for one that fits


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The choice of `parallelism: auto`, with its table and the measured speeds. A speed of None is not known."""

    choice: str  # name of the chosen row; empty in a table that is only printed, because no row fits
    slots: int  # slots of the attempt
    rows: tuple[CandidateRow, ...]
    memory_bytes: int | None = None  # memory of a slot; None if not known
    out_of_memory: tuple[str, ...] = ()  # names of candidates that ran out of memory in earlier attempts, oldest first
    notes: tuple[str, ...] = ()  # lines about values that could not be measured
    slot_flops: float | None = None  # operations a second of the slowest slot in products of matrices
    inside_rate: float | None = None  # bytes a second between slots of one machine
    across_rate: float | None = None  # bytes a second between machines
    # time of a message beside the time for its bytes; None without such a link, and in older records
    message_seconds: float | None = None
    kernel_seconds: float | None = None  # time to issue an operation
    memory_rate: float | None = None  # bytes a second of a slot's memory
    copy_rate: float | None = None  # bytes a second into new memory
    broadcast_rate: float | None = None  # bytes a second of a tensor that one slot sends to all others
    # operations a second of the slowest slot in convolutions with kernels of several points
    convolution_flops: float | None = None
    # for each strategy that refused the trial's code in an earlier attempt, its line
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def chosen(self) -> CandidateRow:
        return next(row for row in self.rows if row.name == self.choice)

    def without_chosen(self, line: str, code: str) -> StrategyChoice | None:
        """Returns the record after the chosen strategy has refused the trial; None where no other strategy is left.
        line, code: of the refusal. A strategy that is on record already would be refused for ever, so it ends the
        trial."""
        if self.chosen.strategy in self.refused:
            return None
        refusing = dict.fromkeys(_alike(self.chosen.strategy, code), line[:MOST_OF_LINE])
        left = replace(self, refused={**refusing, **self.refused})
        return left if left.fastest_left() is not None else None

    def fastest_left(self, but: Collection[str] = ()) -> CandidateRow | None:
        """Returns what first_of_fastest does of the candidates that fit, of strategies that have not refused the trial;
        None for none. but: strategies that are left out."""
        left = [row for row in self.rows if not row.refusal and row.strategy not in (*self.refused, *but)]
        return first_of_fastest(left, lambda row: math.inf if row.step_seconds is None else row.step_seconds)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def first_of_fastest(rows: Sequence[_Row], seconds: Callable[[_Row], float]) -> _Row | None:
    """Returns the first row whose predicted time is about that of the fastest one; None for no rows. Rows are in the
    order of the table, which begins with the simplest."""
    least = min(map(seconds, rows), default=0.0)
    return next((row for row in rows if seconds(row) <= least * (1 + _SAME_RATIO)), None)


def parse_choice(text: str) -> StrategyChoice:
    """Parses a record as to_json writes it. Raises GanglineError `parallelism.record` for anything else."""
    try:
        if len(text.encode()) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES} bytes")
        record = _ADAPTER.validate_json(text)
        if record.choice not in {row.name for row in record.rows}:
            raise ValueError(f"it has no candidate {record.choice!r}, which it chooses")
    except ValueError as error:
        problem = " ".join(str(error).split())
        raise invalid("parallelism.record", f"the record of the chosen strategy cannot be read: {problem}") from error
    return record


def is_refusal(code: str) -> bool:
    """Returns whether an error of this code is that of one strategy, which another one may not have."""
    return code in _OF_STRATEGY or code in _OF_TORCH


def _alike(strategy: str, code: str) -> tuple[str, ...]:
    """Returns the strategies that refuse alike. An error of torch is one of all that spread a trial in the same way."""
    row = STRATEGIES.get(strategy)
    if row is None or code not in _OF_TORCH:
        return (strategy,)
    return tuple(each.name for each in STRATEGIES.values() if each.family == row.family)


def way_out(record: StrategyChoice, code: str) -> str:
    """Returns the section of a configuration that names the fastest strategy beside those that refuse the trial as the
    chosen one does; empty where none is left. code: of the refusal."""
    row = record.fastest_left(_alike(record.chosen.strategy, code))
    if row is None:
        return ""
    options = {key: row.options[key] for key in ("stages", "replicas") if key in row.options}
    if row.activation_checkpointing != "none":
        options["activation_checkpointing"] = row.activation_checkpointing
    if not options:
        return f"parallelism: {row.strategy}"
    words = [f"{key}: {value}" for key, value in {"strategy": row.strategy, **options}.items()]
    return f"parallelism: {{{', '.join(words)}}}"


def choice_in(metadata: Mapping[str, Any]) -> StrategyChoice | None:
    """Returns the record in a checkpoint's metadata; None where it has none, because the configuration named the
    strategy. Raises GanglineError as parse_choice does."""
    values = metadata.get(METADATA_KEY)
    return None if values is None else parse_choice(json.dumps(values))


def table_lines(record: StrategyChoice) -> list[str]:
    """Returns the table as lines of text, the chosen candidate marked."""
    table: list[tuple[str, ...]] = [("", "candidate", *_PURPOSES, "step", "")]
    for row in record.rows:
        sizes = [f"{row.bytes[key] / _MIB:.1f}" if key in row.bytes else "-" for key in _PURPOSES]
        step = "-" if row.step_seconds is None else f"{row.step_seconds * 1e3:.1f} ms"
        table.append(("*" if row.name == record.choice else "", row.name, *sizes, step, row.refusal))
    widths = [max(map(len, column)) for column in list(zip(*table, strict=True))[:-1]]
    lines = []
    for line in table:
        mark, name, *values, refusal = line
        cells = [mark.ljust(widths[0]), name.ljust(widths[1])]
        cells += [value.rjust(width) for value, width in zip(values, widths[2:], strict=True)]
        lines.append("  ".join((*cells, refusal)).rstrip())
    return [_title(record), *_speeds(record), *lines]


def choice_lines(text: str) -> list[str]:
    """Returns the table of a record as JSON for a person to read; none for an empty text or one of another version."""
    try:
        return table_lines(parse_choice(text)) if text else []
    except GanglineError as error:
        return [error.message]


_PURPOSES = ("parameters", "gradients", "optimizer", "transient", "activations", "total")


def _title(record: StrategyChoice) -> str:
    memory = "of unknown memory" if record.memory_bytes is None else f"of {record.memory_bytes / _MIB:.0f} MiB"
    slots = "1 slot" if record.slots == 1 else f"{record.slots} slots"
    what = f"chose {record.choice}" if record.choice else "found no strategy"
    return f"parallelism: auto {what} for {slots} {memory}; sizes in MiB of the fullest slot"


def _speeds(record: StrategyChoice) -> list[str]:
    """Returns a line with what was measured on the slots; none for a record without it."""
    if record.slot_flops is None:
        return []
    words = [f"measured: {record.slot_flops / 1e9:.3g} GFLOP a second and slot"]
    if record.convolution_flops is not None:
        words.append(f"{record.convolution_flops / 1e9:.3g} in convolutions")
    for rate, where in ((record.inside_rate, "inside a machine"), (record.across_rate, "between machines")):
        if rate is not None:
            words.append(f"{rate / 1e9:.3g} GB a second {where}")
    if record.message_seconds is not None:
        words.append(f"{record.message_seconds * 1e3:.3g} ms a message")
    if record.kernel_seconds is not None:
        words.append(f"{record.kernel_seconds * 1e6:.3g} us an operation")
    return [", ".join(words)]


_ADAPTER = TypeAdapter(StrategyChoice)
