"""The server of a shell: its configuration, and what a session gets of the task's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.launch.shell import configure, find_sshd, session_command, shown_variables


def test_one_account_gets_in_with_one_key() -> None:
    lines = configure(Path("/x/ranks"), "/x/authorized_keys", "/x/code", {"A": "1"}, user="ann").splitlines()
    assert {
        'AuthorizedKeysFile "/x/authorized_keys"', 'AllowUsers "ann"', "PasswordAuthentication no",
        "KbdInteractiveAuthentication no", "UsePAM no", 'HostKey "/x/ranks/host_key"', 'SetEnv "A=1"',
    } <= set(lines)  # fmt: skip
    assert not any(line.startswith(("Port ", "ListenAddress ")) for line in lines)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOME", "/root"), ("SSH_AUTH_SOCK", "/x"), ("A", 'say "hi"'), ("A", "two\nlines"), ("A", "back\\slash"),
        ("A B", "1"), ("A", "x" * 5000), ("_", "/bin/env"),
    ],
)  # fmt: skip
def test_what_sshd_cannot_carry_or_sets_itself_is_left_out(name: str, value: str) -> None:
    assert shown_variables({name: value, "KEPT": "a b$c'd"}) == {"KEPT": "a b$c'd"}


def test_a_session_starts_in_the_folder_of_the_task() -> None:
    command = session_command("/with space/code")
    assert command.startswith("cd '/with space/code'; ")
    assert "\n" not in command


def test_sshd_is_also_found_outside_of_the_path() -> None:
    programs = ["/usr/sbin/sshd"]
    assert find_sshd(lambda name: name if name in programs else None) == "/usr/sbin/sshd"
    assert find_sshd(lambda name: f"/opt/{name}") == "/opt/sshd"
    assert find_sshd(lambda _: None) == ""
