"""The calls of SchedulerService for the process of a custom search: the events, and the operations that it asks for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import structlog

from gangline.domain.search import Search, SearchEvent, SearchLog, SearchOperation, search_log_id
from gangline.errors import not_found
from gangline.protocol import wire
from gangline.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.scheduler.leader.leader_status import LeaderStatus
from services.scheduler.searcher.replay import PAGE_EVENTS
from services.scheduler.service.access import require_cluster
from services.scheduler.state.records import Records, get
from services.scheduler.transition.rights import changed
from services.scheduler.transition.search import post_operations

_log = structlog.get_logger(__name__)

# Events in one answer.
MAX_EVENTS = 100


class SearchCalls(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Base of the service, which provides the leader's status."""

    _leader_status: LeaderStatus

    async def GetSearchEvents(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServiceGetSearchEventsRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServiceGetSearchEventsResponse:
        require_cluster()
        term = self._leader_status.require()
        search = term.state.find(Search, request.experiment_id)
        if search is None:
            raise not_found("search.not_found", f"experiment {request.experiment_id} has no search")
        events = itertools.islice(_events_from(term.state, search, max(0, request.num_known)), MAX_EVENTS)
        return scheduler_pb2.SchedulerServiceGetSearchEventsResponse(
            events=[wire.to_proto(event) for event in events], search=wire.to_proto(search)
        )

    async def PostSearchOperations(  # noqa: N802 - grpc's name
        self, request: scheduler_pb2.SchedulerServicePostSearchOperationsRequest, _context: Any
    ) -> scheduler_pb2.SchedulerServicePostSearchOperationsResponse:
        require_cluster()
        term = self._leader_status.require(request.user)
        operations = [wire.from_proto(SearchOperation, operation) for operation in request.operations]
        rules, now = term.context.rules, time.time()
        change = await term.store.commit_asked(
            changed(
                request.user,
                request.experiment_id,
                "run the search of",
                lambda records: post_operations(
                    records, request.experiment_id, request.post_number, operations, rules=rules, now=now
                ),
            )
        )
        if change:
            _log.info("custom search operated", experiment_id=request.experiment_id, num_operations=len(operations))
        return scheduler_pb2.SchedulerServicePostSearchOperationsResponse(revision=term.state.revision)


def _events_from(records: Records, search: Search, num_known: int) -> Iterator[SearchEvent]:
    """Yields the events behind the first `num_known` ones."""
    first_page, skipped = divmod(num_known, PAGE_EVENTS)
    for page in range(first_page, -(-search.num_events // PAGE_EVENTS)):
        events = get(records, SearchLog, search_log_id(search.experiment_id, page)).events
        yield from events[skipped if page == first_page else 0 :]
