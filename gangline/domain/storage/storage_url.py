"""PURE: decides which storage URLs of users and trials may be opened.

fsspec opens web servers, archives and chains of file systems by URL alone. The gateway and other trials later open a
URL that a trial reported, with their own rights. So only storage protocols pass, and no chains.
"""

from __future__ import annotations

from gangline.errors import GanglineError, invalid
from gangline.printable import find_unprintable

# A directory, S3, Google Cloud Storage and Azure Blob Storage, as in docs/checkpoints.md.
_DOCUMENTED = ("file", "s3", "gs", "az")
# Other names of fsspec for the same protocols.
_SAME = {"local": "file", "s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}
MAX_URL_LENGTH = 4096


def protocol_of(url: str) -> str:
    """Returns the protocol of a URL: "file" for a path, and one name where fsspec has several."""
    protocol, separator, _ = url.partition("://")
    if not separator:
        # The one protocol that fsspec recognizes without slashes.
        protocol = "data" if url.startswith("data:") else "file"
    return _SAME.get(protocol.lower(), protocol.lower())


def check_storage_url(url: str, cluster_url: str = "") -> None:
    """Checks a URL before it is opened. cluster_url: the cluster's own storage, whose protocol passes as well. Raises
    GanglineError `storage.url`, `storage.chain` or `storage.protocol`."""
    unprintable = find_unprintable(url)
    if unprintable is not None or len(url) > MAX_URL_LENGTH:
        why = unprintable or f"{len(url)} characters"
        raise invalid("storage.url", f"{url[:80]!r} is no URL of a storage: it has {why}")
    if "::" in url:
        raise invalid(
            "storage.chain",
            f"{url!r} chains file systems with '::'; give the URL of the storage itself, as s3://bucket",
        )
    protocol = protocol_of(url)
    allowed = dict.fromkeys([*_DOCUMENTED, *([protocol_of(cluster_url)] if cluster_url else [])])
    if protocol not in allowed:
        raise _refused(url, protocol, allowed)


def check_same_protocol(url: str, cluster_url: str) -> None:
    """Checks a URL that must lie in the cluster's storage. Raises GanglineError as check_storage_url."""
    check_storage_url(url, cluster_url)
    if protocol_of(url) != protocol_of(cluster_url):
        raise _refused(url, protocol_of(url), [protocol_of(cluster_url)])


def check_checkpoint_place(url: str, checkpoint_id: str) -> None:
    """Checks the URL of a checkpoint that a trial or a gateway reports. Others read the checkpoint by it with their own
    rights, so it names the folder of this checkpoint and no other. Raises GanglineError `checkpoint.place`."""
    parts = url.split("/")
    if parts[-2:] != ["checkpoints", checkpoint_id] or not {".", ".."}.isdisjoint(parts):
        raise invalid(
            "checkpoint.place",
            f"{url!r:.300} is not the folder of checkpoint {checkpoint_id}, which is checkpoints/{checkpoint_id} below "
            "the URL of the storage",
        )


def check_file_inside(path: str) -> None:
    """Raises GanglineError `checkpoint.path` for a path that names no file inside of a checkpoint's folder."""
    if "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise invalid("checkpoint.path", f"{path!r:.200} names no file inside of a checkpoint; rename it")


def _refused(url: str, protocol: str, allowed: object) -> GanglineError:
    allowed_names = ", ".join(map(str, allowed))  # type: ignore[call-overload]  # an iterable of names
    return invalid(
        "storage.protocol",
        f"{url!r} has the protocol {protocol!r}, which is no checkpoint storage; use one of {allowed_names}",
    )
