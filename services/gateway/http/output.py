"""Routes of a trial's output: what its processes wrote into $GANGLINE_OUTPUT_DIR, as a list and file by file."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from services.gateway.http.admission import Cases
from services.gateway.http.answer import Answer
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.shared.following import begin

router = APIRouter(prefix="/api/v1", tags=["trials"], route_class=Route, responses=ERRORS)


class OutputFile(Answer):
    """Describes a file."""

    path: str  # path below the output folder
    num_bytes: int


class OutputList(Answer):
    files: list[OutputFile]


@router.get("/trials/{trial_id}/output")
async def list_output(trial_id: str, cases: Cases) -> OutputList:
    """Lists the files that the trial's processes wrote into $GANGLINE_OUTPUT_DIR. Files are kept when the processes
    end."""
    sizes = await cases.outputs.list(trial_id)
    return OutputList(files=[OutputFile(path=path, num_bytes=num_bytes) for path, num_bytes in sizes.items()])


@router.get("/trials/{trial_id}/output/{path:path}", response_class=StreamingResponse)
async def get_output_file(trial_id: str, path: str, cases: Cases) -> StreamingResponse:
    """Returns one file of the trial's output."""
    chunks = await begin(cases.outputs.read_file(trial_id, path))
    return StreamingResponse(chunks, media_type="application/octet-stream")
