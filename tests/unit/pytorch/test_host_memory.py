"""What control groups leave of the machine's memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gangline.pytorch.host_memory import cgroup_limits, free_host_bytes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Groups: own, of at most 1000 bytes, in one without a limit, in one of at most 5000."""
    root, own = tmp_path / "cgroup", tmp_path / "cgroup" / "all" / "own"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("1000\n")
    (own.parent / "memory.max").write_text("max\n")
    (root / "memory.max").write_text("5000\n")
    (tmp_path / "memory.max").write_text("7\n")
    (tmp_path / "membership").write_text("1:cpu:/old\n0::/all/own\n")
    return root


def test_limits_of_a_control_group_and_of_those_above(root: Path) -> None:
    membership = root.parent / "membership"
    assert cgroup_limits(membership, root) == {str(root / "all" / "own"): 1000, str(root): 5000}
    membership.write_text("1:memory:/old\n")
    assert cgroup_limits(membership, root) == {}
    assert cgroup_limits(root / "absent", root) == {}


def test_free_memory_is_what_the_tightest_group_leaves(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of files that are not in use count as free."""
    membership, own = root.parent / "membership", root / "all" / "own"
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=4000))
    assert free_host_bytes(root / "absent", root) == 4000
    assert free_host_bytes(membership, root) == 1000
    (own / "memory.current").write_text("700\n")
    (own / "memory.stat").write_text("anon 400\ninactive_file 200\nactive_file 100\n")
    assert free_host_bytes(membership, root) == 500
    (root / "memory.current").write_text("4900\n")
    assert free_host_bytes(membership, root) == 100
