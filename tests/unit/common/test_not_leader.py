"""The answer of a scheduler that does not lead names the leader, over the wire too."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from gangline.errors import Effect
from gangline.protocol.rpc import error_of, find_leader, status_of
from services.common.leader_probe import NOT_LEADER_CODE, not_leader


class _Failure(grpc.RpcError):
    """A failed call as the caller gets it."""

    def __init__(self, status: grpc.StatusCode, message: str, trailing: tuple[tuple[str, bytes], ...]) -> None:
        self._status, self._message, self._trailing = status, message, trailing

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return self._message

    def trailing_metadata(self) -> Any:
        return self._trailing


@pytest.mark.parametrize("address", ["10.0.0.1:8082", "[fe80::1]:8082", "gpu-head-1.example:8082", ""])
def test_the_caller_finds_the_leader_in_the_answer(address: str) -> None:
    failure = _Failure(*status_of(not_leader(address, Effect.UNKNOWN)))
    assert find_leader(failure) == address
    error = error_of(failure, "the scheduler")
    assert (error.code, error.effect, error.leader_address) == (NOT_LEADER_CODE, Effect.UNKNOWN, address)
    assert error.reworded("other words").leader_address == address


def test_a_message_alone_names_no_leader() -> None:
    failure = _Failure(grpc.StatusCode.FAILED_PRECONDITION, "the leader is at 10.0.0.9:8082", ())
    assert find_leader(failure) == ""
