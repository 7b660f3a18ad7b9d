"""What passes between a browser and a task."""

from __future__ import annotations

import pytest

from services.gateway.http.tunnel.proxy_rule import (
    Headers,
    ProxyTarget,
    cookie_of,
    is_of_other_site,
    narrow_cookie,
    own_cookie,
    parse_head,
    parse_target,
    request_headers,
    response_headers,
    take_token,
)

TARGET = ProxyTarget(12, "", "/lab")
HOST = b"gpu1:8080"


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/proxy/12/lab", TARGET),
        ("/proxy/12", ProxyTarget(12, "", "")),
        ("/proxy/12.00ff-0a/", ProxyTarget(12, "00ff-0a", "/")),
        ("/proxy/", None),
        ("/proxy/12x/lab", None),
        ("/proxy/12.XY/", None),
        ("/proxy/../api", None),
    ],
)
def test_an_address_names_a_task(path: str, target: ProxyTarget | None) -> None:
    assert parse_target(path) == target


def test_the_token_leaves_the_address() -> None:
    assert take_token("a=1&token=t.k&b=") == ("t.k", "a=1&b=")
    assert take_token("a=1") == ("", "a=1")


def test_nothing_that_authenticates_a_user_reaches_the_task() -> None:
    given: Headers = [
        (b"host", HOST), (b"authorization", b"Bearer secret"),
        (b"cookie", b"gangline_proxy_5b3f=secret; gangline_session_5b3f=secret; _xsrf=2"),
        (b"Cookie", b"gangline_proxy=secret"), (b"connection", b"keep-alive"), (b"x-xsrftoken", b"2"),
    ]  # fmt: skip
    kept = request_headers(given)
    assert kept == [(b"host", HOST), (b"x-xsrftoken", b"2"), (b"cookie", b"_xsrf=2"), (b"connection", b"close")]
    assert b"secret" not in b"".join(name + value for name, value in request_headers(given, is_upgrade=True))
    assert request_headers([(b"upgrade", b"websocket")], is_upgrade=True) == [
        (b"connection", b"Upgrade"),
        (b"upgrade", b"websocket"),
    ]


@pytest.mark.parametrize(
    ("cookie", "kept"),
    [
        ("a=1; Path=/; HttpOnly", "a=1; HttpOnly; Path=/proxy/12/"),
        ("a=1; path=/proxy/12/lab", "a=1; Path=/proxy/12/lab"),
        ("a=1; Path=/proxy/123/", "a=1; Path=/proxy/12/"),
        ("a=1; Path=/proxy/12/../13/", "a=1; Path=/proxy/12/"),
        ("a=1; Domain=example.org; Secure", "a=1; Secure; Path=/proxy/12/"),
        ("gangline_proxy=mine; Path=/proxy/12/", ""),
        ("gangline_proxy_5b3f=mine; Path=/proxy/12/", ""),
        ("gangline_proxy\t=mine", ""),
        ("gangline_session_5b3f=mine; Path=/api/", ""),
        ("=gangline_proxy=mine", ""),
        ("gangline_proxy", ""),
        ("a=1", "a=1; Path=/proxy/12/"),
    ],
)
def test_a_cookie_of_the_task_is_for_its_path_alone(cookie: str, kept: str) -> None:
    assert narrow_cookie(cookie, TARGET.base) == kept


def test_an_answer_acts_on_the_path_of_its_task_alone() -> None:
    answer: Headers = [
        (b"Content-Type", b"text/html"), (b"Set-Cookie", b"a=1; Path=/"), (b"Service-Worker-Allowed", b"/"),
        (b"Clear-Site-Data", b'"*"'), (b"Connection", b"close"), (b"Set-Cookie", b"gangline_proxy=x"),
    ]  # fmt: skip
    *kept, (name, policy) = response_headers(answer, TARGET, HOST)
    assert kept == [(b"content-type", b"text/html"), (b"set-cookie", b"a=1; Path=/proxy/12/")]
    assert name == b"content-security-policy"
    assert b"connect-src http://gpu1:8080/proxy/12/ https://gpu1:8080/proxy/12/ ws://gpu1:8080/proxy/12/" in policy
    assert b"form-action http://gpu1:8080/proxy/12/ " in policy


def test_a_host_cannot_write_the_policy() -> None:
    policy = response_headers([], TARGET, b"x; connect-src *")[-1][1]
    assert b"*" not in policy


def test_no_header_hides_behind_a_damaged_line() -> None:
    assert parse_head(b"HTTP/1.1 101 Ok\r\nA: 1\r\n Set-Cookie : b=2") == (
        b"HTTP/1.1 101 Ok",
        [(b"A", b"1"), (b"Set-Cookie", b"b=2")],
    )
    for damaged in (b"A: 1\nSet-Cookie: b=2; Path=/", b"A: 1\rSet-Cookie: b=2", b"A: 1\0"):
        assert parse_head(b"HTTP/1.1 101 Ok\r\n" + damaged) is None
    assert parse_head(b"HTTP/1.1 101 Ok\nSet-Cookie: b=2\r\nA: 1") is None


def test_an_upgrade_keeps_its_connection() -> None:
    answer: Headers = [(b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"), (b"Sec-WebSocket-Accept", b"x")]
    kept = response_headers(answer, TARGET, HOST, is_upgrade=True)
    assert [name for name, _ in kept] == [b"upgrade", b"connection", b"sec-websocket-accept"]


def test_our_cookie_is_of_one_path_and_out_of_reach_of_scripts() -> None:
    cookie = own_cookie("t.k", "5b-3f", TARGET, 60, is_secure=True)
    assert cookie == b"gangline_proxy_5b-3f=t.k; Path=/proxy/12/; Max-Age=60; HttpOnly; SameSite=Lax; Secure"
    assert cookie_of([(b"cookie", b"a=1; gangline_proxy_5b-3f=t.k")], "5b-3f") == "t.k"
    assert cookie_of([(b"cookie", b"xgangline_proxy_5b-3f=t.k")], "5b-3f") == ""


def test_a_cookie_of_another_cluster_on_this_host_proves_nothing() -> None:
    sent = [(b"cookie", b"gangline_proxy_aa=other; gangline_proxy_bb=own; gangline_proxy=old")]
    assert [cookie_of(sent, cluster_id) for cluster_id in ("aa", "bb", "cc")] == ["other", "own", ""]
    assert request_headers(sent) == [(b"connection", b"close")]


@pytest.mark.parametrize(
    ("origin", "is_other"),
    [(b"http://gpu1:8080", False), (b"https://gpu1:8080", False), (b"http://gpu1:8081", True), (b"null", True)],
)
def test_pages_of_other_sites_are_told_by_their_origin(origin: bytes, is_other: bool) -> None:
    assert is_of_other_site([(b"host", HOST), (b"origin", origin)]) is is_other
    assert not is_of_other_site([(b"host", HOST)])


@pytest.mark.parametrize(
    "name",
    [
        "X-Accel-Redirect", "X-Accel-Buffering", "X-Accel-Expires", "X-Sendfile", "X-LIGHTTPD-send-file",
        "X-LiteSpeed-Location", "X-Reproxy-URL", "Surrogate-Control", "CDN-Cache-Control", "Clear-Site-Data",
        "Strict-Transport-Security", "Alt-Svc", "Service-Worker-Allowed", "Public-Key-Pins", "NEL", "Report-To",
        "Reporting-Endpoints", "Origin-Agent-Cluster", "WWW-Authenticate", "Proxy-Authenticate", "Transfer-Encoding",
        "Refresh", "Server", "Date", "Accept-CH", "Critical-CH", "Set-Cookie2", "Supports-Loading-Mode", "X-Unknown",
    ],
)  # fmt: skip
def test_headers_that_act_beyond_the_task_stay_behind(name: str) -> None:
    for is_upgrade in (False, True):
        answered = response_headers([(name.encode(), b"/etc/passwd")], TARGET, HOST, is_upgrade=is_upgrade)
        assert b"/etc/passwd" not in [value for _, value in answered]


@pytest.mark.parametrize("name", ["Content-Type", "ETag", "Location", "Cache-Control", "X-Jupyter-Version", "Vary"])
def test_headers_of_an_answer_arrive(name: str) -> None:
    assert response_headers([(name.encode(), b"x")], TARGET, HOST)[0] == (name.lower().encode(), b"x")


@pytest.mark.parametrize(
    ("host", "is_https", "is_without_windows"),
    [
        (b"gpu1:8080", False, True), (b"gpu1:8080", True, False), (b"10.0.0.7", False, True),
        (b"127.0.0.1:8080", False, False), (b"localhost:8080", False, False), (b"[::1]:8080", False, False),
        (b"a.localhost", False, False), (b"localhost.evil.example", False, True), (b"127.0.0.1.example", False, True),
    ],
)  # fmt: skip
def test_pages_open_windows_only_where_browsers_cut_ours_off(
    host: bytes, is_https: bool, is_without_windows: bool
) -> None:
    headers = dict(response_headers([], TARGET, host, is_https=is_https))
    policy = headers[b"content-security-policy"]
    assert (b"; sandbox allow-scripts " in policy) is is_without_windows
    assert b"allow-popups" not in policy
    assert b"allow-top-navigation" not in policy
