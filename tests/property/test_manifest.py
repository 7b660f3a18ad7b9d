"""A checkpoint's metadata.json with any one bit flipped is refused in one line, or says exactly what it said before."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from gangline.domain.storage.manifest import StoredFile, files_of, read_document, write_document
from gangline.errors import GanglineError
from tests.support.examples import examples

names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
metadata = st.dictionaries(names.filter(lambda name: name != "manifest"), values, max_size=4)
files = st.dictionaries(names, st.builds(StoredFile, st.integers(0, 1 << 40), st.just("0f" * 32)), max_size=3)


@settings(max_examples=examples(300))
@given(metadata, files, st.data())
def test_no_flipped_bit_is_believed(
    values: dict[str, object], files: dict[str, StoredFile], data: st.DataObject
) -> None:
    content = bytearray(write_document(values, files))
    before = read_document(bytes(content), "here")
    assert files_of(before) == files
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    document = _read(bytes(content))
    if isinstance(document, GanglineError):
        assert "\n" not in document.message
    else:
        assert json.dumps(document, sort_keys=True) == json.dumps(before, sort_keys=True)


def _read(content: bytes) -> dict[str, Any] | GanglineError:
    try:
        return read_document(content, "here")
    except GanglineError as error:
        return error
