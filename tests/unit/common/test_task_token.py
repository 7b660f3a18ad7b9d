"""What opens one task."""

from __future__ import annotations

import pytest

from gangline.errors import GanglineError
from services.common.access.task_token import check_proxy_token, proxy_token, read_proxy_token, shell_seed, task_code

SECRET = "cluster-token-of-the-test"
TOKEN = proxy_token(SECRET, "ann ü.b", "login", "12", 100)


def test_a_token_opens_one_task_for_one_user_for_a_time() -> None:
    assert read_proxy_token(TOKEN) == ("ann ü.b", 100)
    check_proxy_token(SECRET, TOKEN, "login", "12", 99.0)


@pytest.mark.parametrize(
    ("token", "login", "task", "now"),
    [
        (TOKEN, "login", "12", 100.0),
        (TOKEN, "login", "13", 50.0),
        (TOKEN, "new login", "12", 50.0),
        (TOKEN.replace("100.", "900.", 1), "login", "12", 50.0),
        (proxy_token("another cluster", "ann ü.b", "login", "12", 100), "login", "12", 50.0),
        (proxy_token(SECRET, "", "login", "12", 100), "login", "12", 50.0),
    ],
)
def test_any_other_use_is_refused(token: str, login: str, task: str, now: float) -> None:
    with pytest.raises(GanglineError) as caught:
        check_proxy_token(SECRET, token, login, task, now)
    assert caught.value.code == "auth.proxy"


@pytest.mark.parametrize("text", ["", "x", "1.2", "1.!.c", "²²².YQ.c", "9" * 99 + ".YQ.c", "1.é.c", "-1.YQ.c"])
def test_a_text_that_is_no_token_names_no_user(text: str) -> None:
    assert read_proxy_token(text) == ("", 0)


def test_codes_and_keys_differ_by_task_and_owner() -> None:
    assert len({task_code(SECRET, 1), task_code(SECRET, 2), task_code("another cluster", 1)}) == 3
    seeds = {shell_seed(SECRET, owner, number) for owner in ("ann", "bob") for number in (1, 2)}
    assert (len(seeds), {len(seed) for seed in seeds}) == (4, {32})
