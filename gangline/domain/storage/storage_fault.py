"""PURE: which failures of a storage a trial waits for, and which end it.

A storage that is full, read-only, away or silent is the cluster's matter: an operator mends it, and the trial loses
nothing if it waits. A mistake of the user would be the same after an hour, so it is reported at once: a folder that the
trial may not write, a bucket that does not exist, a value that cannot be saved.

Also names the file by which a folder is known as the cluster's storage. A mount point whose mount is lost is a folder
too, and lacks that file.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from gangline.errors import GanglineError, unavailable

# How long a trial waits, where nothing else is set.
DEFAULT_WAIT_SECONDS = 3600.0
# The file in the root of the cluster's storage. A gateway writes it when it first uses the storage.
MARKER_FILE = ".gangline-storage"
# The attribute of an error that another rank has judged already, or that was made from a judged one.
JUDGED = "waits_for_storage"
# The code of the error for a storage folder without its marker, or with that of another storage.
AWAY = "storage.away"

# Errors of the operating system that others than the user cause and mend.
_WAITING_NUMBERS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.ESTALE,
        errno.EAGAIN,
        errno.EBUSY,
        errno.ENODEV,
        errno.ENXIO,
        errno.ENOMEDIUM,
        errno.EREMOTEIO,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENFILE,
    }
)
# Answers of an object store that ask for another try. Every answer from 500 on does so too.
_WAITING_STATUSES = (408, 425, 429)
# Exceptions of the libraries of object stores (botocore, aiohttp, azure, google) for a server that did not answer. They
# are compared by name, because a trial has only the library of its own storage.
_WAITING_NAMES = frozenset(
    {
        "ClientConnectionError",
        "ClientConnectorError",
        "ClientOSError",
        "ClientPayloadError",
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "EndpointConnectionError",
        "HTTPClientError",
        "IncompleteReadError",
        "ReadTimeoutError",
        "ServerDisconnectedError",
        "ServerTimeoutError",
        "ServiceRequestError",
        "ServiceResponseError",
        "TransportError",
    }
)


def waits(error: BaseException) -> bool:
    """Returns whether a trial waits and tries again after this error of its storage.

    An object store's own answer decides first, because its library may give a refusal the number of a broken disk.
    """
    chain = list(_chain(error))
    statuses = [status for status in map(_status_of, chain) if status is not None]
    if statuses:
        return statuses[0] >= 500 or statuses[0] in _WAITING_STATUSES
    return any(map(_waits, chain))


def storage_away(root: str) -> GanglineError:
    """Makes the error for a storage folder that is absent, or that is not the cluster's storage any more."""
    return unavailable(
        AWAY,
        f"the storage {root} is away: {MARKER_FILE} is not in it, so it is not mounted or has been emptied; mount it "
        f"again, or create that file to use the folder as it is",
    )


def check_marker(root: str, found: str | None, marker: str) -> None:
    """Raises GanglineError `storage.away` for a folder that is not the cluster's storage. An operator may have made an
    empty marker file, which counts.

    found: the content of the folder's marker file; None where there is none. marker: that of the cluster's storage.
    """
    if found is None:
        raise storage_away(root)
    if found and found != marker:
        raise unavailable(
            AWAY,
            f"the storage {root} is away: it is another storage, whose {MARKER_FILE} has the id {found}, and the "
            f"cluster's storage has the id {marker}; mount the right one, or write {marker} into that file to use this "
            f"folder",
        )


def describe(error: BaseException) -> str:
    """Returns the error as a clause."""
    return error.message if isinstance(error, GanglineError) else f"{type(error).__name__}: {error}"


def _waits(error: BaseException) -> bool:
    if (judged := getattr(error, JUDGED, None)) is not None:
        return bool(judged)
    if isinstance(error, GanglineError):
        return error.code == AWAY
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _WAITING_NUMBERS
    return any(each.__name__ in _WAITING_NAMES for each in type(error).__mro__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and its causes."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _status_of(error: BaseException) -> int | None:
    """Returns the HTTP status of an object store's answer; None for any other error."""
    response = getattr(error, "response", None)
    values = [getattr(error, name, None) for name in ("status", "status_code", "code")]
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata")
        values.insert(0, metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None)
    for value in values:
        if isinstance(value, int | str) and str(value).isdigit() and 400 <= int(value) < 600:
            return int(value)
    return None
