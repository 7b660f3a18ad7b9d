"""The trial runner's reading of a beat file, which belongs to the rank's user, who may do anything with it."""

from __future__ import annotations

import os
from pathlib import Path

from gangline.domain.beat import Reading
from gangline.launch.beat_file import BATCHES, NUM_BYTES, PID, BeatFile, map_cells


def test_a_file_that_a_script_shortens_reads_as_if_no_process_had_opened_it(tmp_path: Path) -> None:
    """With a mapping, the read would end the trial runner with SIGBUS."""
    file = BeatFile(tmp_path / "rank0.beat")
    map_cells(file.path)[PID] = 7
    assert file.read().pid == 7
    for num_bytes in (NUM_BYTES - 1, 8, 0):
        os.truncate(file.path, num_bytes)
        assert file.read() == Reading()


def test_a_file_that_a_script_lengthens_or_removes_is_read_as_before(tmp_path: Path) -> None:
    file = BeatFile(tmp_path / "rank0.beat")
    cells = map_cells(file.path)
    cells[PID], cells[BATCHES] = 7, 3
    os.truncate(file.path, 1 << 40)
    assert file.read().place == 3
    file.path.unlink()
    cells[BATCHES] = 4
    assert file.read().place == 4


def test_a_process_that_opens_a_shortened_file_makes_it_whole(tmp_path: Path) -> None:
    file = BeatFile(tmp_path / "rank0.beat")
    os.truncate(file.path, 0)
    cells = map_cells(file.path)
    cells[PID], cells[BATCHES] = 7, 3
    assert file.read().place == 3
