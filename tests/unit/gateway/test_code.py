"""What a gateway remembers of stored code, and when it looks again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.domain.experiment import Experiment
from gangline.domain.state import DeletionStage, State
from gangline.errors import GanglineError
from services.common import keys
from services.gateway.storage.storage import Storage, code_path
from services.gateway.usecase.code import Code
from tests.support.stand_in_mirror import StandInMirror

_SHA256 = "a" * 64
_ENDED = Experiment(7, "n", "o", "{}", _SHA256, State.TERMINAL)


@pytest.mark.parametrize("is_over", [False, True])
async def test_code_that_may_have_gone_with_an_experiment_is_looked_for_again(tmp_path: Path, is_over: bool) -> None:
    mirror = StandInMirror()
    code = Code(mirror, Storage(str(tmp_path)))
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


async def _refused(code: Code) -> None:
    with pytest.raises(GanglineError) as caught:
        await code.check_stored(_SHA256)
    assert caught.value.code == "code.not_uploaded"
