"""Records on disk: numbered, bounded, and readable after a crash in the middle of a write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.v1 import ingest_pb2
from services.trial_runner.spool import Spool


def lines(*texts: str) -> list[ingest_pb2.IngestRecord]:
    return [ingest_pb2.IngestRecord(at=1.0, log=ingest_pb2.LogLine(text=text)) for text in texts]


def texts(spool: Spool, after: int = 0) -> list[str]:
    found: list[str] = []
    while records := spool.read(after, max_records=3):
        found += [record.log.text for record in records]
        after = records[-1].sequence
    return found


def test_records_are_numbered_from_one_and_read_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert spool.append(lines("a", "b")) == 0
    spool.append(lines("c"))
    assert [(record.sequence, record.log.text) for record in spool.read(0)] == [(1, "a"), (2, "b"), (3, "c")]
    assert texts(spool, after=2) == ["c"]
    assert spool.read(3) == []


def test_what_is_acknowledged_is_gone_from_the_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=30)
    for text in "abcdef":
        spool.append(lines(text))
    files = len(list(tmp_path.glob("*.seg")))
    assert files > 1
    spool.acknowledge(spool.last_sequence)
    assert list(tmp_path.glob("*.seg")) == []
    assert spool.num_waiting == 0
    spool.append(lines("g"))
    assert [record.sequence for record in spool.read(6)] == [7]


def test_an_old_acknowledgement_changes_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(lines("a", "b"))
    spool.acknowledge(2)
    spool.acknowledge(1)
    assert spool.acknowledged == 2


def test_an_acknowledgement_from_the_future_counts_up_to_what_exists(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(lines("a"))
    spool.acknowledge(99)
    assert spool.acknowledged == 1


def test_a_spool_is_found_again_after_its_process_died(tmp_path: Path) -> None:
    first = Spool(tmp_path, segment_bytes=40)
    for text in "abcdef":
        first.append(lines(text))
    first.acknowledge(3)
    second = Spool(tmp_path)
    assert second.last_sequence == 6
    assert texts(second, second.acknowledged)[-3:] == ["d", "e", "f"]
    second.append(lines("g"))
    assert [record.sequence for record in second.read(6)] == [7]


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_record_that_was_cut_off_is_dropped_and_the_rest_is_kept(tmp_path: Path, cut: int) -> None:
    spool = Spool(tmp_path)
    spool.append(lines("a", "b", "c"))
    (path,) = tmp_path.glob("*.seg")
    os.truncate(path, path.stat().st_size - cut)
    found = Spool(tmp_path)
    assert texts(found) == ["a", "b"]
    assert found.last_sequence == 2
    found.append(lines("d"))
    assert texts(Spool(tmp_path)) == ["a", "b", "d"]


def test_a_flipped_bit_ends_what_is_believed_of_a_segment(tmp_path: Path) -> None:
    Spool(tmp_path).append(lines("a", "b", "c"))
    (path,) = tmp_path.glob("*.seg")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert texts(Spool(tmp_path)) == ["a"]


def test_a_file_of_nothing_but_noise_is_dropped(tmp_path: Path) -> None:
    (tmp_path / f"{1:016d}.seg").write_bytes(b"\xff" * 100)
    spool = Spool(tmp_path)
    assert (spool.last_sequence, spool.num_bytes) == (0, 0)
    spool.append(lines("a"))
    assert texts(spool) == ["a"]


def test_a_full_spool_drops_its_oldest_and_says_how_many(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=400, segment_bytes=100)
    dropped = sum(spool.append(lines(f"line {number}")) for number in range(100))
    assert spool.num_bytes <= 400
    assert dropped == spool.num_dropped > 0
    kept = texts(spool, spool.acknowledged)
    assert kept == [f"line {number}" for number in range(100 - len(kept), 100)]
    assert dropped + len(kept) == 100


def test_what_was_acknowledged_does_not_count_as_dropped(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=200, segment_bytes=100)
    spool.append(lines("a", "b"))
    spool.acknowledge(1)
    for number in range(20):
        spool.append(lines(f"line {number}"))
    kept = texts(spool, spool.acknowledged)
    assert spool.num_dropped == 21 - len(kept)


def test_a_disk_that_refuses_loses_new_records_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.append(lines("a"))

    def refuse(_fd: int, _content: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("services.trial_runner.spool.os.write", refuse)
        assert spool.append(lines("b", "c")) == 2
    spool.append(lines("d"))
    assert [(record.sequence, record.log.text) for record in spool.read(0)] == [(1, "a"), (2, "d")]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.one_of(st.text(max_size=40), st.integers(0, 30)), max_size=40),
    st.integers(20, 200),
)
def test_nothing_unacknowledged_is_ever_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str | int], segment_bytes: int
) -> None:
    """A text is appended; a number acknowledges so many, after which the process dies and the spool is opened anew."""
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder, segment_bytes=segment_bytes)
    expected: dict[int, str] = {}
    for step in steps:
        if isinstance(step, str):
            spool.append(lines(step))
            expected[spool.last_sequence] = step
        else:
            acknowledged = min(step, spool.last_sequence)
            spool.acknowledge(step)
            expected = {sequence: text for sequence, text in expected.items() if sequence > acknowledged}
            if not expected:
                continue
            spool.close()
            spool = Spool(folder, segment_bytes=segment_bytes)
        after = min(expected, default=spool.last_sequence + 1) - 1
        assert texts(spool, after) == list(expected.values())
    spool.close()
