"""Routes of a browser's session. It is one of the house's sessions; its token is in a cookie that no script can read.

`POST /api/v1/session` needs no token; admission asks for the page's header in its place.
"""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from gangline.domain.user import OneTimeKey as OneTimeKeyRecord
from gangline.domain.user import Session, hash_password
from gangline.errors import invalid
from services.gateway.http.admission import Cases, Open, bundle_of
from services.gateway.http.answer import Answer
from services.gateway.http.browser.cookie_rule import make_cookie
from services.gateway.http.model import Body
from services.gateway.http.route import ERRORS, Route
from services.gateway.http.user import User, UserAnswer

router = APIRouter(prefix="/api/v1", tags=["session"], route_class=Route, responses=ERRORS)


class NewSession(Body, example={"username": "ann", "password": "a-good-password"}):
    """Opens a session: either by username and password, or by a one-time key."""

    username: str = ""
    password: str = ""
    key: str = ""  # from POST /api/v1/session/keys, or from `gangline open`
    # path of the page as the browser sees it, for which the cookie is set; a proxy may have put something before it
    base_path: str = Field(default="/", max_length=500)


class OneTimeKey(Answer, record=OneTimeKeyRecord): ...


class OneTimeKeyAnswer(Answer):
    key: OneTimeKey


class SessionEnd(Answer):
    """Is empty."""


@router.post("/session", openapi_extra={"security": []})
async def post_session(body: NewSession, request: Request, open_cases: Open) -> UserAnswer:
    """Opens a session of 7 days, and sets its cookie. The request needs the header `X-Gangline-Page: 1`, as do all
    requests that the cookie authorises, except a visit to an address. Programs use a token."""
    if bool(body.key) == bool(body.username):
        raise invalid("session.one_of", "give either username and password, or a one-time key")
    peer = request.client.host if request.client is not None else ""
    if body.key:
        caller = open_cases.logins.identify_key(body.key, peer)
        session = await bundle_of(request).of(caller).users.use_key(body.key)
    else:
        session = await open_cases.logins.log_in(body.username, hash_password(body.password), peer)
    answer = UserAnswer(user=User.model_validate(session.user))
    cluster_id = open_cases.cluster.identify()
    return _with_cookie(answer, session, cluster_id, body.base_path, request)  # type: ignore[return-value]  # its JSON


@router.delete("/session")
async def delete_session(
    request: Request,
    response: Response,
    cases: Cases,
    open_cases: Open,
    basePath: str = "/",  # noqa: N803  the API's names are in camel case
    *,
    everywhere: bool = False,
) -> SessionEnd:
    """Ends the caller's session at every gateway, and removes its cookie. basePath: as for the login. everywhere: ends
    all sessions of the caller, but no access token."""
    if everywhere:
        await cases.users.log_out_everywhere()
    else:
        await cases.users.log_out(request.state.token or "")
    cluster_id, is_secure = open_cases.cluster.identify(), request.url.scheme == "https"
    response.headers["set-cookie"] = make_cookie("-", cluster_id, basePath, 0, is_secure=is_secure)
    return SessionEnd()


@router.post("/session/keys")
async def post_key(request: Request, cases: Cases) -> OneTimeKeyAnswer:
    """Makes a key that opens one session of the caller in a browser within 10 minutes, at GATEWAY/enter#key=KEY. A key
    that a session makes opens one that ends no later."""
    return OneTimeKeyAnswer(key=OneTimeKey.model_validate(cases.users.create_key(request.state.token or "")))


def _with_cookie(answer: Answer, session: Session, cluster_id: str, base_path: str, request: Request) -> JSONResponse:
    seconds = max(1, int(session.ends_at - time.time()))
    cookie = make_cookie(session.token, cluster_id, base_path, seconds, is_secure=request.url.scheme == "https")
    headers = {"set-cookie": cookie, "cache-control": "no-store"}
    return JSONResponse(answer.model_dump(mode="json", by_alias=True), headers=headers)
