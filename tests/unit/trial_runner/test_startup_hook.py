"""The variables that a startup hook leaves, in a file that belongs to the user of the ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.trial_runner.ranks import startup_hook
from services.trial_runner.ranks.startup_hook import MAX_LISTING_BYTES, HookFailed


def test_variables_are_read_from_the_listing(tmp_path: Path) -> None:
    listing = tmp_path / "hook.environ"
    assert startup_hook.read_variables(listing) is None
    listing.write_bytes(b"A=1\0B=2=3\0rest")
    assert startup_hook.read_variables(listing) == {"A": "1", "B": "2=3"}


def test_a_listing_that_a_user_made_huge_is_not_read_into_memory(tmp_path: Path) -> None:
    listing = tmp_path / "hook.environ"
    with listing.open("wb") as file:
        file.truncate(MAX_LISTING_BYTES << 10)
    with pytest.raises(HookFailed, match="more than 16 MiB"):
        startup_hook.read_variables(listing)


def test_a_listing_that_a_user_replaced_by_a_pipe_is_no_listing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hook.environ")
    with pytest.raises(HookFailed, match="no readable list of its variables: it is no file"):
        startup_hook.read_variables(tmp_path / "hook.environ")
