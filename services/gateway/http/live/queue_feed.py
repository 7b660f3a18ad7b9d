"""The queue as all streams follow it: read once for all of them, and compared with its last reading.

A feed is of one scope: its readers see the same. A reading takes a while, in which its caller's roles may change. Such
a reading is of another scope, and is discarded.

Places and reasons come from the leader and have no revision, so this gateway counts versions. A client that comes from
another gateway, or after a restart, gets the whole queue.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from gangline.domain.task import Task
from services.gateway.http.live.shared_reading import SharedReading
from services.gateway.http.queue_model import job_of

# Least time between two readings of the queue.
FRESH_SECONDS = 0.5

# Reads the queue. Returns it with the `Sight.key` of its caller at the moment at which the tasks were chosen.
Read = Callable[[], Awaitable[tuple[Hashable, list[Task]]]]


class OtherScopeError(Exception):
    """The caller of a reading sees other rows than the readers of the feed."""


@dataclass(frozen=True, slots=True)
class QueueChange:
    version: str
    rows: tuple[str, ...]  # changed jobs in JSON
    gone: tuple[str, ...]  # trials that neither hold slots nor wait any more
    is_whole: bool  # whether the rows are the whole queue


class QueueFeed:
    def __init__(self, scope: Hashable) -> None:
        """scope: the `Sight.key` of all readers."""
        self._scope = scope
        self._epoch = uuid.uuid4().hex[:8]
        self._version = 0
        self._text_by_id: dict[str, str] = {}
        # By trial, the version at which its job changed or went.
        self._changed_at: dict[str, int] = {}
        self._reading = SharedReading(FRESH_SECONDS)

    async def since(self, version: str, read: Read) -> QueueChange | None:
        """Returns what changed after a version; None if nothing did. Raises OtherScopeError if this caller's reading is
        of another scope; the next caller reads anew."""
        await self._reading.refresh(lambda: self._read(read))
        epoch, _, number = version.partition("-")
        now = f"{self._epoch}-{self._version}"
        if epoch != self._epoch or not number.isdecimal() or len(number) > 18:
            return QueueChange(now, tuple(self._text_by_id.values()), (), is_whole=True)
        changed = [id_ for id_, at in self._changed_at.items() if at > int(number)]
        if not changed:
            return None
        rows = tuple(self._text_by_id[id_] for id_ in changed if id_ in self._text_by_id)
        return QueueChange(now, rows, tuple(id_ for id_ in changed if id_ not in self._text_by_id), is_whole=False)

    async def _read(self, read: Read) -> None:
        scope, tasks = await read()
        if scope != self._scope:
            raise OtherScopeError
        texts = {task.trial.id: job_of(task).model_dump_json(by_alias=True) for task in tasks}
        changed = [id_ for id_, text in texts.items() if self._text_by_id.get(id_) != text]
        gone = [id_ for id_ in self._text_by_id if id_ not in texts]
        if not changed and not gone:
            return
        self._version += 1
        self._text_by_id = texts
        self._changed_at |= dict.fromkeys([*changed, *gone], self._version)
        if len(self._changed_at) > 2 * len(texts) + 1000:
            # Forgets trials that went. Who has not heard of them begins with the whole queue.
            self._epoch = uuid.uuid4().hex[:8]
            self._changed_at = dict.fromkeys(texts, self._version)
