"""Reads from a member's data which series of etcd made them, while no etcd runs on them.

Owns the little of two formats that this takes: etcd's bucket "cluster" with the key "clusterVersion", and the pages of
bbolt, the B+tree file that holds it (https://github.com/etcd-io/bbolt, `page.go`, `bucket.go`, `db.go`). etcd refuses
data of a newer series ("invalid downgrade"), and reading this key says so before etcd is started.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from gangline.domain.etcd_version import Series, parse_version
from gangline.local.etcd_choice import UNKNOWN_SERIES

# Page: id, flags, count of elements, number of further pages.
_PAGE = struct.Struct("<QHHI")
_BRANCH, _LEAF = 0x01, 0x02
# Element of a branch: position of the key, its size, page of the child. Positions count from the element.
_BRANCH_ELEMENT = struct.Struct("<IIQ")
# Element of a leaf: flags, position of the key, size of the key, size of the value, which follows the key.
_LEAF_ELEMENT = struct.Struct("<IIII")
# Meta: magic, version, page size, flags, root page, sequence, free list, high-water mark, transaction, checksum.
_META = struct.Struct("<IIIIQQQQQQ")
_MAGIC = 0xED0CDAED
_PAGE_SIZES = [1 << bits for bits in range(10, 17)]
# Deeper than any tree of a file that fits a disk; a damaged file may have a circle.
_MAX_DEPTH = 32


def read_data_series(data_directory: Path) -> Series | None:
    """Returns the series of the data in etcd's `--data-dir`: None without data, UNKNOWN_SERIES where they do not tell
    it, as after a kill in the first moments of a new cluster. Raises OSError."""
    if not (data_directory / "member").exists():
        return None
    try:
        with (
            (data_directory / "member" / "snap" / "db").open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages,
        ):
            return _find_series(pages)
    except (FileNotFoundError, ValueError, struct.error, RecursionError):
        # ValueError: an empty file, or one that is no database.
        return UNKNOWN_SERIES


def _find_series(pages: mmap.mmap) -> Series:
    page_size, root = _newest_meta(pages)
    for bucket, header, _ in _items(pages, page_size, root * page_size):
        if bucket != b"cluster":
            continue
        # A small bucket lies in its own value, behind its header; its root is then 0.
        (bucket_root,) = struct.unpack_from("<Q", pages, header)
        start = bucket_root * page_size if bucket_root else header + 16
        for key, value, size in _items(pages, page_size, start):
            if key == b"clusterVersion":
                return parse_version(pages[value : value + size].decode("ascii", "replace"))[:2]
    return UNKNOWN_SERIES


def _newest_meta(pages: mmap.mmap) -> tuple[int, int]:
    """Returns the page size, and the root page of the last transaction. Pages 0 and 1 each hold a meta; a write that
    was cut off leaves one whose checksum is wrong."""
    newest = (-1, 0, 0)
    for place in (0, *_PAGE_SIZES):
        if place + _PAGE.size + _META.size > len(pages):
            break
        start = place + _PAGE.size
        magic, _, page_size, _, root, _, _, _, transaction, checksum = _META.unpack_from(pages, start)
        if magic == _MAGIC and place in (0, page_size) and checksum == _fnv(pages[start : start + _META.size - 8]):
            newest = max(newest, (transaction, page_size, root))
    if newest[0] < 0:
        raise ValueError("no valid meta page")
    return newest[1], newest[2]


def _items(pages: mmap.mmap, page_size: int, start: int, depth: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """Yields each key below a page with the place of its value in the file, and the size of the value."""
    if depth > _MAX_DEPTH:
        raise ValueError("a circle of pages")
    _, flags, count, _ = _PAGE.unpack_from(pages, start)
    for number in range(count):
        if flags & _BRANCH:
            element = start + _PAGE.size + number * _BRANCH_ELEMENT.size
            _, _, child = _BRANCH_ELEMENT.unpack_from(pages, element)
            yield from _items(pages, page_size, child * page_size, depth + 1)
        elif flags & _LEAF:
            element = start + _PAGE.size + number * _LEAF_ELEMENT.size
            _, position, key_size, value_size = _LEAF_ELEMENT.unpack_from(pages, element)
            key = element + position
            yield pages[key : key + key_size], key + key_size, value_size


def _fnv(data: bytes) -> int:
    """Returns the checksum of a meta page, FNV-1a of 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value
