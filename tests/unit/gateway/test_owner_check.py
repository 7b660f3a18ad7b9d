"""What only an owner may do, at a gateway that has not seen the record yet, because another one has just made it; and
that a call with too many ids asks for none of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from gangline.domain.experiment import Checkpoint, Experiment, RetentionChange
from gangline.domain.id import MAX_NAMED_CHECKPOINTS
from gangline.errors import GanglineError
from services.common import keys
from services.common.server import Principal
from services.gateway.mirror.caller import Caller
from services.gateway.usecase.checkpoint import Checkpoints
from services.gateway.usecase.experiment import Experiments
from services.gateway.usecase.removal import Removals
from services.gateway.usecase.shared.view import Views
from tests.support.stand_in_mirror import StandInMirror

BOB = Caller(Principal("user", "bob"), "r")
NOTHING = cast("Any", None)
CHANGE = RetentionChange(log_retention_days=1)


_UNSEEN: dict[str, object] = {
    keys.experiment(7): Experiment(7, "digits", "alice", "{}", "a" * 64),
    keys.checkpoint("c1"): Checkpoint("c1", "7.1", 7, 10, "file:///s/checkpoints/c1"),
}


class _Behind(StandInMirror):
    """Shows a record as soon as it is asked for its certain state, as a mirror over etcd does."""

    async def confirm(self, key: str) -> None:
        if key in _UNSEEN:
            self.put(key, _UNSEEN[key])


class _Leader:
    """Must not be asked."""

    async def change(self, *_: object) -> object:
        raise AssertionError("the leader was asked")


@pytest.mark.parametrize(
    "call",
    [
        lambda mirror, leader, views: Experiments(
            BOB, mirror, leader, NOTHING, views=views, code=NOTHING, following=NOTHING
        ).update(7, [CHANGE]),
        lambda mirror, leader, views: Removals(BOB, mirror, leader, views).delete(7),
        lambda mirror, leader, views: Checkpoints(BOB, mirror, leader, NOTHING, views).delete(["c1"]),
    ],
    ids=["what is kept", "the experiment", "a checkpoint"],
)
async def test_a_new_record_of_another_user_is_not_changed(call: Callable[..., Awaitable[object]]) -> None:
    mirror = _Behind()
    with pytest.raises(GanglineError) as caught:
        await call(mirror, _Leader(), Views(mirror, NOTHING, NOTHING))
    assert caught.value.code == "auth.not_owner"


class _Unasked(StandInMirror):
    async def confirm(self, key: str) -> None:
        raise AssertionError(f"etcd was asked for {key}")


async def test_too_many_checkpoints_are_refused_before_any_of_them_is_looked_up() -> None:
    ids = [f"c{number}" for number in range(MAX_NAMED_CHECKPOINTS + 1)]
    with pytest.raises(GanglineError) as caught:
        await Checkpoints(BOB, _Unasked(), cast("Any", _Leader()), NOTHING, NOTHING).delete(ids)
    assert caught.value.code == "checkpoint.too_many"
