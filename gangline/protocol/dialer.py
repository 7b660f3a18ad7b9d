"""Opens every gRPC channel of Gangline: in plain text, or by TLS with files that may be replaced while it runs.

Owns the reading of a client's files and the name that the other end must have. A new channel uses the files as they are
then. Files that cannot be used at the moment, such as a certificate whose key is still to be copied, leave the ones
before them in use. The module makes no call.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from gangline.errors import GanglineError, invalid

# In place of a file: the authorities that this machine trusts for all programs.
SYSTEM = "system"
# Between two looks whether a file was replaced.
_LOOK_SECONDS = 1.0
# gRPC compares the certificate with this name in place of the host name of the address.
_NAME_OPTION = "grpc.ssl_target_name_override"
Options = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of a client's files. cert_file, key_file: empty for a client without a certificate of its own."""

    ca_file: str
    cert_file: str = ""
    key_file: str = ""

    @property
    def paths(self) -> tuple[Path, ...]:
        ca_file = system_authorities() if self.ca_file == SYSTEM else self.ca_file
        return tuple(Path(text) for text in (ca_file, self.cert_file, self.key_file) if text)


@dataclass(frozen=True, slots=True)
class TlsTarget:
    """How to reach a server by TLS. server_name: the name that its certificate must have; empty for the host name of
    the address."""

    files: TlsFiles
    server_name: str = ""


class Dialer:
    """Opens channels. Any thread may call it.

    find: returns how to reach the server now; None for plain text. The first channel raises GanglineError `tls.*` for
    files that cannot be used; `version` does so before.
    """

    def __init__(self, find: Callable[[], TlsTarget | None] = lambda: None) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._used: tuple[TlsTarget, grpc.ChannelCredentials] | None = None
        self._stamp: tuple[object, ...] | None = None
        self._looked_at = 0.0
        self._version = 0

    @property
    def is_secure(self) -> bool:
        return self._look() is not None

    @property
    def version(self) -> int:
        """Returns a number that grows with each replacement of the files. A channel of a former version may be unable
        to connect again."""
        self._look()
        return self._version

    def open(self, address: str, options: Options) -> grpc.Channel:
        used = self._look()
        if used is None:
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, used[1], options=_with_name(options, used[0]))

    def open_async(self, address: str, options: Options) -> grpc.aio.Channel:
        used = self._look()
        if used is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, used[1], options=_with_name(options, used[0]))

    def _look(self) -> tuple[TlsTarget, grpc.ChannelCredentials] | None:
        """Returns what to use now. Reads the files if they were replaced."""
        with self._lock:
            now = time.monotonic()
            if self._stamp is None or now - self._looked_at >= _LOOK_SECONDS:
                self._looked_at = now
                try:
                    self._read()
                except GanglineError:
                    # Once TLS was on, a fault of the files never leads back to plain text.
                    if self._stamp is None:
                        raise
            return self._used

    def _read(self) -> None:
        target = self._find()
        stamp = () if target is None else (target, *stamp_of(target.files.paths))
        if stamp != self._stamp:
            self._used = None if target is None else (target, _load(target.files))
            self._stamp, self._version = stamp, self._version + 1


PLAIN = Dialer()


def dialer_of(files: TlsFiles | None, server_name: str = "") -> Dialer:
    """Returns a dialer whose files are always at the same paths."""
    target = None if files is None else TlsTarget(files, server_name)
    return Dialer(lambda: target)


def system_authorities() -> str:
    """Returns the file with the authorities that this machine trusts. Raises GanglineError `tls.no_authorities`."""
    path = ssl.get_default_verify_paths().cafile
    if path is None:
        raise invalid("tls.no_authorities", "this machine has no file of trusted authorities; name a file of one")
    return path


def stamp_of(paths: Sequence[Path]) -> tuple[object, ...]:
    """Returns what changes when one of the files is replaced. Raises GanglineError `tls.unreadable_file`."""
    try:
        states = [path.stat() for path in paths]
    except OSError as failure:
        raise unreadable(failure) from failure
    # The mode of a key counts, and a change of it is in the last of the times.
    return tuple((s.st_dev, s.st_ino, s.st_mtime_ns, s.st_size, s.st_ctime_ns) for s in states)


def _with_name(options: Options, target: TlsTarget) -> list[tuple[str, int | str]]:
    return [*options, *([(_NAME_OPTION, target.server_name)] if target.server_name else [])]


def unreadable(failure: OSError) -> GanglineError:
    return invalid("tls.unreadable_file", f"cannot read {failure.filename}: {failure.strerror}")


def _load(files: TlsFiles) -> grpc.ChannelCredentials:
    try:
        contents = [path.read_bytes() for path in files.paths]
    except OSError as failure:
        raise unreadable(failure) from failure
    authorities, *pair = contents
    if b"-----BEGIN CERTIFICATE-----" not in authorities:
        raise invalid("tls.bad_certificate", f"{files.paths[0]} has no certificate in PEM; give the file ca.crt")
    if not pair:
        return grpc.ssl_channel_credentials(authorities)
    try:
        # gRPC takes any two files here, and fails at each connection without a reason.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(files.cert_file, files.key_file)
    except (OSError, ValueError) as failure:
        text = f"{files.key_file} is not the key of {files.cert_file}; copy both files again"
        raise invalid("tls.bad_key", text) from failure
    certificate, key = pair
    return grpc.ssl_channel_credentials(authorities, key, certificate)
