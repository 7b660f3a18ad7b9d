"""PURE: what passes between a browser and a task, and what does not.

A task's pages share the gateway's origin with its API and with other tasks. So nothing that authenticates a user
reaches the task. Nothing that the task answers may act outside of its own path: no cookie, no service worker, no
connection of its pages. A browser proves who it is with a token in the address, which becomes a cookie for the path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from services.gateway.http.browser.cookie_rule import COOKIE as SESSION_COOKIE
from services.gateway.http.browser.cookie_rule import named_by_cluster

Headers = list[tuple[bytes, bytes]]

PREFIX = "/proxy/"
# What the names of all cookies for tasks begin with.
COOKIE = "gangline_proxy"
TOKEN_PARAMETER = "token"  # noqa: S105 - the name of a parameter
# A cookie is replaced by a new one when less than this share of its time is left.
RENEWAL_SHARE = 0.5

_TARGET = re.compile(r"/proxy/(\d{1,18})(?:\.([0-9a-f-]{1,36}))?(/.*|$)", re.DOTALL)
# Of one connection, not of the message (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"transfer-encoding", b"upgrade",
})  # fmt: skip
# Of a task's answer these reach the browser, and nothing else does. Other headers would act on the whole origin
# (Clear-Site-Data, Service-Worker-Allowed, Strict-Transport-Security, Alt-Svc), or are orders to a proxy in front of
# the gateway (X-Accel-Redirect and X-Sendfile make it send its own files), or are the gateway's own.
_ANSWERED = frozenset({
    b"accept-ranges", b"age", b"allow", b"cache-control", b"content-disposition", b"content-encoding",
    b"content-language", b"content-length", b"content-location", b"content-range",
    b"content-security-policy", b"content-security-policy-report-only", b"content-type",
    b"deprecation", b"etag", b"expires", b"last-modified", b"link", b"location", b"permissions-policy", b"pragma",
    b"referrer-policy", b"retry-after", b"server-timing", b"sourcemap", b"vary", b"warning",
    b"x-content-type-options", b"x-frame-options", b"x-request-id", b"x-xsrf-token", b"x-xsrftoken",
})  # fmt: skip
# Hosts to which browsers trust a connection without https.
_OWN_MACHINE = re.compile(rb"(?:(?:[a-z0-9-]+\.)*localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?", re.IGNORECASE)
# Everything that a sandbox can allow to a page, but windows and the navigation of others.
_WITHOUT_WINDOWS = (
    "sandbox allow-scripts allow-same-origin allow-forms allow-modals allow-downloads allow-pointer-lock "
    "allow-orientation-lock allow-presentation"
)
_ANSWERED_PREFIXES = (b"access-control-", b"cross-origin-", b"sec-websocket-", b"x-jupyter", b"x-ratelimit-")


@dataclass(frozen=True, slots=True)
class ProxyTarget:
    """The task that a path of the proxy names."""

    experiment_id: int  # experiment of the task
    code: str  # code in the id of a shell, as Determined's client has it; empty otherwise
    rest: str

    @property
    def base(self) -> str:
        """Returns the path below which everything belongs to the task."""
        return f"{PREFIX}{self.experiment_id}/"


def parse_target(path: str) -> ProxyTarget | None:
    """Returns None for a path that names no task."""
    match = _TARGET.fullmatch(path)
    return ProxyTarget(int(match.group(1)), match.group(2) or "", match.group(3)) if match else None


def take_token(query: str) -> tuple[str, str]:
    """Returns the token of the address, and the query without it."""
    pairs = parse_qsl(query, keep_blank_values=True)
    tokens = [value for name, value in pairs if name == TOKEN_PARAMETER]
    left = urlencode([pair for pair in pairs if pair[0] != TOKEN_PARAMETER])
    return (tokens[0] if tokens else ""), left


def cookie_name(cluster_id: str) -> str:
    """Returns the name of the cookie for a task. Two clusters on one host have tasks of the same number."""
    return named_by_cluster(COOKIE, cluster_id)


def cookie_of(headers: Iterable[tuple[bytes, bytes]], cluster_id: str) -> str:
    """Returns the value of this cluster's cookie; empty without one."""
    for part in _cookies(headers):
        name, _, value = part.partition("=")
        if name.strip() == cookie_name(cluster_id):
            return value.strip()
    return ""


def _cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    lines = [value.decode("latin-1") for name, value in headers if name.lower() == b"cookie"]
    return [part.strip() for line in lines for part in line.split(";") if part.strip()]


def _is_own_cookie(name: str) -> bool:
    """Whether it is a cookie of a gateway, which no task gets or sets; also one of another cluster on this host. The
    page's is not sent to these paths anyway."""
    return name.startswith((COOKIE, SESSION_COOKIE))


def is_of_other_site(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a page of another site made the request, by its Origin. A request without one is not."""
    values = {name.lower(): value for name, value in headers}
    origin = values.get(b"origin")
    if origin is None:
        return False
    return origin.partition(b"://")[2] != values.get(b"host", b"")


def request_headers(headers: Iterable[tuple[bytes, bytes]], *, is_upgrade: bool = False) -> Headers:
    """Returns the headers for the task: without the user's token and cookie, and those of the connection."""
    given = list(headers)
    kept: Headers = [
        (name, value)
        for name, value in given
        if name.lower() not in _HOP_BY_HOP and name.lower() not in (b"authorization", b"cookie", b"content-length")
    ]
    cookies = [part for part in _cookies(given) if not _is_own_cookie(part.partition("=")[0].strip())]
    if cookies:
        kept.append((b"cookie", "; ".join(cookies).encode("latin-1")))
    if is_upgrade:
        protocol = next((value for name, value in given if name.lower() == b"upgrade"), b"websocket")
        return [*kept, (b"connection", b"Upgrade"), (b"upgrade", protocol)]
    return [*kept, (b"connection", b"close")]


def response_headers(
    headers: Iterable[tuple[bytes, bytes]],
    target: ProxyTarget,
    host: bytes,
    *,
    is_upgrade: bool = False,
    is_https: bool = False,
) -> Headers:
    """Returns the headers for the browser. host: of the request, for the policy of the task's pages."""
    kept: Headers = []
    for name, value in headers:
        low = name.lower()
        if low == b"set-cookie":
            cookie = narrow_cookie(value.decode("latin-1"), target.base)
            if cookie:
                kept.append((low, cookie.encode("latin-1")))
        elif _is_answered(low) or (is_upgrade and low in (b"connection", b"upgrade")):
            kept.append((low, value))
    return kept if is_upgrade else [*kept, (b"content-security-policy", _policy(target, host, is_https=is_https))]


def _is_answered(low: bytes) -> bool:
    # The gateway's page is cut off from windows that task pages open, by a policy that theirs may not have.
    return low in _ANSWERED or (low != b"cross-origin-opener-policy" and low.startswith(_ANSWERED_PREFIXES))


def parse_head(head: bytes) -> tuple[bytes, Headers] | None:
    """Splits the head of a task's answer into its first line and its headers. Returns None for one with a line break or
    a NUL inside a line: a browser might read a header in it that `response_headers` has not seen."""
    line, *fields = head.split(b"\r\n")
    if re.search(rb"[\r\n\0]", line + b"".join(fields)):
        return None
    pairs = (field.partition(b":") for field in fields)
    return line, [(name.strip(), value.strip()) for name, _, value in pairs if name]


def narrow_cookie(cookie: str, base: str) -> str:
    """Returns a cookie that is sent to the task alone; empty for one with the name of ours, and for one without a name:
    a browser sends its value alone, which may look like ours."""
    pair, *attributes = [part.strip() for part in cookie.split(";")]
    name, sign, _ = pair.partition("=")
    if not name.strip() or _is_own_cookie(name.strip()) or not sign:
        return ""
    kept, path = [], base
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        if name.strip().lower() == "path":
            path = value.strip() if value.strip().startswith(base) and ".." not in value else base
        elif name.strip().lower() != "domain":
            kept.append(attribute)
    return "; ".join([pair, *kept, f"Path={path}"])


def own_cookie(token: str, cluster_id: str, target: ProxyTarget, seconds: int, *, is_secure: bool) -> bytes:
    secure = "; Secure" if is_secure else ""
    where = f"Path={target.base}; Max-Age={seconds}"
    text = f"{cookie_name(cluster_id)}={token}; {where}; HttpOnly; SameSite=Lax{secure}"
    return text.encode("latin-1")


def _policy(target: ProxyTarget, host: bytes, *, is_https: bool) -> bytes:
    """Returns a policy under which the task's pages connect to the task alone, on this origin. They may load what they
    like from elsewhere.

    A browser cuts a window of ours off from the task's page that opened it only over https, or where the host is its
    own machine. Elsewhere the task's pages open no window.
    """
    own = host.decode("latin-1") if re.fullmatch(rb"[A-Za-z0-9.\-:\[\]]{1,255}", host) else "invalid.invalid"
    places = " ".join(f"{scheme}://{own}{target.base}" for scheme in ("http", "https", "ws", "wss"))
    policy = f"connect-src {places} data: blob:; frame-src {places} data: blob:; form-action {places}"
    return (policy if is_https or _OWN_MACHINE.fullmatch(host) else f"{policy}; {_WITHOUT_WINDOWS}").encode("latin-1")
