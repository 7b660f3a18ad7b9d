"""PURE: named views of lists, which users save, and the rules of their changes.

The content is the page's own: its filters, its sort order, and its columns with their order. Nothing here reads it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from gangline.domain.document import check_document
from gangline.errors import ErrorKind, GanglineError, conflict, invalid, not_found
from gangline.printable import find_unprintable

MAX_VIEWS = 100  # of one user
MAX_NAME_LENGTH = 100
MAX_CONTENT_BYTES = 16 << 10
_LIST_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class SavedView:
    """A view of a list, which a user keeps under a name. Everybody who knows the id may read it."""

    id: str  # random, so that only users who were told of it open the view
    list_name: str  # the list that it shows, such as "experiments"
    name: str  # of one view of its owner and list only
    owner_id: int  # the user who saved it; 0 for the cluster itself
    content_json: str  # a JSON object of at most 16 KiB: filters, sort order, columns
    version: int = 1  # counts the changes
    created_at: float = 0.0
    updated_at: float = 0.0

    @property
    def content(self) -> dict[str, Any]:
        """Returns the content as an object."""
        content: dict[str, Any] = json.loads(self.content_json)
        return content


def check_view(view: SavedView) -> None:
    """Raises GanglineError `saved_view.list`, `saved_view.name`, `saved_view.content`, `document.invalid`."""
    if _LIST_NAME.fullmatch(view.list_name) is None:
        raise invalid(
            "saved_view.list", f"a list is named by up to 40 of a-z, 0-9 and -, as experiments, not {view.list_name!r}"
        )
    if not view.name.strip() or len(view.name) > MAX_NAME_LENGTH:
        raise invalid(
            "saved_view.name",
            f"the name of a view has 1 to {MAX_NAME_LENGTH} characters, this one {len(view.name)}; choose another",
        )
    unprintable = find_unprintable(view.name)
    if unprintable is not None:
        raise invalid("saved_view.name", f"the name of a view has {unprintable}; leave it out")
    num_bytes = len(view.content_json.encode(errors="replace"))
    if num_bytes > MAX_CONTENT_BYTES:
        raise invalid(
            "saved_view.content",
            f"the content of view {view.name!r} has {num_bytes} bytes of JSON, at most {MAX_CONTENT_BYTES} are stored; "
            "save fewer filters or columns",
        )
    check_document(view.content_json, f"the content of view {view.name!r}")


def change_view(view: SavedView, version: int, name: str | None, content_json: str | None, now: float) -> SavedView:
    """Returns the changed view. version: of the view that the change is made from. name, content_json: None leaves it.

    Raises GanglineError `saved_view.changed` for another version, and what `check_view` raises.
    """
    if version != view.version:
        raise conflict(
            "saved_view.changed",
            f"view {view.name!r} has version {view.version}, and this change is made from version {version}; load the "
            "view again, then repeat the change",
        )
    changed = replace(
        view,
        name=view.name if name is None else name,
        content_json=view.content_json if content_json is None else content_json,
        version=view.version + 1,
        updated_at=now,
    )
    check_view(changed)
    return changed


def no_view(view_id: str) -> GanglineError:
    return not_found(
        "saved_view.not_found",
        f"there is no saved view {view_id[:50]!r}; its owner may have deleted it: ask for another",
    )


def name_taken(view: SavedView) -> GanglineError:
    return GanglineError(
        "saved_view.exists",
        f"this user has a view {view.name!r} of {view.list_name} already; change that one, or choose another name",
        ErrorKind.ALREADY_EXISTS,
    )


def too_many_views() -> GanglineError:
    return conflict("saved_view.too_many", f"a user keeps at most {MAX_VIEWS} saved views; delete one first")
