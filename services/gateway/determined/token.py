"""Access tokens in Determined's form."""

from __future__ import annotations

import time

from gangline.domain.user import AccessTokenView
from gangline.errors import invalid
from services.gateway.determined.call import Call, Routes, instant, page_of, start_instant
from services.gateway.determined.values import Json, to_number
from services.gateway.usecase.lifespan import parse_lifespan


async def list_tokens(call: Call) -> Json:
    """Lists tokens. tokenIds: only these. username: only this user's. showInactive: ended ones, too."""
    ids = [to_number(text, "tokenIds") for text in call.query.getlist("tokenIds")]
    views = call.cases.users.list_tokens(
        call.query.get("username", ""), with_ended=bool(ids) or bool(call.is_set("showInactive"))
    )
    shown, pagination = page_of([view for view in views if not ids or view.id in ids], call)
    return {"tokenInfo": [_describe(view) for view in shown], "pagination": pagination}


async def create_token(call: Call) -> Json:
    """Takes v1PostAccessTokenRequest. The token is for this API; `gangline token create` makes those for ours."""
    name = call.cases.users.find_by_id(to_number(call.body.get("userId"), "userId")).name
    lifespan = parse_lifespan(call.text("lifespan"))
    view, secret = await call.cases.users.create_token(name, call.text("description"), lifespan, is_determined=True)
    return {"token": secret, "tokenId": view.id}


async def change_token(call: Call) -> Json:
    """Revokes a token. Its description stays as it is."""
    token_id = call.number("id")
    if call.body.get("setRevoked") is not True:
        raise invalid("request.lacking", "a token keeps its description; revoke it, and make another one")
    return {"tokenInfo": _describe(await call.cases.users.revoke_token(token_id))}


def _describe(view: AccessTokenView) -> Json:
    """Returns v1TokenInfo."""
    return {
        "id": view.id,
        "userId": view.user_id,
        "description": view.name,
        "createdAt": start_instant(view.created_at),
        "expiry": instant(view.expires_at),
        "revoked": view.state(time.time()) == "revoked",
        "tokenType": "TOKEN_TYPE_ACCESS_TOKEN",
    }


ROUTES: Routes = (
    ("GET", "/api/v1/tokens", list_tokens),
    ("POST", "/api/v1/tokens", create_token),
    ("PATCH", "/api/v1/tokens/{id}", change_token),
)
