"""The files that real ranks leave: those of the output folder are in the storage, all others are named in the log."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gangline.domain.state import ExitKind
from services.trial_runner.output_text import NOT_REPORTED
from tests.integration.trial_runner.conftest import World

OUTPUT = 'cd "$GANGLINE_OUTPUT_DIR"; mkdir deep; echo 1 > a; echo 2 > deep/b; ln -s a latest; ln -s /etc/hostname out; '


def _kept(world: World) -> dict[str, str]:
    folder = world.folder / "storage/outputs/7.1"
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def _notes(world: World, start: str) -> list[str]:
    return [line for line in world.gateway.lines("runner") if line.startswith(start)]


async def test_the_output_is_kept_and_other_files_are_named(world: World) -> None:
    (runner,) = await world.start(
        "", (1,), entrypoint=f"echo x > here; mkdir __pycache__; echo > __pycache__/c; {OUTPUT}"
    )
    assert (await runner.wait()).kind is ExitKind.COMPLETED
    assert _kept(world) == {"a": "1\n", "deep/b": "2\n", "latest": "1\n"}
    assert _notes(world, "kept") == ["kept 3 files (6 bytes) of $GANGLINE_OUTPUT_DIR: gangline trial output 7.1"]
    (told,) = _notes(world, "not kept")
    assert told == (
        "not kept: 1 file of $GANGLINE_OUTPUT_DIR (out: it is a link that leads out of the folder); 1 file of the "
        "working folder (here), where $GANGLINE_OUTPUT_DIR names the folder whose files are kept; these files stay "
        f"below {world.folder}/a1/ended/7.1.1 on a1 until a1 has ended keep_ended further allocations (10 by default). "
        "Also, the entrypoint has reported no metrics and no checkpoint; gangline.core reports them"
    )
    # What is kept needs no room on the agent any more.
    assert sorted(path.name for path in (runner.directory / "gangline-output").iterdir()) == ["deep", "out"]


_UPLOADS = """
from pathlib import Path
from gangline import core
Path("out/one").mkdir(parents=True)
for name in ("one/weights", "one/state", "one/later", "other"):
    Path("out", name).write_text(name)
with core.init() as context:
    saved = {"steps_completed": 1}
    context.checkpoint.upload("out", saved, selector=lambda path: path.startswith("one/"))
    last = context.checkpoint.upload("out/one", {"steps_completed": 2})
    context.checkpoint.download(last, "again")
Path("out/one/later").write_text("since then")
"""


async def test_files_that_are_in_a_checkpoint_are_not_named_unless_they_changed_since(world: World) -> None:
    (runner,) = await world.start("", (1,), entrypoint=f"cat > script.py <<'END'\n{_UPLOADS}END\npython3 script.py")
    assert (await runner.wait()).kind is ExitKind.COMPLETED
    (told,) = _notes(world, "not kept")
    assert "not kept: 3 files of the working folder (out/one/later, out/other, script.py), where" in told


@pytest.mark.parametrize("end", ["exit 3", "sleep 600"])
async def test_output_is_kept_after_a_failure_and_after_a_preemption(world: World, end: str) -> None:
    (runner,) = await world.start("", (1,), entrypoint=f'echo 1 > "$GANGLINE_OUTPUT_DIR/a"; echo written; {end}')
    await world.gateway.wait_line("written")
    if end == "sleep 600":
        runner.kill(signal.SIGTERM)
    report = await runner.wait()
    assert report.kind is (ExitKind.USER_ERROR if end == "exit 3" else ExitKind.PREEMPTED), report
    assert _kept(world) == {"a": "1\n"}
    assert _notes(world, "the entrypoint has reported no") == []


async def test_a_kill_keeps_nothing_and_the_log_says_where_it_is(world: World) -> None:
    (runner,) = await world.start("", (1,), entrypoint='echo 1 > "$GANGLINE_OUTPUT_DIR/a"; echo written; sleep 600')
    await world.gateway.wait_line("written")
    runner.kill(signal.SIGQUIT)
    assert (await runner.wait()).kind is ExitKind.KILLED
    assert _kept(world) == {}
    (told,) = _notes(world, "not kept")
    assert told.startswith("not kept: the rest of $GANGLINE_OUTPUT_DIR (the trial was killed); these files stay below ")
    assert (runner.directory / "gangline-output/a").read_text() == "1\n"


async def test_a_storage_that_takes_nothing_changes_no_outcome(world: World, tmp_path: Path) -> None:
    (tmp_path / "storage").write_text("no folder")
    (runner,) = await world.start("", (1,), entrypoint='echo 1 > "$GANGLINE_OUTPUT_DIR/a"')
    assert (await runner.wait()).kind is ExitKind.COMPLETED
    (told,) = _notes(world, "not kept")
    assert "not kept: 1 file of $GANGLINE_OUTPUT_DIR (a: NotADirectoryError" in told
    assert (runner.directory / "gangline-output/a").read_text() == "1\n"


@pytest.mark.parametrize(("entrypoint", "notes"), [("true", []), ("echo done", [NOT_REPORTED])])
async def test_a_script_that_has_printed_nothing_has_a_log_without_any_line(
    world: World, entrypoint: str, notes: list[str]
) -> None:
    """Its runner has nothing to deliver. That keeps thousands of short commands fast."""
    (runner,) = await world.start("", (1,), entrypoint=entrypoint)
    assert (await runner.wait()).kind is ExitKind.COMPLETED
    assert _notes(world, "") == notes
