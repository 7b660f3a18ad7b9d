"""Pages of lists: which part a caller asks for, and which part an answer has, in Determined's terms.

The routes of lists use it. A list of experiments can also be read on from an id, which new experiments do not shift.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from services.gateway.http import model
from services.gateway.http.answer import Answer

Offset = Annotated[int, Query(ge=0, le=model.INT64_MAX, description="How many entries to leave out at the beginning")]

Limit = Annotated[int, Query(ge=0, le=model.INT64_MAX, description="Most entries of the answer; 0 for all")]


class Pagination(Answer):
    """The part that an answer has: the entries from startIndex up to endIndex, without it, of `total`."""

    offset: int
    limit: int
    start_index: int
    end_index: int
    total: int


class ExperimentPage(model.ExperimentList):
    pagination: Pagination


class TrialPage(model.TrialList):
    pagination: Pagination


class CheckpointPage(model.CheckpointList):
    pagination: Pagination


def describe_page(offset: int, limit: int, num_entries: int, total: int) -> Pagination:
    """Describes a page. limit: as the caller gave it; 0 for the default. num_entries: in the answer. An offset beyond
    the end gives an empty page there."""
    start = min(offset, total)
    return Pagination(offset=offset, limit=limit, start_index=start, end_index=start + num_entries, total=total)
