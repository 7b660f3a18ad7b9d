"""PURE: the peers of connections, which grpc and the kernel name differently.

grpc listens on IPv6 sockets only. So the kernel names an IPv4 peer "::ffff:10.0.0.1", and grpc names it
"ipv4:10.0.0.1:5000".
"""

from __future__ import annotations


def peer_host(peer: str) -> str:
    """Returns the host of a peer in gRPC's form, as "ipv4:10.0.0.1:5000" or "ipv6:%5B::1%5D:5000"."""
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return address.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")


def split_peer(peer: str) -> tuple[str, str]:
    """Returns the plain host and the port of a peer in gRPC's form."""
    return plain_host(peer_host(peer)), peer.rpartition(":")[2]


def plain_host(host: str) -> str:
    """Returns one text for each address: without its interface, and as IPv4 if it is one."""
    return host.partition("%")[0].removeprefix("::ffff:")
