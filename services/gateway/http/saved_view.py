"""Routes and JSON of saved views."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gangline.domain import saved_view
from gangline.domain.saved_view import no_view
from services.gateway.http.admission import Cases, KeyedCases
from services.gateway.http.answer import Answer
from services.gateway.http.model import Body, Int64
from services.gateway.http.route import ERRORS, Route

router = APIRouter(prefix="/api/v1", tags=["views"], route_class=Route, responses=ERRORS)


class SavedView(
    Answer,
    record=saved_view.SavedView,
    shows="id list=list_name name user_id=owner_id content=content_json version created_at updated_at",
): ...


class SavedViewAnswer(Answer):
    view: SavedView


class SavedViewList(Answer):
    views: list[SavedView]


class NewSavedView(
    Body, example={"list": "experiments", "name": "running", "content": {"filters": {"states": ["RUNNING"]}}}
):
    list: str  # the list that it shows, such as "experiments"
    name: str  # of one view of this user and list only, of at most 100 characters
    content: dict[str, Any]  # filters, sort order, columns: at most 16 KiB of JSON, which only the page reads


class SavedViewPatch(Body, example={"version": 1, "name": "running now"}):
    """Absent fields stay as they are."""

    version: Int64  # the version from which the change is made
    name: str | None = None
    content: dict[str, Any] | None = None


@router.get("/saved-views")
async def list_saved_views(
    cases: Cases, of_list: Annotated[str, Query(alias="list", description="Only those of this list")] = ""
) -> SavedViewList:
    """Lists the caller's views, by list and name."""
    return SavedViewList.model_validate({"views": await cases.saved_views.list(of_list)})


@router.get("/saved-views/{view_id}")
async def get_saved_view(view_id: str, cases: Cases) -> SavedViewAnswer:
    """Shows a view, also one of another user, who has told of its id."""
    return SavedViewAnswer(view=SavedView.model_validate(await cases.saved_views.find(view_id)))


@router.post("/saved-views")
async def post_saved_view(body: NewSavedView, cases: KeyedCases) -> SavedViewAnswer:
    """Saves a view. The same Idempotency-Key saves nothing twice."""
    view = await cases.saved_views.create(body.list, body.name, _text(body.content))
    return SavedViewAnswer(view=SavedView.model_validate(view))


@router.patch("/saved-views/{view_id}")
async def patch_saved_view(view_id: str, body: SavedViewPatch, cases: KeyedCases) -> SavedViewAnswer:
    """Changes a view of the caller. Refuses a change that is made from another version than the present one."""
    content_json = None if body.content is None else _text(body.content)
    view = await cases.saved_views.change(view_id, body.version, body.name, content_json)
    return SavedViewAnswer(view=SavedView.model_validate(view))


@router.delete("/saved-views/{view_id}", status_code=204)
async def delete_saved_view(view_id: str, cases: KeyedCases) -> None:
    """Deletes a view of the caller."""
    if not await cases.saved_views.delete(view_id):
        raise no_view(view_id)


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
