"""The route of the stream of changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from gangline.errors import GanglineError
from services.gateway.http.admission import Cases
from services.gateway.http.live.stream import LiveHub, Stream
from services.gateway.http.live.subscription import Subscription
from services.gateway.http.route import ERRORS, Route

router = APIRouter(prefix="/api/v1", tags=["live"], route_class=Route, responses=ERRORS)
log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 10
# A client that takes nothing for so long is cut. It may resume with its last id.
SEND_SECONDS = 30.0


@router.get("/stream", response_class=EventSourceResponse)
async def follow_changes(
    request: Request, cases: Cases, wanted: Annotated[Subscription, Depends()]
) -> EventSourceResponse:
    """Streams what changes after a cursor: rows of the tables, agents, the queue, and reports of metrics. docs/http.md
    describes the events."""
    hub: LiveHub = request.app.state.live
    user = request.state.principal.name
    hub.check(user)
    stream = Stream(hub, cases, wanted)
    await cases.changes.check_trials(wanted.metrics)
    return EventSourceResponse(_until_stopped(stream, hub, user), ping=HEARTBEAT_SECONDS, send_timeout=SEND_SECONDS)


async def _until_stopped(stream: Stream, hub: LiveHub, user: str) -> AsyncIterator[ServerSentEvent]:
    """Ends the answer when the gateway stops, or when there are too many streams. The client connects again."""
    try:
        with hub.enter(user):
            async for event in stream.events():
                yield event
    except GanglineError as error:
        log.info("a stream of changes ended", reason=error.message)
