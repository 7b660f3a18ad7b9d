"""PURE: a searcher rebuilt from its log, and the log itself: pages of events, so that no value in etcd grows large."""

from __future__ import annotations

from gangline.domain.search import Search, SearchEvent, SearchLog, search_log_id
from services.scheduler.searcher.interface import Brief, Searcher
from services.scheduler.searcher.methods import SEARCHERS
from services.scheduler.state.facts import Facts
from services.scheduler.state.records import Draft, Records, get

# Events on one page. A new event rewrites only the last page.
PAGE_EVENTS = 64


def make_searcher(facts: Facts, seed: int) -> Searcher:
    """Builds a searcher that has not received any event."""
    return SEARCHERS[facts.searcher.name](Brief(facts.searcher, facts.hyperparameters, seed))


def replay(records: Records, search: Search, facts: Facts) -> Searcher:
    """Replays the log. The answers are dropped: `search` records how many operations were carried out."""
    searcher = make_searcher(facts, search.seed)
    for page in range(-(-search.num_events // PAGE_EVENTS)):
        for event in get(records, SearchLog, search_log_id(search.experiment_id, page)).events:
            searcher.on_event(event)
    return searcher


def append(draft: Draft, search: Search, event: SearchEvent) -> None:
    """Puts the page that the event belongs on. The caller counts the event in `search`."""
    page = search.num_events // PAGE_EVENTS
    search_log = draft.find(SearchLog, search_log_id(search.experiment_id, page))
    draft.put(SearchLog(search.experiment_id, page, (*(search_log.events if search_log else ()), event)))
