"""The rules for ranks that the agent writes and its runners read."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gangline.errors import GanglineError
from services.common.rank_rules import FILE_NAME, RankRules, find_user, load_rules, write_rules


def test_a_runner_reads_what_the_agent_wrote_and_nobody_else_does(tmp_path: Path) -> None:
    rules = RankRules(
        "train", {"ann": "ann-train"}, 512, 64, "/sys/fs/cgroup/x", ("podman", "--runtime", "runc"), ("-q",)
    )
    write_rules(tmp_path, rules)
    assert load_rules(tmp_path) == rules
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [rules.user_of(owner) for owner in ("ann", "ben", "")] == ["ann-train", "train", "train"]


def test_no_file_is_no_rule_and_a_field_of_a_later_version_is_passed_over(tmp_path: Path) -> None:
    assert load_rules(tmp_path) == RankRules()
    (tmp_path / FILE_NAME).write_text('{"user": "train", "of_tomorrow": 1}')
    assert load_rules(tmp_path) == RankRules("train")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"container_command": 5}'])
def test_a_damaged_file_starts_no_rank_with_more_rights(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(GanglineError, match=rf"cannot read .*{FILE_NAME}: .*; restart the agent") as caught:
        load_rules(tmp_path)
    assert caught.value.code == "environment.rules"


def test_a_user_is_found_by_name_and_number() -> None:
    nobody = pwd.getpwnam("nobody")
    user = find_user("nobody")
    assert (user.uid, user.gid, user.home) == (nobody.pw_uid, nobody.pw_gid, nobody.pw_dir)
    assert set(user.groups) == set(os.getgrouplist("nobody", nobody.pw_gid))
    assert find_user(str(nobody.pw_uid)) == user


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no-such-user", "this machine has no user 'no-such-user'"),
        ("4294967290", "this machine has no user '4294967290'"),
        ("root", "ranks never run as root"),
        ("0", "ranks never run as root"),
    ],
)
def test_a_missing_user_and_root_are_refused(name: str, problem: str) -> None:
    with pytest.raises(GanglineError, match=problem) as caught:
        find_user(name)
    assert caught.value.code == "environment.no_user"
