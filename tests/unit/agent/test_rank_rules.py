"""The agent's check of its settings about ranks: one line at its start, or rules for its runners."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.errors import GanglineError
from services.agent.machine import rank_rules
from services.agent.machine.rank_rules import missing_capabilities, settle_rules
from services.agent.settings import DEFAULT_UIDS, AgentSettings
from services.common.rank_rules import RankRules, load_rules, owners_user
from services.scheduler.transition.account.user_change import MAX_USERS
from tests.support.account import find_python
from tests.support.source import ROOT

FIRST, LAST = map(int, DEFAULT_UIDS.split("-"))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs processes as another user")


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory that every user can reach, and a Python that every user can run."""
    monkeypatch.setattr(sys, "executable", find_python())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        (Path(folder) / "state/allocations").mkdir(parents=True, mode=0o700)
        (Path(folder) / "state").chmod(0o700)
        yield Path(folder) / "state"


def settle(state: Path, **settings: Any) -> RankRules:
    settle_rules(AgentSettings(**{"state_dir": state, "container_command": ["none"], "rank_uids": "", **settings}))
    return load_rules(state)


def test_the_program_for_containers_is_found_or_named(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "podman"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert settle(state, container_command=[], container_options=["--ipc", "host"]) == RankRules(
        container_command=("podman",), container_options=("--ipc", "host")
    )
    with pytest.raises(GanglineError, match=r"container_command: there is no program 'docker' here; install it"):
        settle(state, container_command=["docker"])


def test_without_accounts_there_is_no_rule_and_the_state_stays_closed(state: Path) -> None:
    assert settle(state, rank_uids="") == RankRules()
    assert state.stat().st_mode & 0o777 == 0o700


def expose(state: Path, **settings: Any) -> str:
    return settle_rules(AgentSettings(**{"state_dir": state, "container_command": ["none"], **settings}))


@needs_root
def test_roots_agent_gives_owners_accounts_by_default(state: Path) -> None:
    # Made by an earlier version.
    (state / "spool").mkdir(mode=0o755)
    assert expose(state) == ""
    assert load_rules(state) == RankRules(first_uid=FIRST, last_uid=LAST)
    assert [path.stat().st_mode & 0o777 for path in (state, state / "allocations")] == [0o711] * 2
    assert (state / "spool").stat().st_mode & 0o777 == 0o700


@needs_root
def test_a_named_user_comes_before_the_accounts(state: Path) -> None:
    assert expose(state, rank_user="nobody") == ""
    assert load_rules(state) == RankRules(user="nobody")


@needs_root
def test_without_accounts_it_is_told_what_a_trial_can_read(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, why = (
        "trials run as root, so each can read the cluster's token and all other files of root",
        "rank_uids is empty",
    )
    assert expose(state, rank_uids="") == f"{text}: {why}"
    monkeypatch.setenv("GANGLINE_LOCAL_CLUSTER", str(state.parent))
    assert expose(state, rank_uids="") == f"{text}, the administrator's token and etcd among them: {why}"
    assert load_rules(state) == RankRules()


@needs_root
def test_a_range_with_an_account_of_this_machine_is_refused(state: Path) -> None:
    """Ranks as root in its place would be a worse surprise."""
    with pytest.raises(GanglineError, match="rank_uids 65000-65534 has the id of nobody, an account of this") as caught:
        expose(state, rank_uids="65000-65534")
    assert caught.value.code == "agent.rank_uids"
    assert load_rules(state) == RankRules()


def test_the_default_range_has_ids_for_all_users_and_collides_with_no_common_software() -> None:
    assert owners_user(RankRules(first_uid=FIRST, last_uid=LAST), MAX_USERS).uid <= LAST
    others = [
        (0, 65535),
        (100_000, 600_100_000),
        (200_000, 2_000_200_000),
        (524_288, 1_879_048_191),
        (2_147_352_576, 2**32),
    ]
    assert not [span for span in others if span[0] <= LAST and span[1] >= FIRST]


def interpreter(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a script in the place of the agent's Python. Returns the file in which it counts its starts."""
    count = folder / "starts"
    count.touch()
    count.chmod(0o666)
    program = folder / "python"
    program.write_text(f"#!/bin/sh\necho >> {count}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return count


@needs_root
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exec sleep 60", "has not started within 0.5 s"),
        ("kill -KILL $$", "has ended: exit code -9"),
        ("echo 'OSError: [Errno 12] Cannot allocate memory' >&2; exit 1", r"has ended: OSError: \[Errno 12\]"),
    ],
)
def test_a_check_that_a_busy_machine_cannot_make_does_not_open_it(
    state: Path, monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    """The check is tried again. Then the agent does not start, and no rank runs as root."""
    monkeypatch.setattr(rank_rules, "PROBE_SECONDS", 0.5)
    count = interpreter(state.parent, script, monkeypatch)
    with pytest.raises(GanglineError, match=f"cannot be checked now, 3 times in a row: .*{problem}") as caught:
        expose(state)
    assert (caught.value.code, caught.value.message.count("\n")) == ("agent.busy", 0)
    assert len(count.read_text()) == 3
    assert not (state / "rank_rules.json").exists()


@needs_root
def test_a_check_that_comes_through_at_the_second_try_gives_accounts(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = sys.executable
    script = f'[ $(wc -l < {state.parent}/starts) -gt 1 ] || kill -KILL $$; exec {python} "$@"'
    interpreter(state.parent, script, monkeypatch)
    assert expose(state) == ""
    assert load_rules(state) == RankRules(first_uid=FIRST, last_uid=LAST)


@needs_root
def test_a_python_that_accounts_cannot_run_is_named_and_the_state_stays_closed(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    monkeypatch.setenv("GANGLINE_LOCAL_CLUSTER", str(state.parent))
    state.parent.chmod(0o700)
    text = expose(state)
    assert re.fullmatch(r".*: an account without rights cannot run .*no-python here: .*", text), text
    assert [path.stat().st_mode & 0o777 for path in (state.parent, state)] == [0o700] * 2


@needs_root
def test_the_accounts_alone_may_pass_through_a_local_clusters_folder(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = state.parent
    monkeypatch.setenv("GANGLINE_LOCAL_CLUSTER", str(root))
    (root / "agent.toml").write_text("")
    root.chmod(0o700)
    assert expose(state) == ""
    assert (stat.S_IMODE(root.stat().st_mode), root.stat().st_gid) == (0o710, FIRST)
    assert stat.S_IMODE((root / "agent.toml").stat().st_mode) == 0o600


def test_an_agent_of_another_user_tells_what_a_trial_can_read(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert expose(state).endswith("only an agent that runs as root gives owners accounts of their own")


@needs_root
def test_the_user_may_pass_through_the_state_and_the_rules_are_written(state: Path) -> None:
    rules = settle(state, rank_user="nobody", rank_users={"ann": "nobody"}, rank_memory_mb=512, rank_processes=64)
    assert rules == RankRules("nobody", {"ann": "nobody"}, 512, 64)
    assert [path.stat().st_mode & 0o777 for path in (state, state / "allocations")] == [0o711] * 2


@needs_root
def test_a_user_who_cannot_reach_the_state_is_refused(state: Path) -> None:
    state.parent.chmod(0o700)
    with pytest.raises(
        GanglineError, match=r"rank_user nobody cannot run .*: PermissionError: .*allocations"
    ) as caught:
        settle(state, rank_user="nobody")
    assert caught.value.code == "agent.rank_user"


@needs_root
def test_a_user_who_cannot_run_this_python_is_refused(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(GanglineError, match=r"rank_user nobody cannot run .*no-python here: "):
        settle(state, rank_user="nobody")


@needs_root
def test_a_limit_of_processes_has_no_effect_on_root(state: Path) -> None:
    with pytest.raises(GanglineError, match=r"rank_processes has no effect here, .* set rank_user too") as caught:
        settle(state, rank_processes=64)
    assert caught.value.code == "agent.rank_limits"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rank_user": "no-such-user"}, "rank_user: this machine has no user 'no-such-user'"),
        ({"rank_user": "root"}, "rank_user: ranks never run as root"),
        ({"rank_users": {"ann": "nobody"}}, "rank_users needs rank_user too"),
        ({"rank_user": "nobody", "rank_users": {"ann": "no-such-user"}}, "no user 'no-such-user'"),
    ],
)
def test_wrong_users_are_refused_in_one_line(state: Path, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(GanglineError, match=problem) as caught:
        settle(state, **settings)
    assert "\n" not in caught.value.message


def test_the_missing_capabilities_are_found() -> None:
    assert missing_capabilities("Name:\tagent\nCapEff:\t000001fffeffffff\n") == []
    assert missing_capabilities("CapEff:\t0000000000000000\n")[-1] == "CAP_SETUID"
    assert missing_capabilities("CapEff:\t00000000000000e2\n") == ["CAP_CHOWN"]


@pytest.mark.parametrize(
    ("rules", "owner", "is_shared"),
    [
        (RankRules(), "ann", True),
        (RankRules(first_uid=FIRST, last_uid=LAST), "ann", False),
        (RankRules(user="trials"), "ann", True),
        (RankRules(user="trials", users={"ann": "ann"}), "ann", False),
        (RankRules(user="trials", users={"ann": "ann"}), "bob", True),
        (RankRules(user="trials", users={"ann": "trials"}), "ann", True),
        (RankRules(user="trials", users={"ann": "lab", "bob": "lab"}), "ann", True),
    ],
)
def test_owners_that_share_a_user_are_known(rules: RankRules, owner: str, is_shared: bool) -> None:
    assert rules.shares_user(owner) == is_shared


@needs_root
def test_the_folder_that_the_user_may_not_enter_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of a virtual environment is a link, often into a home."""
    home, link = state.parent / "home", state.parent / "python"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to(sys.executable)
    link.symlink_to(home / "bin" / "python")
    home.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(link))
    with pytest.raises(GanglineError) as caught:
        settle(state, rank_user="nobody")
    assert caught.value.message.startswith(f"rank_user nobody cannot run {link} here: ")
    advice = f"; it may not enter {home}: allow it with chmod o+x, or install Gangline elsewhere"
    assert caught.value.message.endswith(advice)
