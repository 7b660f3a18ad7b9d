"""The calls about users, quotas, groups and roles for the stand-in gateway: it knows one user, and changes quotas
alone."""

# ruff: noqa: N802 - the names of the calls are those of the protos

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gangline.domain.user import hash_password
from gangline.errors import ErrorKind, GanglineError
from gangline.protocol import rpc
from gangline.v1 import access_pb2, audit_pb2, quota_pb2, user_pb2
from tests.support.part_of_gateway import Servicer

PASSWORD = "Password-of-ann-1"


class StandInUsers(Servicer):
    """quotas: by kind and name. session: what a login with the right password gets. user_changes: those that came in.
    The stand-in gateway provides the other members."""

    _answer: Callable[[str, Any, Callable[[], Any]], Any]

    def __init__(self) -> None:
        super().__init__()
        self.session = ""
        self.user = user_pb2.UserView(id=2, name="ann", is_active=True, has_password=True, created_at=1.0)
        self.token = user_pb2.AccessTokenView(id=3, user_id=2, user_name="ann", name="ci", created_at=1.0)
        self.quotas: dict[tuple[str, str], quota_pb2.QuotaView] = {}
        self.group = access_pb2.GroupView(name="team", members=["ann", "bob"], created_at=1.0)
        self.role = access_pb2.RoleView(role=access_pb2.ROLE_EDITOR, group="team", workspace_id=2, workspace="lab")
        self.audit_records: list[audit_pb2.AuditRecord] = []
        self.audit_requests: list[audit_pb2.ListAuditRequest] = []
        self.user_changes: list[user_pb2.UserChange] = []

    def CreateKey(self, request: Any, context: Any) -> Any:
        return user_pb2.CreateKeyResponse(key=user_pb2.OneTimeKey(key="key", ends_at=3.0, http_addresses=["a:1"]))

    def LogIn(self, request: Any, context: Any) -> Any:
        # The only call that needs no token, so it does not pass through `_answer`.
        if (request.name, request.password) == (self.user.name, hash_password(PASSWORD)):
            return user_pb2.LogInResponse(token=self.session, ends_at=2.0, user=self.user)
        error = GanglineError("auth.wrong_password", "the password is wrong", ErrorKind.FORBIDDEN)
        status, message, trailing = rpc.status_of(error)
        context.set_trailing_metadata(trailing)
        return context.abort(status, message)

    def LogOut(self, request: Any, context: Any) -> Any:
        return self._answer("LogOut", context, user_pb2.LogOutResponse)

    def GetMe(self, request: Any, context: Any) -> Any:
        return self._answer("GetMe", context, lambda: user_pb2.GetMeResponse(user=self.user))

    def ListAudit(self, request: Any, context: Any) -> Any:
        self.audit_requests.append(request)
        return self._answer("ListAudit", context, lambda: audit_pb2.ListAuditResponse(records=self.audit_records))

    def ListUsers(self, request: Any, context: Any) -> Any:
        return self._answer("ListUsers", context, lambda: user_pb2.ListUsersResponse(users=[self.user]))

    def CreateUser(self, request: Any, context: Any) -> Any:
        self.user_changes.append(request.change)
        return self._answer("CreateUser", context, lambda: user_pb2.CreateUserResponse(user=self.user))

    def UpdateUser(self, request: Any, context: Any) -> Any:
        self.user_changes.append(request.change)
        return self._answer("UpdateUser", context, lambda: user_pb2.UpdateUserResponse(user=self.user))

    def ListTokens(self, request: Any, context: Any) -> Any:
        return self._answer("ListTokens", context, lambda: user_pb2.ListTokensResponse(tokens=[self.token]))

    def CreateToken(self, request: Any, context: Any) -> Any:
        answer = user_pb2.CreateTokenResponse(token=self.token, secret="gangline_secret")
        return self._answer("CreateToken", context, lambda: answer)

    def RevokeToken(self, request: Any, context: Any) -> Any:
        return self._answer("RevokeToken", context, lambda: user_pb2.RevokeTokenResponse(token=self.token))

    def ListQuotas(self, request: Any, context: Any) -> Any:
        views = [self.quotas[key] for key in sorted(self.quotas)]
        return self._answer("ListQuotas", context, lambda: quota_pb2.ListQuotasResponse(quotas=views))

    def SetQuota(self, request: Any, context: Any) -> Any:
        def handle() -> quota_pb2.SetQuotaResponse:
            view = self.quotas.setdefault((request.kind, request.name), quota_pb2.QuotaView(name=request.name))
            view.subject.kind, view.subject.key, view.month = request.kind, request.name, "2026-11"
            for field in ("max_slots", "slot_hours"):
                if request.change.HasField(field):
                    value = getattr(request.change, field)
                    view.ClearField(field) if value < 0 else setattr(view, field, value)
            return quota_pb2.SetQuotaResponse(quota=view)

        return self._answer("SetQuota", context, handle)

    def RemoveQuota(self, request: Any, context: Any) -> Any:
        self.quotas.pop((request.kind, request.name), None)
        return self._answer("RemoveQuota", context, quota_pb2.RemoveQuotaResponse)

    def GetAccess(self, request: Any, context: Any) -> Any:
        right = access_pb2.WorkspaceRight(workspace_id=1, workspace="lab", role=access_pb2.ROLE_EDITOR)
        access = access_pb2.Access(
            cluster_role=access_pb2.ROLE_EDITOR, workspaces=[right], groups=["everyone"], is_open=True
        )
        return self._answer("GetAccess", context, lambda: access_pb2.GetAccessResponse(access=access))

    def ListGroups(self, request: Any, context: Any) -> Any:
        return self._answer("ListGroups", context, lambda: access_pb2.ListGroupsResponse(groups=[self.group]))

    def UpdateGroup(self, request: Any, context: Any) -> Any:
        return self._answer("UpdateGroup", context, lambda: access_pb2.UpdateGroupResponse(group=self.group))

    def ListRoles(self, request: Any, context: Any) -> Any:
        return self._answer("ListRoles", context, lambda: access_pb2.ListRolesResponse(roles=[self.role]))

    def AssignRole(self, request: Any, context: Any) -> Any:
        return self._answer("AssignRole", context, lambda: access_pb2.AssignRoleResponse(roles=[self.role]))
