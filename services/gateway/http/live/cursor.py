"""PURE: the place of a client in the stream of changes: `REVISION[.METRICS[.QUEUE]]`.

It has no meaning for clients, but for the page of the same version, whose views share a stream and begin it where none
of them misses anything (`startOf` in page/src/api/live_parts.ts).
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline.errors import invalid

MOST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Cursor:
    revision: int  # revision of etcd, the same at every gateway
    metrics_id: int | None = None  # id of the newest report that was sent; None before the first one
    queue: str = ""  # version of the queue that was sent, as this gateway counts; empty for none

    def __str__(self) -> str:
        metrics = "" if self.metrics_id is None else str(self.metrics_id)
        return f"{self.revision}.{metrics}.{self.queue}".rstrip(".")


def parse_cursor(text: str) -> Cursor:
    """Raises GanglineError `stream.cursor`."""
    revision, _, rest = text.partition(".")
    metrics, _, queue = rest.partition(".")
    if not _is_number(revision) or not (metrics == "" or _is_number(metrics)) or len(queue) > 60:
        raise invalid("stream.cursor", "this is no cursor; give the `cursor` of a table's page, or the id of an event")
    return Cursor(int(revision), int(metrics) if metrics else None, queue)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MOST
