"""Builds the FastAPI application from the routes and the middleware."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

import gangline
from services.gateway.determined.door import Door
from services.gateway.http import (
    access,
    agent,
    artifact,
    audit,
    cluster,
    experiment,
    fusion,
    history,
    operation,
    project,
    queue,
    quota,
    registry,
    saved_view,
    series,
    session,
    table,
    task,
    usage,
    user,
)
from services.gateway.http.admission import Admission
from services.gateway.http.browser.page_files import PageFiles
from services.gateway.http.description import complete
from services.gateway.http.live import route as live
from services.gateway.http.live.stream import LiveHub
from services.gateway.http.model import BODY_EXAMPLES
from services.gateway.http.problem import add_problem_handlers
from services.gateway.http.serving.middleware import Guard, Measure
from services.gateway.http.tunnel.proxy import Proxy
from services.gateway.http.tunnel.upgrade import Upgrades
from services.gateway.mirror.auth import Authenticator
from services.gateway.usecase.bundle import UseCases

DESCRIPTION = "Paths and names follow Determined's REST API where both have the call. Errors are problem documents."
_DESCRIBED: Any = {"title": "Gangline", "version": gangline.__version__, "description": DESCRIPTION}
# In the order in which their routes are tried.
_PARTS = (
    experiment, table, live, history, queue, agent, cluster, usage, fusion, operation, artifact, project, registry,
    series, user, session, saved_view, task, quota, access, audit,
)  # fmt: skip


def build_app(usecases: UseCases, authenticator: Authenticator) -> FastAPI:
    app = FastAPI(**_DESCRIBED, docs_url=None, redoc_url=None, openapi_url=None, routes=build_routes())
    app.state.usecases = usecases
    app.state.live = LiveHub()
    app.state.upgrades = Upgrades(usecases, authenticator)
    add_problem_handlers(app)
    app.add_middleware(Admission, authenticator=authenticator, usecases=usecases)
    app.add_middleware(PageFiles)
    app.add_middleware(Door, usecases=usecases, authenticator=authenticator)
    app.add_middleware(Proxy, usecases=usecases, authenticator=authenticator)
    app.add_middleware(Guard)
    app.add_middleware(Measure)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]  # how FastAPI documents replacing it
    return app


def describe_api() -> dict[str, Any]:
    """Returns the API's description as an OpenAPI document, from the routes alone."""
    return complete(get_openapi(**_DESCRIBED, routes=build_routes()), BODY_EXAMPLES)


def build_routes() -> list[BaseRoute]:
    # The routes themselves, as their routers built them. `include_router` would build every route once more in each
    # application, at its first request and on the event loop, and would look for the route of a request twice.
    return [route for part in _PARTS for route in part.router.routes]


def _describe(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = describe_api()
    return app.openapi_schema
