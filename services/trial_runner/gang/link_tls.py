"""TLS of the links of a gang. Both ends show the certificate of their agent, and compare the name with the node rank.

The files are read once, at the start of the attempt; links stay open for as long as the gang trains. Probes of the
network stay in plain text: they carry nothing but the greeting (`member_link.py`), and every member probes all others.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from gangline.domain.peer_name import AGENT, PeerName
from gangline.errors import invalid
from gangline.protocol.dialer import TlsFiles


class WrongMember(Exception):
    """Raised for a certificate that is not the one of the expected agent."""


class LinkTls:
    """The contexts of one member. agent_ids: of the gang, by node rank. Raises GanglineError `tls.unusable` where the
    files cannot be used."""

    def __init__(self, files: TlsFiles, cluster: str, agent_ids: Sequence[str]) -> None:
        self._names = tuple(str(PeerName(AGENT, cluster, agent_id)) for agent_id in agent_ids)
        try:
            self._server = _make_context(ssl.PROTOCOL_TLS_SERVER, files)
            self._client = _make_context(ssl.PROTOCOL_TLS_CLIENT, files)
        except (OSError, ValueError) as failure:  # also an SSLError
            text = f"cannot use {files.ca_file}, {files.cert_file} and {files.key_file}: {failure}"
            raise invalid("tls.unusable", f"{text}; copy them again") from failure

    def context(self, *, is_server: bool) -> ssl.SSLContext:
        return self._server if is_server else self._client

    def check(self, peer: int, connection: ssl.SSLObject) -> None:
        """Raises WrongMember unless the certificate of the other end is that of the agent with node rank `peer`."""
        names = [value for kind, value in _alternative_names(connection) if kind == "DNS"]
        if not 0 <= peer < len(self._names) or self._names[peer] not in names:
            raise WrongMember(f"its certificate is of {', '.join(names) or 'no agent'}")


def _alternative_names(connection: ssl.SSLObject) -> Sequence[tuple[str, str]]:
    names: Sequence[tuple[str, str]] = (connection.getpeercert() or {}).get("subjectAltName", ())  # type: ignore[assignment]
    return names


def _make_context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Members know one another by address, which no certificate has; `check` compares the names.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files.ca_file)
    context.load_cert_chain(files.cert_file, files.key_file)
    return context
