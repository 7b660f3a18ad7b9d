"""The common part of every change: the client's request id, and that the caller can read its own write afterwards."""

from __future__ import annotations

import structlog

from gangline.errors import invalid
from services.gateway.mirror import Watched

# How long an answer waits for the mirror to show the write.
MIRROR_SECONDS = 5.0
# Request ids are stored with the experiment, so their length is bounded.
MAX_REQUEST_ID = 200

log = structlog.get_logger(__name__)


def check_request_id(request_id: str) -> None:
    """Raises GanglineError `request.no_id` or `request.long_id`."""
    if not request_id:
        raise invalid("request.no_id", "this change has no request id; make one up (a UUID), and repeat it on a retry")
    if len(request_id) > MAX_REQUEST_ID:
        text = f"the request id has {len(request_id)} characters; at most {MAX_REQUEST_ID} are stored, as a UUID's 36"
        raise invalid("request.long_id", text)


async def settle(mirror: Watched, revision: int) -> None:
    """Waits until the mirror shows this revision. The write is done either way, so a delay is no error."""
    if not await mirror.wait_for_revision(revision, MIRROR_SECONDS):
        log.warning("the mirror is behind", revision=revision, mirrored=mirror.state.revision)
