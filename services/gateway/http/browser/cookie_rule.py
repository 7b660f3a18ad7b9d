"""PURE: when the cookie of a session authorises a request, and which headers keep other pages away from it.

A task's pages (`/proxy/ID/`) have the origin of the gateway, so the origin alone does not tell our page from a task's.
Their policy lets them connect to their own task alone (`tunnel/proxy_rule.py`). So a request that only a script can
make, which has our header, is our page's. A task's page can still open an address of the gateway in a window. It would
act through that window with our origin, so every answer that is not a task's has a policy of its own, and is cut off
from the window that opened it. Browsers do the latter over https and for their own machine alone; elsewhere a task's
pages open no windows.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable

from gangline.errors import ErrorKind, GanglineError, unauthenticated

RawHeaders = Iterable[tuple[bytes, bytes]]

# What the names of all sessions' cookies begin with.
COOKIE = "gangline_session"
PAGE_HEADER = "x-gangline-page"
# The cookie is for these paths below the page's own. Tasks are not among them.
_COOKIE_FOLDER = "api/"
# The path below which a proxy serves the page, with a slash at both ends.
_BASE_PATH = re.compile(r"/(?:[A-Za-z0-9._~-]+/)*")
# Ids are of letters and digits; no other one may end the name.
_NO_NAME = re.compile(r"[^A-Za-z0-9-]")
# What an answer of the API and every error has: whatever a browser shows of it may load and run nothing.
_POLICY = b"default-src 'none'; frame-ancestors 'none'"
# The page has no script, style or connection but those of its own origin.
PAGE_POLICY = (
    b"default-src 'self'; base-uri 'self'; form-action 'self'; object-src 'none'; frame-src 'none'; "
    b"frame-ancestors 'none'"
)
_FIXED_HEADERS = (
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)


def guard_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Returns the headers of an answer that is not a task's, completed. One with a policy of its own keeps it."""
    names = {name.lower() for name, _ in headers}
    added = ((b"content-security-policy", _POLICY), *_FIXED_HEADERS)
    return [*headers, *((name, value) for name, value in added if name not in names)]


def cookie_name(cluster_id: str) -> str:
    """Returns the name of a session's cookie, which has the cluster's id. A browser keeps one cookie of a name for all
    ports of a host, so two clusters there would end each other's sessions. All gateways of a cluster read it."""
    return named_by_cluster(COOKIE, cluster_id)


def named_by_cluster(begin: str, cluster_id: str) -> str:
    """Returns a cookie's name that no other cluster of the same host uses."""
    return f"{begin}_{_NO_NAME.sub('', cluster_id)}"


def session_of(method: str, headers: RawHeaders, cluster_id: str) -> str | None:
    """Returns the token of the session that authorises this request by its cookie; None without a cookie of this
    cluster.

    Raises GanglineError `auth.page_header` for a request that may be another page's: one without our header that is
    more than a user's visit to an address. Raises `auth.other_site` for one of another site, and `auth.two_sessions`
    for two cookies: the script of a task's page can add one of another user, for a longer path, to ours.
    """
    given = list(headers)
    values = {name.lower(): value.decode("latin-1") for name, value in given}
    cookies = "; ".join(value.decode("latin-1") for name, value in given if name.lower() == b"cookie")
    tokens = _tokens_in(cookies, cookie_name(cluster_id))
    if not tokens:
        return None
    check_page(values, is_visit_allowed=method in ("GET", "HEAD"))
    if len(tokens) > 1:
        raise unauthenticated(
            "auth.two_sessions", "this browser has two sessions; delete its cookies of this site, and sign in again"
        )
    return next(iter(tokens))


def check_page(headers: dict[bytes, str], *, is_visit_allowed: bool = False) -> None:
    """Admits requests of our page. headers: by their names in lower case. is_visit_allowed: admits also a user's visit
    to the address, such as a download. Raises GanglineError `auth.page_header`, `auth.other_site`."""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        is_foreign = site not in ("same-origin", "none")
    else:
        origin = headers.get(b"origin")
        is_foreign = origin is not None and origin.partition("://")[2] != headers.get(b"host", "")
    if is_foreign:
        raise GanglineError("auth.other_site", "a page of another site may not use this session", ErrorKind.FORBIDDEN)
    is_visit = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) == ("navigate", "document")
    if headers.get(PAGE_HEADER.encode()) != "1" and not (is_visit and is_visit_allowed):
        raise GanglineError(
            "auth.page_header",
            "a session's cookie counts only with the header X-Gangline-Page: 1; programs use a token instead",
            ErrorKind.FORBIDDEN,
        )


def make_cookie(token: str, cluster_id: str, base_path: str, seconds: int, *, is_secure: bool) -> str:
    """Returns the value of Set-Cookie. base_path: of the page, as its browser sees it, such as "/" or "/lab/".
    seconds: 0 removes the cookie."""
    value = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    path = base_path if _BASE_PATH.fullmatch(base_path) else "/"
    secure = "; Secure" if is_secure else ""
    where = f"Path={path}{_COOKIE_FOLDER}; Max-Age={seconds}"
    return f"{cookie_name(cluster_id)}={value}; {where}; HttpOnly; SameSite=Strict{secure}"


def _tokens_in(cookies: str, own_name: str) -> set[str]:
    tokens = set()
    for part in cookies.split(";"):
        name, _, value = part.strip().partition("=")
        if name == own_name and value:
            try:
                padded = value + "=" * (-len(value) % 4)
                tokens.add(base64.b64decode(padded, altchars=b"-_", validate=True).decode())
            except (binascii.Error, ValueError):
                continue
    return tokens
