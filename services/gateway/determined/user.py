"""Sessions, users and the cluster in Determined's form."""

from __future__ import annotations

import gangline
from gangline.domain.user import UserChange, UserView, check_new_password, hash_password
from gangline.errors import GanglineError, invalid
from services.gateway.determined.call import Call, OpenCall, OpenRoutes, Routes, page_of
from services.gateway.determined.values import Json, to_number

# The newest version of Determined whose client was tried.
_VERSION = "0.38.1"


async def info(call: OpenCall) -> Json:
    """Describes the cluster to a client before it logs in."""
    cluster_id = call.open.cluster.identify()
    return {"version": _VERSION, "cluster_id": cluster_id, "master_id": cluster_id, "cluster_name": "gangline"}


async def log_in(call: OpenCall) -> Json:
    """Opens a session. username, password: a user of the cluster, and the password, which the client hashes."""
    password = call.text("password")
    if call.body.get("isHashed") is False:
        password = hash_password(password)
    session = await call.open.logins.log_in(call.text("username"), password, call.peer, is_determined=True)
    return {"token": session.token, "user": describe(call, session.user)}


async def log_out(call: Call) -> Json:
    """Ends the session."""
    await call.cases.users.log_out(call.token)
    return {}


async def me(call: Call) -> Json:
    return {"user": describe(call, call.cases.users.me())}


async def list_users(call: Call) -> Json:
    """Lists users. active, admin: limit them to those, or to the others. name: a part of the name."""
    is_active, is_admin, name = call.is_set("active"), call.is_set("admin"), call.query.get("name", "")
    users = [
        user
        for user in call.cases.users.list_users()
        if is_active in (None, user.is_active) and is_admin in (None, user.is_admin) and name in user.name
    ]
    shown, pagination = page_of(users, call)
    return {"users": [describe(call, user) for user in shown], "pagination": pagination}


async def find_user(call: Call) -> Json:
    """Finds a user by number."""
    return {"user": describe(call, _user_of(call))}


async def find_user_by_name(call: Call) -> Json:
    return {"user": describe(call, await call.cases.users.find(call.path["id"]))}


async def create_user(call: Call) -> Json:
    """user: v1User, of which the name, the displayed name, admin and active count. password: as for the login."""
    new = call.body.get("user")
    if not isinstance(new, dict):
        raise invalid("request.invalid", "user is missing, and should be an object")
    change = _change(new, _password(call) or "")
    return {"user": describe(call, await call.cases.users.create(change))}


async def change_user(call: Call) -> Json:
    """Takes v1PatchUser."""
    change = _change(call.body, _password(call))
    user = await call.cases.users.update(_user_of(call).name, change)
    return {"user": describe(call, user)}


async def change_users(call: Call) -> Json:
    """Activates or deactivates several users, and says of each why that failed."""
    user_ids, is_active = call.body.get("userIds") or [], _flag(call.body, "activate")
    if not isinstance(user_ids, list):
        raise invalid("request.invalid", "userIds should be a list of ids")
    results = []
    for user_id in user_ids:
        number, problem = to_number(user_id, "userIds"), ""
        try:
            name = call.cases.users.find_by_id(number).name
            await call.cases.users.update(name, UserChange(is_active=bool(is_active)))
        except GanglineError as error:
            problem = error.message
        results.append({"id": number, "error": problem})
    return {"results": results}


def _user_of(call: Call) -> UserView:
    return call.cases.users.find_by_id(call.number("id"))


def _change(values: Json, password: str | None) -> UserChange:
    """Raises GanglineError `request.*`."""
    if values.get("remote"):
        raise invalid("request.lacking", "there is no single sign-on; create the user with a password, or with a token")
    if values.get("agentUserGroup"):
        raise invalid(
            "request.lacking", "trials run as the account of the agent, whoever owns them: see docs/from-determined.md"
        )
    name, display_name = values.get("username"), values.get("displayName")
    if not isinstance(name, str | None) or not isinstance(display_name, str | None):
        raise invalid("request.invalid", "username and displayName should be texts")
    return UserChange(name, display_name, _flag(values, "admin"), _flag(values, "active"), password)


def _flag(values: Json, name: str) -> bool | None:
    value = values.get(name)
    if not isinstance(value, bool | None):
        raise invalid("request.invalid", f"{name} should be true or false")
    return value


def _password(call: Call) -> str | None:
    """Returns the password as it is stored and compared: hashed by the client, or here."""
    if call.body.get("password") is None:
        return None
    password = call.text("password")
    if password and not call.body.get("isHashed"):
        check_new_password(password)
        return hash_password(password)
    return password


def describe(call: OpenCall, user: UserView) -> Json:
    """Returns v1User."""
    return {
        "id": call.authenticator.number_of_user(user.name),
        "username": user.name,
        "displayName": user.display_name or user.name,
        "admin": user.is_admin,
        "active": user.is_active,
        "remote": False,
    }


async def describe_cluster(call: OpenCall) -> Json:
    """Returns v1GetMasterResponse."""
    cluster_id = call.open.cluster.identify()
    return {
        "version": _VERSION,
        "clusterId": cluster_id,
        "masterId": cluster_id,
        "clusterName": "gangline",
        "hasCustomLogo": False,
        "strictJobQueueControl": False,
        "rbacEnabled": False,
        "telemetryEnabled": False,
        "userManagementEnabled": True,
        "product": "PRODUCT_UNSPECIFIED",
        "featureSwitches": [],
        "ssoProviders": [],
        "branding": f"Gangline {gangline.__version__}",
    }


async def describe_telemetry(call: OpenCall) -> Json:
    return {"enabled": False}


# These need no session.
OPEN_ROUTES: OpenRoutes = (
    ("GET", "/info", info),
    ("POST", "/api/v1/auth/login", log_in),
    ("GET", "/api/v1/master/telemetry", describe_telemetry),
)
# Clients ask for these with or without a session.
EITHER_ROUTES: OpenRoutes = (("GET", "/api/v1/master", describe_cluster),)
ROUTES: Routes = (
    ("POST", "/api/v1/auth/logout", log_out),
    ("GET", "/api/v1/me", me),
    ("GET", "/api/v1/auth/user", me),
    ("GET", "/api/v1/users", list_users),
    ("POST", "/api/v1/users", create_user),
    ("PATCH", "/api/v1/users", change_users),
    ("GET", "/api/v1/users/{id}", find_user),
    ("PATCH", "/api/v1/users/{id}", change_user),
    ("GET", "/api/v1/users/{id}/by-username", find_user_by_name),
)
