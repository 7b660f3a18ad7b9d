"""Builds the FastAPI application. It holds the use cases and nothing else."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

import gangline
from services.gateway.auth import Authenticator
from services.gateway.http import agent, cluster, experiment, fusion, history, model, operation, queue, trace
from services.gateway.http.admission import Admission
from services.gateway.http.measure import Measure
from services.gateway.http.problem import add_problem_handlers
from services.gateway.usecase.bundle import UseCases

DESCRIPTION = "Paths and names follow Determined's REST API where both have the call. Errors are problem documents."


def build_app(usecases: UseCases, authenticator: Authenticator) -> FastAPI:
    # Our own documentation routes replace the built-in ones, because ours ask for a token like every other route.
    app = FastAPI(
        title="Gangline", version=gangline.__version__, description=DESCRIPTION, docs_url=None, redoc_url=None,
        openapi_url=None, responses={"default": {"model": model.Problem, "description": "A problem document"}},
    )  # fmt: skip
    app.state.usecases = usecases
    add_problem_handlers(app)
    for part in (experiment, history, queue, agent, cluster, fusion, operation, trace):
        app.include_router(part.router)
    app.add_middleware(Admission, authenticator=authenticator)
    app.add_middleware(Measure)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]  # how FastAPI documents replacing it
    return app


def _describe(app: FastAPI) -> dict[str, Any]:
    """Returns the schema with the bearer token, which the routes do not declare because admission comes before them."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schema.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"token": []}]
        app.openapi_schema = schema
    return app.openapi_schema
