"""When the cookie of a session authorises a request."""

from __future__ import annotations

import pytest

from gangline.errors import GanglineError
from services.gateway.http.browser.cookie_rule import cookie_name, guard_headers, make_cookie, session_of

TOKEN = "login:1790000000:ann:0af3"
CLUSTER = "5b3f"
NAME = cookie_name(CLUSTER)
COOKIE_VALUE = make_cookie(TOKEN, CLUSTER, "/", 60, is_secure=False).partition(";")[0].encode()
PAGE = (b"x-gangline-page", b"1")
HOST = (b"host", b"gpu1:8080")


def headers(*given: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [HOST, (b"cookie", b"a=b; " + COOKIE_VALUE), *given]


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("POST", [PAGE]),
        ("POST", [PAGE, (b"sec-fetch-site", b"same-origin"), (b"origin", b"http://proxy.example")]),
        ("POST", [PAGE, (b"origin", b"https://gpu1:8080")]),
        ("GET", [PAGE, (b"sec-fetch-site", b"none")]),
        ("GET", [(b"sec-fetch-site", b"none"), (b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document")]),
    ],
)
def test_request_of_our_page_is_admitted(method: str, given: list[tuple[bytes, bytes]]) -> None:
    assert session_of(method, headers(*given), CLUSTER) == TOKEN


@pytest.mark.parametrize(
    ("method", "given", "code"),
    [
        # A form of another site, a script of another site, and one of an old browser.
        ("POST", [(b"sec-fetch-site", b"cross-site")], "auth.other_site"),
        ("POST", [PAGE, (b"sec-fetch-site", b"same-site")], "auth.other_site"),
        ("POST", [PAGE, (b"origin", b"http://evil.example")], "auth.other_site"),
        # What a task's page can make although its policy lets it connect nowhere: images, scripts, frames, forms.
        ("GET", [(b"sec-fetch-site", b"same-origin"), (b"sec-fetch-dest", b"image")], "auth.page_header"),
        ("GET", [(b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"iframe")], "auth.page_header"),
        ("POST", [(b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document")], "auth.page_header"),
        ("GET", [], "auth.page_header"),
        ("GET", [(b"x-gangline-page", b"2")], "auth.page_header"),
    ],
)
def test_request_that_may_be_of_another_page_is_refused(
    method: str, given: list[tuple[bytes, bytes]], code: str
) -> None:
    with pytest.raises(GanglineError) as refused:
        session_of(method, headers(*given), CLUSTER)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "cookies", [b"", b"a=b", f"{NAME}=".encode(), f"{NAME}=%%%".encode(), b"gangline_session=bG9naW4"]
)
def test_without_a_session_there_is_no_token(cookies: bytes) -> None:
    assert session_of("GET", [HOST, (b"cookie", cookies), PAGE], CLUSTER) is None


def test_cookie_is_for_the_api_below_the_path_of_the_page_alone() -> None:
    cookie = make_cookie(TOKEN, CLUSTER, "/lab/gangline/", 60, is_secure=True)
    assert cookie.endswith("; Path=/lab/gangline/api/; Max-Age=60; HttpOnly; SameSite=Strict; Secure")
    for hostile in ("/a;Domain=evil.example/", "/x", "", "lab/", "/\r\nSet-Cookie: a=b/", "//evil.example;/"):
        assert "; Path=/api/; " in make_cookie(TOKEN, CLUSTER, hostile, 60, is_secure=False)


def test_every_answer_has_a_policy_and_keeps_its_own() -> None:
    bare = dict(guard_headers([(b"content-type", b"text/plain")]))
    assert bare[b"content-security-policy"] == b"default-src 'none'; frame-ancestors 'none'"
    assert (bare[b"cross-origin-opener-policy"], bare[b"x-content-type-options"]) == (b"same-origin", b"nosniff")
    own = guard_headers([(b"Content-Security-Policy", b"default-src 'self'")])
    assert [value for name, value in own if name.lower() == b"content-security-policy"] == [b"default-src 'self'"]


def test_two_sessions_are_refused_and_one_that_comes_twice_is_not() -> None:
    other = make_cookie(TOKEN + "0", CLUSTER, "/", 60, is_secure=False).partition(";")[0].encode()
    for cookies in ([(b"cookie", COOKIE_VALUE + b"; " + other)], [(b"cookie", other), (b"cookie", COOKIE_VALUE)]):
        with pytest.raises(GanglineError) as refused:
            session_of("GET", [HOST, *cookies, PAGE], CLUSTER)
        assert refused.value.code == "auth.two_sessions"
    assert session_of("GET", [HOST, (b"cookie", COOKIE_VALUE + b"; " + COOKIE_VALUE), PAGE], CLUSTER) == TOKEN


def test_the_session_of_another_cluster_on_this_host_does_not_matter() -> None:
    other = make_cookie(TOKEN + "0", "77aa", "/", 60, is_secure=False).partition(";")[0].encode()
    assert session_of("GET", [HOST, (b"cookie", other + b"; " + COOKIE_VALUE), PAGE], CLUSTER) == TOKEN
    assert session_of("GET", [HOST, (b"cookie", other), PAGE], CLUSTER) is None


def test_an_id_adds_nothing_to_the_cookie_but_its_letters() -> None:
    assert make_cookie("t", "a; Domain=evil.example", "/", 60, is_secure=False).startswith(
        "gangline_session_aDomainevilexample="
    )
