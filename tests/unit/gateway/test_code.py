"""What a gateway remembers of stored code, and when it looks again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.domain.experiment import Experiment
from gangline.domain.resource import Counter
from gangline.domain.state import DeletionStage, State
from gangline.errors import GanglineError
from services.common import keys
from services.common.server import Principal
from services.gateway.mirror.caller import Caller
from services.gateway.storage.storage import Storage, code_path
from services.gateway.usecase.code import Code
from services.gateway.usecase.shared.stored_code import StoredCode
from tests.support.stand_in_mirror import StandInMirror

_SHA256 = "a" * 64
_OWNER = Caller(Principal("user", "o"))
_ENDED = Experiment(7, "n", "o", "{}", _SHA256, State.TERMINAL)


@pytest.mark.parametrize("is_over", [False, True])
async def test_code_that_may_have_gone_with_an_experiment_is_looked_for_again(tmp_path: Path, is_over: bool) -> None:
    mirror = StandInMirror()
    code = Code(_OWNER, mirror, StoredCode(mirror, Storage(str(tmp_path))))
    archive = tmp_path / code_path(_SHA256)
    archive.parent.mkdir()
    archive.write_text("archive")
    mirror.put(keys.experiment(7), _ENDED)
    await code.check_stored(_SHA256)
    archive.unlink()
    # Within a second it is not looked for again, for bursts of submits.
    await code.check_stored(_SHA256)
    mirror.put(keys.experiment(7), Experiment(7, "n", "o", "{}", _SHA256, State.TERMINAL, deletion=DeletionStage.FILES))
    if is_over:
        await _refused(code)
        archive.write_text("archive")
        await code.check_stored(_SHA256)
        archive.unlink()
        mirror.state.apply(keys.experiment(7), None)
    await _refused(code)


async def test_the_answer_is_how_many_experiments_were_deleted_when_the_code_was_found(tmp_path: Path) -> None:
    """Not how many there are later: the archive may have gone with one that was deleted meanwhile."""
    mirror = StandInMirror()
    storage = _DeletingStorage(str(tmp_path))
    code = Code(_OWNER, mirror, StoredCode(mirror, storage))
    archive = tmp_path / code_path(_SHA256)
    archive.parent.mkdir()
    archive.write_text("archive")
    mirror.put(keys.NEXT_EXPERIMENT, Counter(8))
    mirror.put(keys.experiment(7), _ENDED)
    assert await code.check_stored(_SHA256) == 6
    assert await code.check_stored(_SHA256) == 6
    mirror.put(keys.experiment(7), replace(_ENDED, deletion=DeletionStage.CODE))
    storage.on_look = lambda: mirror.state.apply(keys.experiment(7), None)
    assert await code.check_stored(_SHA256) == 6
    assert await code.check_stored(_SHA256) == 7


async def test_an_experiment_that_cannot_be_read_is_not_taken_for_deleted() -> None:
    mirror = StandInMirror()
    mirror.put(keys.NEXT_EXPERIMENT, Counter(8))
    mirror.put(keys.experiment(7), _ENDED)
    mirror.state.apply(keys.experiment(6), b"\xff")
    mirror.state.apply(keys.experiment(7), b"\xff")
    assert mirror.state.num_deleted_experiments == 5


class _DeletingStorage(Storage):
    """Calls on_look as soon as it has looked for a file."""

    on_look: Callable[[], object] = staticmethod(lambda: None)

    def has(self, path: str) -> bool:
        is_there = super().has(path)
        self.on_look()
        return is_there


async def _refused(code: Code) -> None:
    with pytest.raises(GanglineError) as caught:
        await code.check_stored(_SHA256)
    assert caught.value.code == "code.not_uploaded"
