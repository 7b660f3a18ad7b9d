"""PURE: a searcher rebuilt from its log, and the log itself: pages of events, so that no value in etcd grows large.

The log in etcd is the only truth. A searcher that has received all of a log is kept in memory, so that an event costs
no replay. A kept searcher counts only while the records hold the very page that it was kept with; any other page means
another leader, or a change that etcd refused, and then the log is replayed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gangline.domain.search import Search, SearchEvent, SearchLog, search_log_id
from gangline.domain.settled.record import Settled
from services.scheduler.searcher.interface import Brief, Searcher
from services.scheduler.searcher.methods import SEARCHERS
from services.scheduler.state.records import Draft, Records, get

# Events on one page. A new event rewrites only the last page.
PAGE_EVENTS = 64
# Events of all searchers kept at a time, which bounds their memory. With more than that, the searchers that have not
# received an event for the longest time are dropped, and their next event replays their log.
MAX_KEPT_EVENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class _Kept:
    """A searcher and the point of the log that it has reached.

    Pages are immutable and each one is made from the page before it. So the same object implies the same events.
    """

    searcher: Searcher
    num_events: int
    newest_page: SearchLog  # the record, compared by identity


class KeptSearchers:
    """By experiment. An entry is taken out while its searcher receives events, so a failed event leaves nothing
    behind."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._num_events = 0

    def take(self, experiment_id: int) -> _Kept | None:
        kept = self._kept.pop(experiment_id, None)
        self._num_events -= kept.num_events if kept is not None else 0
        return kept

    def keep(self, experiment_id: int, kept: _Kept) -> None:
        self.take(experiment_id)
        self._kept[experiment_id] = kept
        self._num_events += kept.num_events
        while self._num_events > MAX_KEPT_EVENTS and len(self._kept) > 1:
            self._num_events -= self._kept.popitem(last=False)[1].num_events


_kept_searchers = KeptSearchers()


def make_searcher(settled: Settled, seed: int) -> Searcher:
    """Builds a searcher that has not received any event."""
    return SEARCHERS[settled.searcher.name](Brief(settled.searcher, settled.hyperparameters, seed))


def take_searcher(records: Records, search: Search, settled: Settled) -> Searcher:
    """Returns the searcher that has received all events of the log: the kept one, or else a replay.

    The caller owns the searcher and may pass it events. It gives the searcher back with `keep_searcher`.
    """
    kept = _kept_searchers.take(search.experiment_id)
    if kept is not None and kept.num_events == search.num_events and _newest_page(records, search) is kept.newest_page:
        return kept.searcher
    return replay(records, search, settled)


def keep_searcher(records: Records, search: Search, searcher: Searcher) -> None:
    """Keeps a searcher that has received all events of the log, as `records` and `search` have it."""
    newest_page = _newest_page(records, search)
    if newest_page is None or search.is_shut_down:
        return
    _kept_searchers.keep(search.experiment_id, _Kept(searcher, search.num_events, newest_page))


def replay(records: Records, search: Search, settled: Settled) -> Searcher:
    """Replays the log. The answers are dropped: `search` records how many operations were carried out."""
    searcher = make_searcher(settled, search.seed)
    for page in range(-(-search.num_events // PAGE_EVENTS)):
        for event in get(records, SearchLog, search_log_id(search.experiment_id, page)).events:
            searcher.on_event(event)
    return searcher


def append(draft: Draft, search: Search, event: SearchEvent) -> None:
    """Puts the page that the event belongs on. The caller counts the event in `search`."""
    page = search.num_events // PAGE_EVENTS
    search_log = draft.find(SearchLog, search_log_id(search.experiment_id, page))
    draft.put(SearchLog(search.experiment_id, page, (*(search_log.events if search_log else ()), event)))


def _newest_page(records: Records, search: Search) -> SearchLog | None:
    """Returns the page with the newest event; None for a log without events."""
    if not search.num_events:
        return None
    return records.find(SearchLog, search_log_id(search.experiment_id, (search.num_events - 1) // PAGE_EVENTS))
