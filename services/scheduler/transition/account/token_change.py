"""PURE: makes and revokes the tokens of users. A token's text is never part of the state, only its hash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gangline.domain.user import (
    DEFAULT_LIFESPAN_SECONDS,
    AccessToken,
    User,
    check_lifespan,
    check_shown_text,
    inactive_user,
    no_token,
    no_user,
)
from gangline.errors import conflict, invalid
from services.scheduler.state.records import Draft, Records, StateChange
from services.scheduler.transition.account.user_change import counter_of, is_admin, not_admin
from services.scheduler.transition.project.rule import Caller

MAX_TOKENS = 100
# Lists show a token so long after its end, and of each user so many that have ended. Without that number, a user who
# makes and revokes tokens would fill etcd.
KEPT_SECONDS = 30 * 86400.0
MAX_ENDED_TOKENS = 100
# Records that one request removes, so that its transaction stays small.
_MAX_REMOVED = 50


def token_of_request(records: Records, request_id: str) -> AccessToken | None:
    """Returns the token that this request made."""
    return next((token for token in records.all_of(AccessToken) if token.request_id == request_id), None)


def create_token(
    records: Records,
    owner: str,
    name: str,
    lifespan_seconds: float,
    caller: Caller,
    *,
    hash_of: Callable[[int], str],
    now: float,
) -> StateChange:
    """Makes a token, unless this request has made one; find it by `token_of_request`. Removes records of the owner's
    tokens that ended long ago, and the oldest of those that ended where they are many.

    lifespan_seconds: 0 for the default, negative for no end. hash_of: returns the hash of the token with an id. Raises
    GanglineError `user.not_found`, `auth.not_admin`, `auth.inactive`, `token.lifespan`, `token.too_many`, `user.text`,
    `request.reused`.
    """
    is_caller_admin = is_admin(records, caller)
    if owner != caller.user and not is_caller_admin:
        raise not_admin(caller, "make tokens for others")
    user = records.find(User, owner)
    if user is None:
        raise no_user(owner)
    if user.is_deactivated:
        raise inactive_user(owner)
    earlier = token_of_request(records, caller.request_id)
    if earlier is not None:
        if earlier.user_id != user.id:
            raise invalid("request.reused", "this request id has made another user's token; use a new one")
        return StateChange()
    check_shown_text("the name of a token", name)
    check_lifespan(lifespan_seconds)
    draft = Draft(records)
    own = [token for token in records.all_of(AccessToken) if token.user_id == user.id]
    if sum(not token.ended_at(now) for token in own) >= MAX_TOKENS:
        raise conflict(
            "token.too_many", f"{owner} has {MAX_TOKENS} tokens; revoke one first with: gangline token revoke ID"
        )
    ended = sorted((token for token in own if token.ended_at(now)), key=lambda token: token.ended_at(now))
    num_surplus = len(ended) - MAX_ENDED_TOKENS
    for number, token in enumerate(ended[:_MAX_REMOVED]):
        if number < num_surplus or token.ended_at(now) < now - KEPT_SECONDS:
            draft.delete(AccessToken, token.id)
    counter = counter_of(records)
    lifespan_seconds = lifespan_seconds or DEFAULT_LIFESPAN_SECONDS
    draft.put(replace(counter, next_token_id=counter.next_token_id + 1))
    draft.put(
        AccessToken(
            counter.next_token_id,
            user.id,
            name,
            hash_of(counter.next_token_id),
            created_at=now,
            expires_at=now + lifespan_seconds if lifespan_seconds > 0 else 0.0,
            request_id=caller.request_id,
        )
    )
    return draft.change


def revoke_token(records: Records, token_id: int, caller: Caller, now: float) -> StateChange:
    """Revokes a token. One that is revoked stays as it is.

    Raises GanglineError `token.not_found`, also for a token of another user where the caller is no administrator.
    """
    is_caller_admin = is_admin(records, caller)
    token = records.find(AccessToken, token_id)
    user = records.find(User, caller.user)
    is_own = token is not None and user is not None and token.user_id == user.id
    if token is None or not (is_own or is_caller_admin):
        raise no_token(token_id)
    if token.revoked_at:
        return StateChange()
    draft = Draft(records)
    draft.put(replace(token, revoked_at=now))
    return draft.change
