"""What a runner of root makes for an owner's account, and what it leaves alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gangline.domain.storage.storage_fault import MARKER_FILE
from gangline.errors import GanglineError
from services.common.rank_rules import RankRules, RankUser, owners_user
from services.trial_runner.ranks.owner_account import holds_storage, make_home, open_storage, settle_home

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives accounts")
MARKER = "7d1c"


@pytest.fixture
def user(tmp_path: Path) -> RankUser:
    return settle_home(owners_user(RankRules(first_uid=2001000000, last_uid=2001000099), 3), tmp_path / "homes")


def test_a_home_whose_runner_was_killed_before_it_gave_it_away_is_given(user: RankUser) -> None:
    home = Path(user.home)
    home.mkdir(mode=0o700, parents=True)
    make_home(user)
    assert (home.stat().st_uid, home.stat().st_gid) == (user.uid, user.gid)
    (home / "cache").touch()
    make_home(user)
    assert [path.name for path in home.iterdir()] == ["cache"]


def test_a_home_of_another_user_stays_as_it_is(user: RankUser) -> None:
    home = Path(user.home)
    home.mkdir(mode=0o700, parents=True)
    os.chown(home, 65534, 65534)
    make_home(user)
    assert home.stat().st_uid == 65534


@pytest.mark.parametrize("remains", ["nothing", "an empty folder", "another storage"])
def test_nothing_is_made_in_a_storage_whose_mount_is_lost(tmp_path: Path, user: RankUser, remains: str) -> None:
    root = tmp_path / "mnt"
    if remains != "nothing":
        root.mkdir(mode=0o700)
    if remains == "another storage":
        (root / MARKER_FILE).write_text("another")
    found = sorted(tmp_path.rglob("*"))
    open_storage(f"file://{root}", "7.1", user, MARKER)
    assert sorted(tmp_path.rglob("*")) == found
    assert not root.exists() or stat.S_IMODE(root.stat().st_mode) == 0o700
    with pytest.raises(GanglineError) as caught:
        holds_storage(root, MARKER)
    assert caught.value.code == "storage.away"
    assert ("has the id another" in caught.value.message) is (remains == "another storage")


@pytest.mark.parametrize("text", [f"{MARKER}\n", ""])
def test_a_storage_with_its_marker_is_opened(tmp_path: Path, user: RankUser, text: str) -> None:
    """An operator may have made an empty one."""
    root = tmp_path / "mnt"
    root.mkdir(mode=0o700)
    (root / MARKER_FILE).write_text(text)
    # The mode that an earlier version has given it.
    (root / "checkpoints").mkdir()
    (root / "checkpoints").chmod(0o3777)
    # The folder of an id that the owner had with another range.
    (root / "tensorboard/7.1").mkdir(parents=True)
    os.chown(root / "tensorboard/7.1", 61187, 0)
    open_storage(f"file://{root}", "7.1", user, MARKER)
    assert holds_storage(root, MARKER)
    assert stat.S_IMODE((root / "checkpoints").stat().st_mode) == 0o3733
    assert (root / "tensorboard/7.1").stat().st_uid == user.uid


def test_the_group_of_all_accounts_is_not_passed_on_to_their_files(tmp_path: Path, user: RankUser) -> None:
    root = tmp_path / "mnt"
    root.mkdir()
    root.chmod(0o2700)
    open_storage(str(root), "7.1", user, "")
    assert (stat.S_IMODE(root.stat().st_mode), root.stat().st_gid) == (0o710, user.groups[-1])
    made = {path.stat().st_gid for path in root.rglob("*")}
    assert made
    assert user.groups[-1] not in made


def test_a_folder_that_others_may_have_made_is_not_given_away(tmp_path: Path, user: RankUser) -> None:
    root = tmp_path / "mnt"
    (root / "tensorboard/7.1").mkdir(parents=True)
    (root / "tensorboard").chmod(0o1777)
    os.chown(root / "tensorboard/7.1", 61187, 0)
    open_storage(str(root), "7.1", user, "")
    assert (root / "tensorboard/7.1").stat().st_uid == 61187
