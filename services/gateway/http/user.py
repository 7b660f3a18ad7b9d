"""Routes and JSON of users and tokens. Paths and names are those of Determined's REST API."""

from __future__ import annotations

from fastapi import APIRouter

from gangline.domain.user import AccessTokenView, UserChange, UserView, check_new_password, hash_password
from gangline.errors import GanglineError, invalid
from services.gateway.http.admission import Cases, KeyedCases
from services.gateway.http.answer import Answer
from services.gateway.http.model import Body, Int64
from services.gateway.http.route import ERRORS, Route
from services.gateway.usecase.lifespan import parse_lifespan

router = APIRouter(prefix="/api/v1", tags=["users"], route_class=Route, responses=ERRORS)


class User(
    Answer,
    record=UserView,
    shows="id username=name display_name admin=is_admin active=is_active has_password created_at",
): ...


class Token(
    Answer,
    record=AccessTokenView,
    shows="id user_id username=user_name description=name created_at expiry=expires_at revoked_at",
):
    """Describes a token; its text is shown once, when it is made."""


class UserAnswer(Answer):
    user: User


class UserList(Answer):
    users: list[User]


class TokenAnswer(Answer):
    token: Token


class TokenList(Answer):
    tokens: list[Token]


class NewTokenAnswer(Answer):
    token: str  # the token itself, which no other call returns
    token_id: int


class NewUser(Body):
    username: str
    admin: bool = False
    active: bool = True
    display_name: str = ""


class NewUserBody(Body, example={"user": {"username": "ann"}, "password": "a-good-password"}):
    user: NewUser
    password: str = ""  # empty for a user who has tokens alone
    is_hashed: bool = False  # whether the password is hashed as Determined's client hashes it


class UserBody(Body, example={"displayName": "Ann"}):
    """Absent fields stay as they are."""

    username: str | None = None
    display_name: str | None = None
    admin: bool | None = None
    active: bool | None = None
    password: str | None = None
    is_hashed: bool = False  # whether the password is hashed as Determined's client hashes it
    kill_experiments: bool | None = None  # with active=false: also kills the user's experiments and tasks


class NewTokenBody(Body, example={"description": "nightly", "lifespan": "720h"}):
    user_id: Int64 | None = None  # absent for the caller
    description: str = ""
    lifespan: str = ""  # such as "720h", the default, or "-1" for a token without end


class TokenBody(Body, example={"setRevoked": True}):
    set_revoked: bool  # true; a token stays revoked


@router.get("/me")
async def get_me(cases: Cases) -> UserAnswer:
    """Shows the user whose token the request has."""
    return UserAnswer(user=User.model_validate(cases.users.me()))


@router.get("/users")
async def list_users(
    cases: Cases, *, name: str = "", active: bool | None = None, admin: bool | None = None
) -> UserList:
    """Lists users, the oldest first. name: a part of the name. active, admin: limit them to those, or to the others."""
    views = [
        view
        for view in cases.users.list_users()
        if name in view.name and active in (None, view.is_active) and admin in (None, view.is_admin)
    ]
    return UserList.model_validate({"users": views})


@router.get("/users/{user_id}")
async def get_user(user_id: Int64, cases: Cases) -> UserAnswer:
    return UserAnswer(user=User.model_validate(cases.users.find_by_id(user_id)))


@router.get("/users/{name}/by-username")
async def get_user_by_name(name: str, cases: Cases) -> UserAnswer:
    return UserAnswer(user=User.model_validate(await cases.users.find(name)))


@router.post("/users")
async def post_user(body: NewUserBody, cases: KeyedCases) -> UserAnswer:
    """Creates a user; for administrators. The same Idempotency-Key creates nothing twice."""
    new = body.user
    change = UserChange(
        new.username, new.display_name, new.admin, new.active, _hashed(body.password, is_hashed=body.is_hashed)
    )
    return UserAnswer(user=User.model_validate(await cases.users.create(change)))


@router.patch("/users/{user_id}")
async def patch_user(user_id: Int64, body: UserBody, cases: KeyedCases) -> UserAnswer:
    """Changes a user. Users change their own password and displayed name; all else is for administrators."""
    name = cases.users.find_by_id(user_id).name
    password = None if body.password is None else _hashed(body.password, is_hashed=body.is_hashed)
    change = UserChange(body.username, body.display_name, body.admin, body.active, password)
    if body.kill_experiments:
        view, _ = await cases.deactivations.run(name, change)
        return UserAnswer(user=User.model_validate(view))
    return UserAnswer(user=User.model_validate(await cases.users.update(name, change)))


@router.get("/tokens")
async def list_tokens(
    cases: Cases,
    *,
    username: str = "",
    showInactive: bool = False,  # noqa: N803  the API's names are in camel case
) -> TokenList:
    """Lists the caller's tokens, and for administrators those of all users. showInactive: also ended ones."""
    views = cases.users.list_tokens(username, with_ended=showInactive)
    return TokenList.model_validate({"tokens": views})


@router.post("/tokens")
async def post_token(body: NewTokenBody, cases: KeyedCases) -> NewTokenAnswer:
    """Makes a token. The same Idempotency-Key makes no other one, and gets the same answer."""
    name = "" if body.user_id is None else cases.users.find_by_id(body.user_id).name
    view, secret = await cases.users.create_token(name, body.description, parse_lifespan(body.lifespan))
    return NewTokenAnswer(token=secret, token_id=view.id)


@router.patch("/tokens/{token_id}")
async def patch_token(token_id: Int64, body: TokenBody, cases: KeyedCases) -> TokenAnswer:
    """Revokes a token."""
    if not body.set_revoked:
        raise _cannot_unrevoke()
    return TokenAnswer(token=Token.model_validate(await cases.users.revoke_token(token_id)))


def _hashed(password: str, *, is_hashed: bool) -> str:
    if not password or is_hashed:
        return password
    check_new_password(password)
    return hash_password(password)


def _cannot_unrevoke() -> GanglineError:
    return invalid("token.revoked", "a token is revoked for good; set setRevoked to true, or make another token")
