"""Which errors of a storage a trial waits for."""

from __future__ import annotations

import errno
import os

import pytest

from gangline.core.together import RankError
from gangline.domain.storage.storage_fault import JUDGED, storage_away, waits
from gangline.errors import GanglineError, invalid, unavailable


class EndpointConnectionError(Exception):
    """As botocore names it."""


class ClientError(Exception):
    """An answer of an object store, as botocore raises it."""

    def __init__(self, status: int) -> None:
        super().__init__("refused")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class HttpError(Exception):
    """As gcsfs raises it."""

    def __init__(self, code: int) -> None:
        super().__init__("refused")
        self.code = code


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)),
        *(OSError(number, os.strerror(number)) for number in (errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN)),
        TimeoutError(),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        storage_away("/mnt/gangline"),
        EndpointConnectionError(),
        ClientError(503),
        ClientError(429),
        HttpError(500),
        caused(OSError("EndpointConnectionError: ..."), EndpointConnectionError()),
        caused(OSError(errno.EIO, "an unknown answer"), ClientError(500)),
    ],
)
def test_what_others_mend_is_waited_for(error: BaseException) -> None:
    assert waits(error)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "denied"),
        PermissionError(errno.EPERM, "denied"),
        FileNotFoundError(errno.ENOENT, "no such bucket"),
        OSError(errno.ENAMETOOLONG, "too long"),
        ValueError("no path"),
        invalid("checkpoint.conflict", "two ranks differ"),
        unavailable("checkpoint.storage", "waited for long enough"),
        ClientError(403),
        ClientError(404),
        # s3fs gives every answer that it does not know the number of a broken disk.
        caused(OSError(errno.EIO, "InvalidBucketName"), ClientError(400)),
    ],
)
def test_what_would_be_the_same_after_an_hour_is_not(error: BaseException) -> None:
    assert not waits(error)


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_another_rank_judges_its_own_error(is_waited_for: bool) -> None:
    for error in (RankError(1, "OSError: [Errno 28]"), GanglineError("checkpoint.storage", "away")):
        setattr(error, JUDGED, is_waited_for)
        assert waits(error) is is_waited_for


def test_a_loop_of_causes_ends() -> None:
    error = caused(ValueError("first"), KeyError("second"))
    assert error.__cause__ is not None
    error.__cause__.__cause__ = error
    assert not waits(error)
