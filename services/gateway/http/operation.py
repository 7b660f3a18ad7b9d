"""Routes for operators and their tools: health, metrics and service discovery, which need no token, and the API's
description."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from services.gateway.http.admission import Open
from services.gateway.http.answer import Answer
from services.gateway.http.model import EtcdHealth
from services.gateway.http.route import Route

router = APIRouter(include_in_schema=False, route_class=Route)


class ScrapeTargets(BaseModel):
    """Describes one entry of Prometheus' HTTP service discovery; its field names are Prometheus' own."""

    targets: list[str]
    labels: dict[str, str]


class Health(Answer):
    """Describes the gateway's health."""

    status: str
    has_leader: bool
    revision: int
    etcd: EtcdHealth
    problem: str  # why nothing can be changed now; empty if changes work


@router.get("/healthz")
async def healthz(open_cases: Open) -> Health:
    """Returns 200 as long as reads work, which they do without a scheduler."""
    return Health.model_validate(open_cases.cluster.health())


@router.get("/readyz")
async def readyz(open_cases: Open) -> JSONResponse:
    """Returns 200 while changes work too; 503 without a leading scheduler or without etcd, which `problem` names."""
    health = open_cases.cluster.health()
    body = Health.model_validate(health).model_dump(mode="json", by_alias=True)
    return JSONResponse(body | {"status": "unready"}, status_code=503) if health.problem else JSONResponse(body)


@router.get("/metrics")
async def metrics() -> Response:
    return Response(generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/prom/http-sd")
async def http_sd(request: Request, open_cases: Open) -> list[ScrapeTargets]:
    """Returns the targets for `http_sd_configs` of Prometheus. All gateways of a cluster use TLS, or none does."""
    targets = open_cases.cluster.list_targets()
    by_tls = {"__scheme__": "https"} if request.app.state.is_secure else {}
    return [
        ScrapeTargets(targets=[target.address], labels=target.labels | (by_tls if target.is_of_http_port else {}))
        for target in targets
    ]


@router.get("/api/v1/openapi.json")
@router.get("/openapi.json")
async def openapi(request: Request) -> JSONResponse:
    """Describes the API. Also below /api/, where the page's cookie is sent."""
    return JSONResponse(request.app.openapi())
