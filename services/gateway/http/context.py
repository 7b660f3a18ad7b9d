"""The dependencies of route functions: the use cases."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from services.gateway.usecase.bundle import UseCases


def _usecases(request: Request) -> UseCases:
    usecases = request.app.state.usecases
    assert isinstance(usecases, UseCases)
    return usecases


Cases = Annotated[UseCases, Depends(_usecases)]
