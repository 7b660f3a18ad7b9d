"""Records on disk: numbered, bounded, and readable after a crash in the middle of a write."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.v1 import ingest_pb2
from services.trial_runner.delivery.spool import Spool
from tests.support.examples import examples


def lines(*texts: str) -> list[ingest_pb2.IngestRecord]:
    return [ingest_pb2.IngestRecord(at=1.0, log=ingest_pb2.LogLine(text=text)) for text in texts]


def texts(spool: Spool, after: int = 0) -> list[str]:
    """Returns the texts of the appended records, without those that replace damaged ones."""
    result: list[str] = []
    while records := spool.read(after, max_records=3):
        result += [record.log.text for record in records if record.log.stream != "runner"]
        after = records[-1].sequence
    return result


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
def test_a_record_that_was_cut_off_is_told_and_the_rest_is_kept(tmp_path: Path, cut: int) -> None:
    spool = Spool(tmp_path)
    spool.append(lines("a", "b", "c"))
    (path,) = tmp_path.glob("*.seg")
    os.truncate(path, path.stat().st_size - cut)
    reopened = Spool(tmp_path)
    assert texts(reopened) == ["a", "b"]
    assert reopened.last_sequence == 3
    assert reopened.read(2)[0].log.text.startswith("at least 1 record of this trial's log and metrics (numbers 3 ")
    reopened.append(lines("d"))
    assert texts(Spool(tmp_path)) == ["a", "b", "d"]


def damage(path: Path, *offsets: int) -> None:
    content = bytearray(path.read_bytes())
    for offset in offsets:
        content[offset] ^= 0xFF
    path.write_bytes(content)


def test_one_line_says_what_a_damage_has_cost(tmp_path: Path) -> None:
    told: list[int] = []
    spool = Spool(tmp_path, agent_id="a7", on_damage=told.append)
    spool.append(lines("a", "b", "c", "d"))
    (path,) = tmp_path.glob("*.seg")
    size = path.stat().st_size // 4
    damage(path, size, 2 * size + 9)
    for _ in range(2):
        # The second time after a lost connection.
        first, notice, last = spool.read(0)
    assert [record.sequence for record in (first, notice, last)] == [1, 3, 4]
    assert (first.log.text, last.log.text) == ("a", "d")
    assert notice.log.text == (
        f"2 records of this trial's log and metrics (numbers 2 to 3 of its spool, {2 * size} bytes) are lost: "
        "they were damaged on the disk of agent a7 before a gateway had them"
    )
    assert (notice.log.stream, notice.log.agent_id, notice.at) == ("runner", "a7", 1.0)
    assert (told, spool.num_damaged) == ([2], 2)


@pytest.mark.parametrize("is_live", [True, False])
def test_records_after_a_damage_are_delivered_and_the_spool_ends_empty(tmp_path: Path, is_live: bool) -> None:
    spool = Spool(tmp_path, segment_bytes=100)
    for number in range(40):
        spool.append(lines(f"line {number}"))
    first, second, third, *_ = sorted(tmp_path.glob("*.seg"))
    damage(first, first.stat().st_size - 1)
    damage(second, *range(second.stat().st_size))
    third.unlink()
    if not is_live:
        spool = Spool(tmp_path)
    kept = texts(spool)
    assert kept[0] == "line 0"
    assert kept[-1] == "line 39"
    assert spool.num_damaged + len(kept) == 40
    spool.acknowledge(40)
    assert (spool.num_waiting, list(tmp_path.iterdir())) == (0, [])


def test_a_file_that_is_cut_off_while_it_is_written_loses_only_what_was_cut_off(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(lines("a", "b", "c", "d"))
    assert [record.sequence for record in spool.read(0, max_records=3)] == [1, 2, 3]
    (path,) = tmp_path.glob("*.seg")
    os.truncate(path, path.stat().st_size // 2)
    spool.append(lines("e", "f"))
    assert texts(spool, after=3) == ["e", "f"]
    assert texts(spool) == ["a", "b", "e", "f"]


def test_a_block_that_the_disk_cannot_read_loses_only_what_lies_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.append(lines(*(f"{number:0100d}" for number in range(200))))
    pread = os.pread

    def refuse(fd: int, size: int, start: int) -> bytes:
        if start < 8192 < start + size:
            raise OSError(5, "Input/output error")
        return pread(fd, size, start)

    monkeypatch.setattr("services.trial_runner.delivery.spool.os.pread", refuse)
    monkeypatch.setattr("services.trial_runner.delivery.spool._BLOCK_BYTES", 5000)
    kept = texts(spool)
    assert 140 < len(kept) < 200
    assert len(kept) + spool.num_damaged == 200


def test_bytes_that_a_failed_write_left_are_not_taken_for_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes half of a write and then refuses to give it up."""
    write = os.write

    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    spool = Spool(tmp_path)
    with monkeypatch.context() as patched:

        def take_some(fd: int, content: memoryview) -> int:
            patched.setattr("services.trial_runner.delivery.spool.os.write", refuse)
            return write(fd, content[:30])

        patched.setattr("services.trial_runner.delivery.spool.os.ftruncate", refuse)
        for text in ("a", "b"):
            patched.setattr("services.trial_runner.delivery.spool.os.write", take_some)
            assert spool.append(lines(text, "more")) == 2
            patched.setattr("services.trial_runner.delivery.spool.os.write", write)
            spool.append(lines(f"after {text}"))
    assert [(record.sequence, record.log.text) for record in spool.read(0)] == [(1, "after a"), (2, "after b")]


def test_a_file_of_nothing_but_noise_is_told(tmp_path: Path) -> None:
    (tmp_path / f"{1:016d}.seg").write_bytes(b"\xff" * 100)
    spool = Spool(tmp_path)
    assert (spool.last_sequence, spool.num_waiting) == (1, 1)
    spool.append(lines("a"))
    assert texts(spool) == ["a"]
    assert spool.num_damaged == 1


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.text(max_size=60), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=8),
    st.integers(30, 400),
    st.booleans(),
)
def test_flipped_bytes_lose_only_the_records_that_they_hit(
    tmp_path_factory: pytest.TempPathFactory,
    appended: list[str],
    flips: list[tuple[int, int]],
    segment_bytes: int,
    is_live: bool,
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder, segment_bytes=segment_bytes)
    where = [where_next(spool, text) for text in appended]
    before = {path: path.read_bytes() for path in folder.glob("*.seg")}
    for position, mask in flips:
        path, start, end = where[position % len(where)]
        flip_byte(path, start + position % (end - start), mask)
    if not is_live:
        spool = Spool(folder)
    whole = {
        number: text
        for number, (text, (path, start, end)) in enumerate(zip(appended, where, strict=True), 1)
        if path.read_bytes()[start:end] == before[path][start:end]
    }
    records = spool.read(0, max_records=10_000, max_bytes=1 << 30)
    numbers = [record.sequence for record in records]
    assert numbers == sorted(set(numbers))
    delivered = {record.sequence: record.log.text for record in records if record.log.stream != "runner"}
    assert delivered == whole
    # In a file that nobody has a record of, only whole records tell how many there were.
    assert spool.num_damaged == (len(appended) if is_live else spool.last_sequence) - len(whole)
    assert (numbers[-1] if numbers else 0) == spool.last_sequence
    spool.acknowledge(spool.last_sequence)
    assert not list(folder.iterdir())


def where_next(spool: Spool, text: str) -> tuple[Path, int, int]:
    """Appends it; its file, and the bytes that it has there."""
    before = {path: path.stat().st_size for path in spool._directory.glob("*.seg")}
    spool.append(lines(text))
    for path in spool._directory.glob("*.seg"):
        if path.stat().st_size > before.get(path, 0):
            return path, before.get(path, 0), path.stat().st_size
    raise AssertionError("nothing was written")


def flip_byte(path: Path, offset: int, mask: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= mask
    path.write_bytes(content)


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
        patched.setattr("services.trial_runner.delivery.spool.os.write", refuse)
        assert spool.append(lines("b", "c")) == 2
    spool.append(lines("d"))
    assert [(record.sequence, record.log.text) for record in spool.read(0)] == [(1, "a"), (2, "d")]


@settings(max_examples=examples(30), deadline=None)
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


@pytest.mark.parametrize("num_bytes", [1, 11, 5000])
def test_foreign_bytes_behind_a_live_segment_cost_no_record(tmp_path: Path, num_bytes: int) -> None:
    spool = Spool(tmp_path)
    wanted = [f"line {number}" for number in range(60)]
    read: list[ingest_pb2.IngestRecord] = []
    for number, text in enumerate(wanted):
        spool.append(lines(text))
        if number in (20, 40):
            (segment,) = tmp_path.glob("*.seg")
            with segment.open("ab") as file:
                file.write(random.Random(number).randbytes(num_bytes))
        if number % 3 == 0:
            # As the stream reads while ranks print.
            read += spool.read(number and read[-1].sequence)
    read += spool.read(read[-1].sequence)
    assert [record.log.text for record in read] == wanted
    assert spool.num_damaged == 0
    spool.close()
    # The drainer reads the same file.
    assert texts(Spool(tmp_path)) == wanted


def test_a_refused_write_behind_foreign_bytes_cuts_off_nothing_but_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.append(lines("first"))
    (segment,) = tmp_path.glob("*.seg")
    with segment.open("ab") as file:
        file.write(b"foreign bytes")
    spool.append(lines("second"))

    def refuse(_fd: int, _content: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("services.trial_runner.delivery.spool.os.write", refuse)
        assert spool.append(lines("third")) == 1
    spool.append(lines("fourth"))
    assert texts(spool) == ["first", "second", "fourth"]
    assert spool.num_damaged == 0
