"""Sessions, users and the cluster in Determined's form."""

from __future__ import annotations

import gangline
from gangline.domain.resource import User
from gangline.errors import not_found
from services.gateway.determined.call import Call, Routes, page_of
from services.gateway.determined.values import Json, to_number

# The newest version of Determined whose client was tried.
_VERSION = "0.38.1"


async def info(call: Call) -> Json:
    """Describes the cluster to a client before it logs in."""
    cluster_id = call.cases.clusters.identify()
    return {"version": _VERSION, "cluster_id": cluster_id, "master_id": cluster_id, "cluster_name": "gangline"}


async def log_in(call: Call) -> Json:
    """Opens a session. username, password: a user of the cluster, and the user's token as the client hashes it."""
    token = call.authenticator.log_in(call.text("username"), call.text("password"))
    return {"token": token, "user": describe(call, call.authenticator.find_user(call.text("username")))}


async def log_out(call: Call) -> Json:
    """Changes nothing: a session is on no record, and ends by itself."""
    return {}


async def me(call: Call) -> Json:
    return {"user": describe(call, call.authenticator.find_user(call.caller.name))}


async def list_users(call: Call) -> Json:
    users = call.authenticator.list_users(call.caller)
    shown, pagination = page_of(users, call)
    return {"users": [describe(call, user) for user in shown], "pagination": pagination}


async def find_user(call: Call) -> Json:
    """Finds a user by number."""
    number = to_number(call.path["id"], "id")
    for user in call.authenticator.list_users(call.caller):
        if call.authenticator.number_of_user(user.name) == number:
            return {"user": describe(call, user)}
    raise not_found("user.not_found", f"there is no user {number}; list them with: det user list")


async def find_user_by_name(call: Call) -> Json:
    name = call.path["id"]
    for user in call.authenticator.list_users(call.caller):
        if user.name == name:
            return {"user": describe(call, user)}
    raise not_found("user.not_found", f"there is no user {name[:64]!r}; list them with: det user list")


def describe(call: Call, user: User) -> Json:
    """Returns v1User."""
    return {
        "id": call.authenticator.number_of_user(user.name),
        "username": user.name,
        "displayName": user.name,
        "admin": user.is_admin,
        "active": True,
        "remote": False,
    }


async def describe_cluster(call: Call) -> Json:
    """Returns v1GetMasterResponse."""
    cluster_id = call.cases.clusters.identify()
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


async def describe_telemetry(call: Call) -> Json:
    return {"enabled": False}


# These need no session.
OPEN_ROUTES: Routes = (
    ("GET", "/info", info),
    ("POST", "/api/v1/auth/login", log_in),
    ("POST", "/api/v1/auth/logout", log_out),
    ("GET", "/api/v1/master/telemetry", describe_telemetry),
)
ROUTES: Routes = (
    ("GET", "/api/v1/master", describe_cluster),
    ("GET", "/api/v1/me", me),
    ("GET", "/api/v1/auth/user", me),
    ("GET", "/api/v1/users", list_users),
    ("GET", "/api/v1/users/{id}", find_user),
    ("GET", "/api/v1/users/{id}/by-username", find_user_by_name),
)
