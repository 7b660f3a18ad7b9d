"""Routes of checkpoints and of the cluster as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from gangline.domain.experiment import Checkpoint
from services.gateway.http import model
from services.gateway.http.admission import Cases
from services.gateway.http.page import CheckpointPage, Limit, Offset, describe_page
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.shared.following import begin

router = APIRouter(prefix="/api/v1", route_class=Route, responses=ERRORS)


class OwnedCheckpointPage(CheckpointPage):
    owners: dict[str, str]  # user who created each experiment, by the ids in `experimentId`


@router.get("/master", tags=["cluster"], include_in_schema=False)
@router.get("/cluster", tags=["cluster"])
async def get_cluster(cases: Cases) -> model.ClusterView:
    """Describes the cluster. Also at /api/v1/master, where Determined's tools expect it."""
    return model.ClusterView.model_validate(cases.clusters.describe())


@router.get("/checkpoints", tags=["checkpoints"])
async def list_checkpoints(
    cases: Cases,
    *,
    owner: str = "",
    text: str = "",
    newestFirst: bool = False,  # noqa: N803  the API's names are in camel case
    offset: Offset = 0,
    limit: Limit = 0,
) -> OwnedCheckpointPage:
    """Lists checkpoints, the oldest first. owner: only those of this user's experiments. text: a part of the id, of the
    trial's id or of the experiment's name."""
    checkpoints, owners = cases.checkpoints.select(owner, text)
    ordered = checkpoints[::-1] if newestFirst else checkpoints
    numbers = {checkpoint.experiment_id for checkpoint in ordered[offset : offset + limit if limit else None]}
    shown_owners = {str(number): owners.get(number, "") for number in numbers}
    return OwnedCheckpointPage(**dict(_page(ordered, offset, limit)), owners=shown_owners)


@router.get("/experiments/{experiment_id}/checkpoints", tags=["checkpoints"])
async def list_experiment_checkpoints(
    experiment_id: model.Int64, cases: Cases, offset: Offset = 0, limit: Limit = 0
) -> CheckpointPage:
    return _page(await cases.checkpoints.list(experiment_id), offset, limit)


def _page(checkpoints: Sequence[Checkpoint], offset: int, limit: int) -> CheckpointPage:
    shown = checkpoints[offset : offset + limit if limit else None]
    pagination = describe_page(offset, limit, len(shown), len(checkpoints))
    return CheckpointPage.model_validate({"checkpoints": shown, "pagination": pagination})


@router.get("/checkpoints/{checkpoint_id}", tags=["checkpoints"])
async def get_checkpoint(checkpoint_id: str, cases: Cases) -> model.CheckpointAnswer:
    return model.CheckpointAnswer.model_validate({"checkpoint": cases.checkpoints.find(checkpoint_id)})


@router.delete("/checkpoints", tags=["checkpoints"])
async def delete_checkpoints(body: model.DeleteCheckpoints, cases: Cases) -> model.CheckpointList:
    """Deletes all of the checkpoints or none; their files are deleted soon after."""
    return await _delete(cases, body.checkpoint_uuids)


@router.delete("/checkpoints/{checkpoint_id}", tags=["checkpoints"])
async def delete_checkpoint(checkpoint_id: str, cases: Cases) -> model.CheckpointList:
    """Deletes a checkpoint; its files are deleted soon after."""
    return await _delete(cases, [checkpoint_id])


async def _delete(cases: Cases, checkpoint_ids: list[str]) -> model.CheckpointList:
    checkpoints = await cases.checkpoints.delete(checkpoint_ids)
    return model.CheckpointList.model_validate({"checkpoints": checkpoints})


@router.get("/checkpoints/{checkpoint_id}/files/{path:path}", tags=["checkpoints"], response_class=StreamingResponse)
async def get_checkpoint_file(checkpoint_id: str, path: str, cases: Cases) -> StreamingResponse:
    """Returns one file of the checkpoint; `resources` of the checkpoint lists them."""
    chunks = cases.checkpoints.read_file(checkpoint_id, path)
    return StreamingResponse(await begin(chunks), media_type="application/octet-stream")
