"""grpc's own sentences become Gangline's, and a call of which nothing was sent has had no effect."""

from __future__ import annotations

import pytest

from gangline.errors import Effect
from gangline.protocol.transport_fault import refused, unreachable

_OTHER_VERSION = "does not have this call; it is of another version, or no service of Gangline"
_OTHER_MESSAGES = "sends or gets messages of another version; use one version for all programs"
_ALL = "failed to connect to all addresses; last error: "
UNREACHABLE = [
    (
        _ALL + "UNKNOWN: ipv4:127.0.0.1:9: Failed to connect to remote host: Connection refused",
        "nothing listens there; check the address and that the service runs",
        Effect.NONE,
    ),
    (
        _ALL + "UNAUTHENTICATED: ipv4:1.2.3.4:80: Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, "
        "got frame type 80) (Trying to connect an http1.x server (HTTP status 401))",
        "an HTTP server answers there; give the port of its gRPC server",
        Effect.NONE,
    ),
    (
        "errors resolving http://127.0.0.1:1: [field:hostname lookup error:address lookup failed for "
        "http://127.0.0.1:1: Misformatted domain name]",
        "this is no address; write it as HOST:PORT",
        Effect.NONE,
    ),
    (
        "errors resolving localhost:abc: [field:hostname lookup error:Failed to parse port in name: localhost:abc]",
        "this is no address; write it as HOST:PORT",
        Effect.NONE,
    ),
    (
        "errors resolving a.invalid:1: [field:hostname lookup error:address lookup failed for a.invalid:1: "
        "Domain name not found]",
        "its host name cannot be resolved; check the address",
        Effect.NONE,
    ),
    (
        _ALL + "UNKNOWN: ipv4:10.9.9.9:1: connect: No route to host (113)",
        "no network leads there; check the address and that the service runs",
        Effect.NONE,
    ),
    (
        _ALL + "UNAVAILABLE: ipv4:10.9.9.9:1: FD Shutdown",
        "it did not answer in time; check the address and that the service runs",
        Effect.NONE,
    ),
    ("Socket closed", "the connection was lost", Effect.UNKNOWN),
    ("recvmsg:Connection reset by peer", "the connection was lost", Effect.UNKNOWN),
    ("a sentence of a later grpc", "the connection was lost", Effect.UNKNOWN),
]


@pytest.mark.parametrize(("details", "words", "effect"), UNREACHABLE)
def test_a_peer_that_cannot_be_reached(details: str, words: str, effect: Effect) -> None:
    fault = unreachable(details)
    assert (fault.words, fault.effect) == (words, effect)


@pytest.mark.parametrize(
    ("status", "details", "words"),
    [
        (
            "RESOURCE_EXHAUSTED",
            "CLIENT: Received message larger than max (70000000 vs. 67108864)",
            "cannot pass a message of 70000000 bytes, above the limit of 67108864; ask for less at a time",
        ),
        (
            "RESOURCE_EXHAUSTED",
            "SERVER: Sent message larger than max (5 vs. 4)",
            "cannot pass a message of 5 bytes, above the limit of 4; ask for less at a time",
        ),
        ("INTERNAL", "Invalid metadata", "cannot be called with this token; give a token of plain letters and signs"),
        ("UNIMPLEMENTED", "Method not found!", _OTHER_VERSION),
        ("UNKNOWN", "Unexpected <class 'KeyError'>: 'x'", "failed by an error of its own; see its log"),
        ("INTERNAL", "Exception deserializing request!", _OTHER_MESSAGES),
        ("DATA_LOSS", "a sentence of a later grpc", "failed by an error of its own; see its log"),
    ],
)
def test_a_call_that_failed_for_another_reason(status: str, details: str, words: str) -> None:
    assert refused(status, details) == words
