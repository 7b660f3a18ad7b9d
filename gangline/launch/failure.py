"""Describes the exception that ended a rank: its kind, one line, and a traceback that begins in the user's code.

The scheduler decides from the kind whether the trial runs again. Called by gangline.rank.entrypoint.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import gangline
from gangline.cluster_info import get_cluster_info
from gangline.domain.failure import LATEST_CORRUPT, NOT_SAVED, STAGE_NOTE
from gangline.domain.state import ExitKind
from gangline.domain.storage.storage_fault import waits
from gangline.errors import ErrorKind, GanglineError, InvalidHP
from gangline.launch.memory_fault import is_lack_of_memory, may_be_lack_of_memory

_OWN_FOLDER = str(Path(gangline.__file__).parent)
# Beginnings of file names whose frames belong to Python's own start of the user's code.
_PASSED_OVER = ("<frozen runpy>", "<frozen importlib", "<string>")
# Kinds of errors about conditions outside of the trial.
_OUTSIDE = (ErrorKind.UNAVAILABLE, ErrorKind.TIMEOUT)
# A GPU with less than this part of its memory free is full.
_FULL = 1 / 64


@dataclass(frozen=True, slots=True)
class Failure:
    """The description of a rank's failure."""

    kind: ExitKind | None  # None if only the rank's output can tell
    message: str  # one line
    traceback: str  # for the log; one line if the user's code is not in it
    error_code: str = ""  # code of a GanglineError; empty for other exceptions


def describe(error: BaseException) -> Failure:
    """Describes an exception that left the user's code."""
    if isinstance(error, GanglineError):
        return Failure(_kind_of_own(error), error.message, _text_of(error), error.code)
    words = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {words[0]}" if words else type(error).__name__
    hidden = _hidden_by(error)
    if hidden is not None:
        return Failure(_kind_of_own(hidden), f"{hidden.message}; then {message}", _text_of(error), hidden.code)
    return Failure(_kind_of(error), message + _stage_of(error), _text_of(error))


def _hidden_by(error: BaseException) -> GanglineError | None:
    """Returns the outside condition in whose handling another exception was raised: user code that closes a file on
    full storage in a `finally` hides the checkpoint's error behind its own. An exception that the code raises `from`
    another one is its own word."""
    seen: set[int] = set()
    earlier: BaseException | None = error
    while earlier is not None and id(earlier) not in seen:
        seen.add(id(earlier))
        if isinstance(earlier, GanglineError) and earlier.kind in _OUTSIDE:
            return earlier
        earlier = None if earlier.__suppress_context__ else earlier.__context__
    return None


def _stage_of(error: BaseException) -> str:
    """Returns the stage of a pipeline in which an exception was raised, as its note says it; empty without one."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(STAGE_NOTE)]
    return f" ({notes[0]})" if notes else ""


def import_failure(error: Exception, what: str) -> Failure:
    """Describes an exception at the import of the user's module. A retry cannot help there."""
    failure = describe(error)
    is_import = not isinstance(error, GanglineError) and failure.kind is not ExitKind.OUT_OF_MEMORY
    kind = ExitKind.IMPORT_ERROR if is_import and isinstance(error, ImportError | SyntaxError) else failure.kind
    return Failure(kind, f"cannot import {what}: {failure.message}", failure.traceback)


def _kind_of_own(error: GanglineError) -> ExitKind:
    if error.code == NOT_SAVED:
        return ExitKind.PREEMPTED
    # An outside condition, such as full storage, may have been fixed by the next attempt.
    if error.kind in _OUTSIDE:
        return ExitKind.UNAVAILABLE
    if error.code == LATEST_CORRUPT:
        return ExitKind.CHECKPOINT_CORRUPT
    if isinstance(error, InvalidHP):
        return ExitKind.INVALID_HP
    is_nonfinite = error.code.startswith("training.nonfinite_")
    return ExitKind.NONFINITE_METRIC if is_nonfinite else ExitKind.CONFIGURATION_ERROR


def _kind_of(error: BaseException) -> ExitKind:
    if lacked_memory(error):
        return ExitKind.OUT_OF_MEMORY
    if isinstance(error, ConnectionError | TimeoutError) or _is_of_storage(error):
        return ExitKind.UNAVAILABLE
    return ExitKind.IMPORT_ERROR if isinstance(error, ImportError) else ExitKind.USER_ERROR


def lacked_memory(error: BaseException) -> bool:
    """Returns whether an exception is a lack of memory. Called while its frames still keep their tensors: some errors
    of cuBLAS and cuDNN are one only if the GPU is full."""
    if is_lack_of_memory((each.__name__ for each in type(error).__mro__), str(error)):
        return True
    return isinstance(error, RuntimeError) and may_be_lack_of_memory(str(error)) and _is_gpu_full()


def _is_gpu_full() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return False
    try:
        free, total = cuda.mem_get_info()
        return bool(free + cuda.memory_reserved() - cuda.memory_allocated() < _FULL * total)
    except RuntimeError:
        # After some errors the driver answers no call.
        return False


def _is_of_storage(error: BaseException) -> bool:
    """Returns whether the cluster's storage, in which the user's code opened a file, takes nothing now. Another disk is
    the user's own."""
    cluster = get_cluster_info()
    if cluster is None or not isinstance(error, OSError) or not isinstance(error.filename, str | bytes):
        return False
    root = cluster.storage_url.removeprefix("file://")
    path = os.path.realpath(os.fsdecode(error.filename))
    return "://" not in root and waits(error) and Path(path).is_relative_to(os.path.realpath(root))


def _text_of(error: BaseException) -> str:
    start = _first_user_frame(error.__traceback__)
    if start is None and isinstance(error, GanglineError):
        return f"{cause_in_user_code(error)}error: {error.message}\n"
    told = traceback.TracebackException(type(error), error, start or error.__traceback__)
    if _stage_of(error):
        told.stack = traceback.StackSummary.from_list(_without_calls(told.stack))
    return "".join(told.format())


def _without_calls(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Returns each line of the user once, and all frames behind the last of them. A stage runs in nested calls of
    train_batch, one for each microbatch, with frames of Gangline and torch between them and around each unit."""
    own = [place for place, frame in enumerate(frames) if _is_of_user(frame.filename)]
    if not own:
        return list(frames)
    newest = {(frames[place].filename, frames[place].lineno): place for place in own}
    return [*(frames[place] for place in sorted(newest.values())), *frames[own[-1] + 1 :]]


def cause_in_user_code(error: GanglineError) -> str:
    """Returns the traceback into the user's code of the torch error that this error explains; empty where that error
    came from elsewhere."""
    cause = error.__cause__
    start = _first_user_frame(cause.__traceback__) if cause is not None else None
    if cause is None or start is None:
        return ""
    return "".join(traceback.format_exception(type(cause), cause, start))


def _first_user_frame(trace: TracebackType | None) -> TracebackType | None:
    """Returns the first frame of the user's code. The frames before it show only how Gangline called that code."""
    while trace is not None:
        if _is_of_user(trace.tb_frame.f_code.co_filename):
            return trace
        trace = trace.tb_next
    return None


def _is_of_user(filename: str) -> bool:
    return not filename.startswith((_OWN_FOLDER, *_PASSED_OVER)) and not _is_library(filename)


def _is_library(filename: str) -> bool:
    return filename.startswith((sys.prefix, sys.base_prefix)) and "python" in filename
