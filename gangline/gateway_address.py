"""PURE: the addresses of a cluster's gateways, as users write them.

An address is host:port; a port that is missing is 8081. Commas separate the addresses of several gateways. An IPv6
address has brackets, as [fd00::7]:8081. Used by gangline.login and by the command `gangline login`.
"""

from __future__ import annotations

import ipaddress
import re

from gangline.errors import GanglineError, invalid

DEFAULT_PORT = 8081
_EXAMPLE = "write host:port, for several gateways gpu1:8081,gpu2:8081"
# Names with underscores are no host names of the DNS, but /etc/hosts and containers have them.
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")


def parse_addresses(text: str, source: str) -> tuple[str, ...]:
    """Returns each address once, as host:port, in the order of the text. source: the noun for messages that says where
    the text is from. Raises GanglineError `login.bad_address`."""
    return tuple(dict.fromkeys(_parse(part.strip(), source) for part in text.split(",")))


def _parse(address: str, source: str) -> str:
    if not address:
        raise _bad(source, "an empty address")
    if "://" in address:
        raise _bad(source, f"{address!r}, which is a URL")
    host, port = _split(address, source)
    if not port.isascii() or not port.isdigit() or len(port) > 5 or not 1 <= int(port) <= 65535:
        raise _bad(source, f"{address!r}, whose port is no number from 1 to 65535")
    return f"{host}:{int(port)}"


def _split(address: str, source: str) -> tuple[str, str]:
    """Splits an address into its host, which keeps its brackets, and its port."""
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or not _is_ipv6(host) or (rest and not rest.startswith(":")):
            raise _bad(source, f"{address!r}, which has no IPv6 address in its brackets")
        return f"[{host}]", rest[1:] if rest else str(DEFAULT_PORT)
    if address.count(":") > 1:
        hint = f"; write it in brackets, as [{address}]:{DEFAULT_PORT}" if _is_ipv6(address) else ""
        raise _bad(source, f"{address!r}, which has more than one colon{hint}")
    host, colon, port = address.partition(":")
    if not _HOST.fullmatch(host):
        raise _bad(source, f"{address!r}, whose host is no name and no IP address")
    return host, port if colon else str(DEFAULT_PORT)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _bad(source: str, what: str) -> GanglineError:
    return invalid("login.bad_address", f"{source} has {what}; {_EXAMPLE}")
