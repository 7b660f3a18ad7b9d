"""What route functions ask for: the use cases and who is calling."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from services.gateway.usecase.bundle import UseCases


def _usecases(request: Request) -> UseCases:
    usecases = request.app.state.usecases
    assert isinstance(usecases, UseCases)
    return usecases


Cases = Annotated[UseCases, Depends(_usecases)]
