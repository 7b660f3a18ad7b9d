"""The addresses of gateways: what users may write, what it means, and the one line for each mistake."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.errors import ErrorKind, GanglineError
from gangline.gateway_address import parse_addresses

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}(\.[a-z0-9-]{1,8}[a-z0-9]){0,2}", fullmatch=True)
ipv4 = st.ip_addresses(v=4).map(str)
ipv6 = st.ip_addresses(v=6).map(lambda address: f"[{address}]")
hosts = st.one_of(names, ipv4, ipv6)
ports = st.one_of(st.none(), st.integers(1, 65535))
spaces = st.text(" \t", max_size=2)


@given(st.lists(st.tuples(hosts, ports, spaces, spaces), min_size=1, max_size=5))
def test_each_gateway_is_there_once_with_its_port(gateways: list[tuple[str, int | None, str, str]]) -> None:
    text = ",".join(
        f"{before}{host}{'' if port is None else f':{port}'}{after}" for host, port, before, after in gateways
    )
    wanted = dict.fromkeys(f"{host}:{8081 if port is None else port}" for host, port, _, _ in gateways)
    parsed = parse_addresses(text, "GANGLINE_GATEWAY")
    assert parsed == tuple(wanted)
    # The text that is stored means the same.
    assert parse_addresses(",".join(parsed), "it") == parsed


@given(st.text(max_size=40))
def test_any_text_is_addresses_or_one_line(text: str) -> None:
    refusal: GanglineError | None = None
    parsed: tuple[str, ...] = ()
    try:
        parsed = parse_addresses(text, "GANGLINE_GATEWAY")
    except GanglineError as error:
        refusal = error
    if refusal is not None:
        assert (refusal.code, refusal.kind) == ("login.bad_address", ErrorKind.INVALID)
        assert refusal.message.startswith("GANGLINE_GATEWAY has ")
        assert len(refusal.message.splitlines()) == 1
    for address in parsed:
        host, _, port = address.rpartition(":")
        assert 1 <= int(port) <= 65535
        assert not set(host) & set(" ,/@")
        if host.startswith("["):
            ipaddress.IPv6Address(host[1:-1])


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "an empty address"),
        ("a,,b", "an empty address"),
        ("a:8081,", "an empty address"),
        ("http://gpu1:8080", "'http://gpu1:8080', which is a URL"),
        ("gpu1:", "'gpu1:', whose port is no number from 1 to 65535"),
        ("gpu1:http", "'gpu1:http', whose port is no number from 1 to 65535"),
        ("gpu1:0", "'gpu1:0', whose port is no number from 1 to 65535"),
        ("gpu1:65536", "'gpu1:65536', whose port is no number from 1 to 65535"),
        ("gpu1:８０", "'gpu1:８０', whose port is no number from 1 to 65535"),
        ("gpu1 gpu2", "'gpu1 gpu2', whose host is no name and no IP address"),
        (":8081", "':8081', whose host is no name and no IP address"),
        ("-x:1", "'-x:1', whose host is no name and no IP address"),
        ("[gpu1]:1", "'[gpu1]:1', which has no IPv6 address in its brackets"),
        ("[::1", "'[::1', which has no IPv6 address in its brackets"),
        ("[::1]8081", "'[::1]8081', which has no IPv6 address in its brackets"),
        ("::1", "'::1', which has more than one colon; write it in brackets, as [::1]:8081"),
        ("a:1:2", "'a:1:2', which has more than one colon"),
    ],
)
def test_mistake_is_named_with_what_to_write(text: str, mistake: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_addresses(text, "GANGLINE_GATEWAY")
    assert caught.value.message == (
        f"GANGLINE_GATEWAY has {mistake}; write host:port, for several gateways gpu1:8081,gpu2:8081"
    )
