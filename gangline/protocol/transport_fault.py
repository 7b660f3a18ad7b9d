"""PURE: words the failures of grpc itself, whose own sentences reach no user.

grpc describes a broken connection by addresses and internal names. This module maps its texts to one clause that says
what is wrong and what to correct, and knows which of the failures happened before any byte was sent. Called by
gangline.protocol.rpc.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gangline.errors import Effect


@dataclass(frozen=True, slots=True)
class TransportFault:
    """The fault of a call that reached no answer."""

    words: str  # a clause that follows the name of the peer
    effect: Effect  # NONE if grpc sent nothing of the call


CHECK = "check the address and that the service runs"
# The first row whose pattern occurs in grpc's text counts. Rows that name a cause precede rows for any lost connection.
# The remedy of a caller that knows more of the peer replaces CHECK.
_UNREACHABLE = (
    (
        r"http1\.x server|Failed parsing HTTP/2|HTTP/1\.",
        "an HTTP server answers there; give the port of its gRPC server",
    ),
    (r"Failed to parse port|[Mm]isformatted domain name|[Uu]nparseable", "this is no address; write it as HOST:PORT"),
    (
        r"Domain name not found|Name or service not known|DNS resolution failed|errors resolving|lookup failed",
        "its host name cannot be resolved; check the address",
    ),
    (r"Connection refused", f"nothing listens there; {CHECK}"),
    (r"No route to host|Network is unreachable|Host is unreachable", f"no network leads there; {CHECK}"),
    (
        r"Hostname Verification Check failed",
        "its certificate has another name or role; use an address that its certificate has (gangline certs show)",
    ),
    (
        r"certificate has expired",
        "its certificate has expired; renew it there with gangline certs rotate",
    ),
    (
        r"certificate is not yet valid",
        "its certificate is not valid yet; compare the clocks of both machines",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "its certificate is of an authority that is not trusted here; give the ca.crt of its cluster",
    ),
    (r"WRONG_VERSION_NUMBER", "it does not use TLS, and this side does; leave the CA file out, or check the port"),
    (
        r"failed to connect to all addresses.*Socket closed",
        "it closed the connection before the first call; if it uses TLS, give its ca.crt (gangline login --ca-file, or "
        "[tls] in the settings of a service), else see its log",
    ),
    (r"SSL|TLS|CERTIFICATE|[Hh]andshake", "the other side speaks another protocol; check the port"),
    (r"[Tt]imed out|[Tt]imeout|FD [Ss]hutdown", f"it did not answer in time; {CHECK}"),
    (r"No such file or directory", "there is no such socket; check that the service runs"),
)
# grpc's messages for a call that found no connection. No byte of such a call was sent, so it has had no effect.
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed", "errors resolving")
_LOST = "the connection was lost"
_TOO_LARGE = re.compile(r"message larger than max \((\d+) vs\. (\d+)\)")
_BY_TEXT = (
    (
        r"[Ii]nvalid metadata|[Ii]llegal (header|metadata)",
        "cannot be called with this token; give a token of plain letters and signs",
    ),
    (r"metadata size exceeds", "is sent or sends too much metadata; check the length of the token"),
    (
        r"deserializing|serializing|[Ff]ailed to parse|unmarshal",
        "sends or gets messages of another version; use one version for all programs",
    ),
    (
        r"[Ss]tream removed|Socket closed|Connection reset|GOAWAY|Broken pipe|RST_STREAM|Channel closed",
        "closed the connection; try again",
    ),
    (r"http2 header with status|http status code|HTTP status", "is no gRPC server; give the port of its gRPC server"),
)
_BY_STATUS = {
    "UNIMPLEMENTED": "does not have this call; it is of another version, or no service of Gangline",
    "RESOURCE_EXHAUSTED": "is asked for too much at a time; try again with less",
    "CANCELLED": "ended the call; try again",
    "UNAUTHENTICATED": "refused the token; check it",
    "PERMISSION_DENIED": "does not allow this call; ask an administrator",
}


def unreachable(details: str, remedy: str = CHECK) -> TransportFault:
    """Words grpc's text for a peer that it could not reach or lost. remedy: for a peer that does not answer."""
    is_unsent = any(text in details for text in _NEVER_SENT)
    words = next((words for pattern, words in _UNREACHABLE if re.search(pattern, details)), _LOST)
    return TransportFault(words.replace(CHECK, remedy), Effect.NONE if is_unsent else Effect.UNKNOWN)


def refused(status: str, details: str) -> str:
    """Words the failure of a call for a reason other than the connection. status: the name of grpc's status. The clause
    follows the name of the peer."""
    sizes = _TOO_LARGE.search(details)
    if sizes is not None:
        return f"cannot pass a message of {sizes[1]} bytes, above the limit of {sizes[2]}; ask for less at a time"
    by_text = next((words for pattern, words in _BY_TEXT if re.search(pattern, details)), "")
    return by_text or _BY_STATUS.get(status, "failed by an error of its own; see its log")
