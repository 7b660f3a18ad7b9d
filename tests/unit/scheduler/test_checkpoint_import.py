"""The record of an imported checkpoint: made once, listed, begun from, deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.domain.experiment import Checkpoint
from gangline.domain.state import CheckpointState
from gangline.errors import GanglineError
from services.scheduler.state.records import SchedulerState, StateChange
from services.scheduler.transition.checkpoint import delete_checkpoints, import_checkpoint

_IMPORTED = Checkpoint("c1", "", 0, 8, "/s/checkpoints/c1", {"a": 1}, created_at=1.0, imported_as="old")


def test_imported_once() -> None:
    assert import_checkpoint(SchedulerState.of([]), _IMPORTED).puts == (_IMPORTED,)
    later = replace(_IMPORTED, created_at=9.0, imported_as="again")
    assert import_checkpoint(SchedulerState.of([_IMPORTED]), later) == StateChange()


def test_one_that_is_being_deleted_is_not_brought_back() -> None:
    """Gateways are removing its files."""
    known = SchedulerState.of([replace(_IMPORTED, state=CheckpointState.DELETING)])
    with pytest.raises(GanglineError, match="is being deleted; import it again") as caught:
        import_checkpoint(known, _IMPORTED)
    assert caught.value.code == "checkpoint.deleting"


def test_deleted_as_any_other() -> None:
    change = delete_checkpoints(SchedulerState.of([_IMPORTED]), ["c1"], "r1")
    assert [checkpoint.state for checkpoint in change.all_of(Checkpoint)] == [CheckpointState.DELETING]
