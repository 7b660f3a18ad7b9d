"""The look at the folders of the ranks, and the sentences about what is not kept."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.trial_runner import output
from services.trial_runner.output import _CopyWatch, find_written, read_dates
from services.trial_runner.output_text import Kept, Left, Written, describe_kept, describe_lost

REPORT = """echo '{"kept": "a", "bytes": 5}'; echo '{"progress": true}'; echo '{"left": "b", "why": "full"}'"""


def test_only_files_that_changed_since_are_found(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("train.py", "deep/old"):
        (tmp_path / name).write_text("code")
    (dates, _), since = read_dates(tmp_path), time.time()
    assert find_written(tmp_path, dates, time.time_ns(), {}) == Written()
    _wait_clock(tmp_path, since)
    (tmp_path / "deep/old").write_text("changed")
    (tmp_path / "new").write_text("1")
    # The time of the content is what the program says.
    os.utime(tmp_path / "new", (1, 1))
    (tmp_path / "link").symlink_to("/etc")
    for cache in ("__pycache__", "deep/__pycache__"):
        (tmp_path / cache).mkdir()
        (tmp_path / cache / "c.pyc").touch()
    assert find_written(tmp_path, dates, time.time_ns(), {}) == Written(3, ("deep/old", "link", "new"))
    assert find_written(tmp_path / "absent", {}, 0, {}) == Written()


def test_the_look_at_a_folder_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_MOST_EXAMINED", 4)
    for number in range(9):
        (tmp_path / str(number)).touch()
    found = find_written(tmp_path, {}, 0, {})
    assert (found.num_files, len(found.names), found.is_whole) == (4, 3, False)
    assert describe_lost(Kept(), found, "/f", "a1").startswith("not kept: at least 4 files of the working folder (")


def test_sentences_name_files_in_one_line_and_the_place() -> None:
    assert describe_kept(Kept(), "7.1") == ""
    assert (
        describe_kept(Kept(1, 2 << 20), "7.1")
        == "kept 1 file (2.0 MB) of $GANGLINE_OUTPUT_DIR: gangline trial output 7.1"
    )
    assert describe_lost(Kept(3, 9), Written(), "/f", "a1") == ""
    left = (Left("a\nb\x1b]0;x", "x" * 300),)
    text = describe_lost(Kept(0, 0, 2, left, "the trial was killed"), Written(), "/f", "a1")
    assert text == (
        f"not kept: 2 files of $GANGLINE_OUTPUT_DIR (a\\nb\\x1b]0;x: {'x' * 200}...; ...) and the rest of "
        "$GANGLINE_OUTPUT_DIR (the trial was killed); these files stay below /f on a1 until a1 has ended keep_ended "
        "further allocations (10 by default)"
    )


def _wait_clock(folder: Path, since: float) -> None:
    """The clock of a file system moves in steps of milliseconds."""
    probe = folder.parent / "probe"
    deadline = time.monotonic() + 10
    while True:
        probe.touch()
        if probe.stat().st_ctime > since:
            return
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        (REPORT, Kept(1, 5, 1, (Left("b", "full"),))),
        (f"{REPORT}; exit 3", Kept(1, 5, 1, (Left("b", "full"),), "the copying process ended with exit code 3")),
        (f'{REPORT}; echo \'{{"rest": "too many"}}\'', Kept(1, 5, 1, (Left("b", "full"),), "too many")),
        (f"{REPORT}; exec sleep 600", Kept(1, 5, 1, (Left("b", "full"),), "the storage did not answer for")),
        ("echo '[1]'; exec sleep 600", Kept(problem="the copying process reported what cannot be read")),
        ("echo '{'; exec sleep 600", Kept(problem="the copying process reported what cannot be read")),
        ("""echo '{"kept": "a", "bytes": [1]}'""", Kept(problem="the copying process reported what cannot be read")),
        (
            """echo '{"kept": "a", "bytes": Infinity}'""",
            Kept(problem="the copying process reported what cannot be read"),
        ),
        ("printf '[%.0s' $(seq 50000); echo", Kept(problem="the copying process reported what cannot be read")),
        ("head -c 1000000 /dev/zero; exec sleep 600", Kept(problem="the copying process reported what cannot be read")),
    ],
    ids=[
        "end",
        "failure",
        "more",
        "silence",
        "no report",
        "no JSON",
        "no number",
        "no finite number",
        "deep",
        "no line",
    ],
)
async def test_the_copying_process_has_an_end(monkeypatch: pytest.MonkeyPatch, script: str, kept: Kept) -> None:
    monkeypatch.setattr(output, "SILENT_SECONDS", 0.5)
    result, process = await _watch(script, lambda: False)
    assert result.problem.startswith(kept.problem), result
    assert replace(result, problem=kept.problem) == kept
    assert process.returncode is not None


async def test_a_kill_ends_the_copying_process() -> None:
    result, process = await _watch("exec sleep 600", lambda: True)
    assert result == Kept(problem="the trial was killed meanwhile")
    assert process.returncode == -9


async def _watch(script: str, is_killed: Callable[[], bool]) -> tuple[Kept, asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=asyncio.subprocess.PIPE)
    watch = _CopyWatch(process, is_killed, 60.0)
    try:
        return await watch.run(), process
    finally:
        await watch.end()
