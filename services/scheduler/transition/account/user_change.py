"""PURE: creates and changes users, and ends their sessions.

A user is never removed, because experiments name their owner; an administrator deactivates it. The leader decides by
its own records who may change what: a gateway's copy of them may be older. The user `admin` has the token of the
operator's file. It stays an active administrator, so that a cluster cannot be left without one.
"""

from __future__ import annotations

from dataclasses import replace

from gangline.domain.experiment import Experiment, Project, Template, Workspace
from gangline.domain.registry import Model
from gangline.domain.user import (
    CLUSTER_NAME,
    EndedSession,
    User,
    UserChange,
    UserCounter,
    check_shown_text,
    check_user_name,
    inactive_user,
    no_user,
)
from gangline.errors import ErrorKind, GanglineError, conflict
from services.scheduler.state.records import SINGLETON, Draft, Records, StateChange
from services.scheduler.transition.project.rule import Caller, remember
from services.scheduler.transition.quota_use import rename_user

ADMIN = "admin"
MAX_USERS = 10_000
# Sessions of one user that are remembered as ended. More of them end all sessions of the user.
MAX_ENDED_SESSIONS = 64


def found_users(records: Records, token_sha256: str, login_sha256: str, now: float) -> StateChange:
    """Creates the administrator of the operator's token, or gives it the present token. Users of versions without ids
    get one. token_sha256: empty where the leader has no such token."""
    draft = Draft(records)
    if token_sha256:
        admin = records.find(User, ADMIN) or User(ADMIN, "", created_at=now)
        draft.put(
            replace(admin, token_sha256=token_sha256, login_sha256=login_sha256, is_admin=True, is_deactivated=False)
        )
    for user in sorted((user for user in draft.all_of(User) if not user.id), key=lambda user: user.created_at):
        draft.put(replace(user, id=_take_id(draft)))
    return draft.change


def user_of_request(records: Records, request_id: str) -> User | None:
    """Returns the user that this request created or changed."""
    return next((user for user in records.all_of(User) if request_id in user.request_ids), None)


def create_user(records: Records, change: UserChange, caller: Caller, now: float) -> StateChange:
    """Creates a user, unless this request has created one; find it by `user_of_request`.

    Raises GanglineError `auth.not_admin`, `auth.inactive`, `user.name`, `user.exists`, `user.text`, `user.too_many`,
    `request.reused`.
    """
    earlier = user_of_request(records, caller.request_id)
    if earlier is not None:
        if earlier.name != change.name:
            text = f"request id {caller.request_id!r} was used before, for the user {earlier.name!r}; use a new one"
            raise conflict("request.reused", text)
        return StateChange()
    if not is_admin(records, caller):
        raise not_admin(caller, "create users")
    name = change.name or ""
    _check_free(records, name)
    if sum(1 for _ in records.all_of(User)) >= MAX_USERS:
        raise conflict("user.too_many", f"there are {MAX_USERS} users, and no more can be created")
    draft = Draft(records)
    user = User(name, "", created_at=now, id=_take_id(draft), request_ids=(caller.request_id,))
    draft.put(_changed(user, change))
    return draft.change


def update_user(records: Records, name: str, change: UserChange, caller: Caller) -> StateChange:
    """Changes a user. A request that has changed one before changes nothing.

    Raises GanglineError `user.not_found`, `auth.not_admin`, `auth.inactive`, `user.fixed`, `user.owns`, and the errors
    of `create_user`.
    """
    if user_of_request(records, caller.request_id) is not None:
        return StateChange()
    user = records.find(User, name)
    _check_rights(records, name, change, caller)
    if user is None:
        raise no_user(name)
    _check_fixed(records, user, change, caller)
    changed = _changed(user, change)
    if changed == user:
        return StateChange()
    draft = Draft(records)
    if changed.name != name:
        _check_free(records, changed.name, name)
        _check_owns_nothing(records, user)
        draft.delete(User, name)
        rename_user(draft, name, changed.name)
    draft.put(replace(changed, request_ids=remember(user.request_ids, caller)))
    return draft.change


def end_session(records: Records, name: str, session_sha256: str, ends_at: float, now: float) -> StateChange:
    """Ends a session of a user before its time, or uses a one-time key. Changes nothing where it has ended already.
    ends_at: when it would end by itself."""
    user = records.find(User, name)
    if user is None or ends_at <= now:
        return StateChange()
    ended = tuple(session for session in user.ended_sessions if session.ends_at > now)
    if any(session.session_sha256 == session_sha256 for session in ended):
        return StateChange()
    draft = Draft(records)
    if len(ended) >= MAX_ENDED_SESSIONS:
        # It stays in the list, because a key that is used again at this moment is refused by the list alone.
        draft.put(replace(user, ended_sessions=(EndedSession(session_sha256, ends_at),), sessions_since=now))
    else:
        draft.put(replace(user, ended_sessions=(*ended, EndedSession(session_sha256, ends_at))))
    return draft.change


def end_all_sessions(records: Records, name: str, now: float) -> StateChange:
    """Ends all sessions and one-time keys of a user. Access tokens stay."""
    user = records.find(User, name)
    if user is None:
        return StateChange()
    draft = Draft(records)
    # Those in the list keep their place: see `end_session`.
    draft.put(replace(user, sessions_since=now))
    return draft.change


def check_active(records: Records, name: str) -> None:
    """Raises GanglineError `auth.inactive` for a user who has been deactivated. Names without a record pass: that of
    the cluster, and the empty one."""
    user = records.find(User, name)
    if user is not None and user.is_deactivated:
        raise inactive_user(name)


def is_admin(records: Records, caller: Caller) -> bool:
    """Returns whether the caller is an administrator by the leader's own records. Raises GanglineError `auth.inactive`
    for one that was deactivated, or renamed, since its gateway admitted it."""
    if caller.user == CLUSTER_NAME:
        return caller.is_admin
    user = records.find(User, caller.user)
    if user is None or user.is_deactivated:
        raise inactive_user(caller.user)
    return user.is_admin


def not_admin(caller: Caller, action: str) -> GanglineError:
    return GanglineError(
        "auth.not_admin",
        f"{caller.user} is no administrator, and only those may {action}; ask one of them",
        ErrorKind.FORBIDDEN,
    )


def counter_of(records: Records) -> UserCounter:
    return records.find(UserCounter, SINGLETON) or UserCounter()


def _take_id(draft: Draft) -> int:
    counter = counter_of(draft)
    draft.put(replace(counter, next_user_id=counter.next_user_id + 1))
    return counter.next_user_id


def _changed(user: User, change: UserChange) -> User:
    if change.display_name is not None:
        check_shown_text("a displayed name", change.display_name)
    return replace(
        user,
        name=user.name if change.name is None else change.name,
        display_name=user.display_name if change.display_name is None else change.display_name,
        is_admin=user.is_admin if change.is_admin is None else change.is_admin,
        is_deactivated=user.is_deactivated if change.is_active is None else not change.is_active,
        password_hash=user.password_hash if change.password is None else change.password,
    )


def _check_rights(records: Records, name: str, change: UserChange, caller: Caller) -> None:
    """Admits administrators, and users for their own password and displayed name."""
    if is_admin(records, caller):
        return
    if caller.user != name:
        raise not_admin(caller, "change other users")
    if (change.name, change.is_admin, change.is_active) != (None, None, None):
        raise not_admin(caller, "rename users, activate them, or make them administrators")


def _check_fixed(records: Records, user: User, change: UserChange, caller: Caller) -> None:
    loses = change.is_admin is False or change.is_active is False
    if user.name == ADMIN and (loses or change.name not in (None, ADMIN)):
        raise conflict(
            "user.fixed",
            f"{ADMIN} belongs to the operator and stays an active administrator of this name; the operator changes its "
            "token: see docs/cluster.md",
        )
    if loses and caller.user == user.name:
        raise conflict("user.fixed", "administrators do not take their own rights away; ask another one of them")
    others = (other for other in records.all_of(User) if other.is_admin and not other.is_deactivated)
    if loses and user.is_admin and not user.is_deactivated and all(other.name == user.name for other in others):
        raise conflict("user.fixed", f"{user.name} is the last active administrator; make another user one first")


def _check_free(records: Records, name: str, own_name: str = "") -> None:
    """Names that differ in the case of letters alone are one name."""
    check_user_name(name)
    for user in records.all_of(User):
        if user.name.casefold() == name.casefold() and user.name != own_name:
            raise GanglineError(
                "user.exists", f"there is a user {user.name!r} already; choose another name", ErrorKind.ALREADY_EXISTS
            )


def _check_owns_nothing(records: Records, user: User) -> None:
    """Experiments name their owner, and are too many for one change."""
    owned: tuple[type[Experiment | Workspace | Project | Template | Model], ...] = (
        Experiment, Workspace, Project, Template, Model,
    )  # fmt: skip
    for kind in owned:
        count = sum(record.owner == user.name for record in records.all_of(kind))
        if count:
            raise conflict(
                "user.owns",
                f"{user.name} owns {count} {kind.__name__.lower()}{'' if count == 1 else 's'}, which name their owner, "
                "so it was not renamed; give it another displayed name: gangline user edit --display-name",
            )
