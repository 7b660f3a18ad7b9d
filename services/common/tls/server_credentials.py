"""What servers show in a handshake. Each handshake uses the files as they are then; open connections stay as they are.

gRPC asks for the files at each handshake. Python's ssl has a callback at the begin of each handshake, in which the
connection gets the context of the present files.
"""

from __future__ import annotations

import ssl
from typing import Any

import grpc
import structlog

from services.common.tls.identity import UNUSABLE, TlsContent, TlsIdentity

log = structlog.get_logger(__name__)


def grpc_credentials(identity: TlsIdentity, *, asks_for_certificate: bool) -> grpc.ServerCredentials:
    """Returns the credentials of a gRPC server. asks_for_certificate: only clients with a certificate of the cluster
    may connect."""
    given = [identity.current()]

    def configuration(content: TlsContent) -> grpc.ServerCertificateConfiguration:
        pair = (content.key, content.certificate)
        return grpc.ssl_server_certificate_configuration([pair], content.authorities)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake, in a thread of its own. None: as before."""
        content = identity.current()
        if content is given[0]:
            return None
        given[0] = content
        return configuration(content)

    return grpc.dynamic_ssl_server_credentials(
        configuration(given[0]),
        fetch,  # type: ignore[arg-type]  # gRPC takes None, which its types omit
        require_client_authentication=asks_for_certificate,
    )


def http_context(identity: TlsIdentity) -> ssl.SSLContext:
    """Returns the context of an HTTP server, whose clients have no certificates."""
    return _HttpContexts(identity).first


class _HttpContexts:
    """Makes a context for each state of the files. first: the server's, whose handshakes ask `_choose`."""

    def __init__(self, identity: TlsIdentity) -> None:
        self._identity = identity
        self._content = identity.current()
        self.first = self._context = _make_context(identity)
        # Also called for a client that names no host. asyncio's connections are SSLObjects.
        self.first.sni_callback = self._choose

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        content = self._identity.current()
        if content is not self._content:
            try:
                self._context, self._content = _make_context(self._identity), content
            except OSError as error:  # also an SSLError
                log.error(UNUSABLE, reason=str(error))
        connection.context = self._context


def _make_context(identity: TlsIdentity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(identity.files.cert_file, identity.files.key_file)
    return context
