"""The times and counts that a trial may report, and which of its documents and URLs are accepted."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from gangline.domain.document import check_document, read_document
from gangline.domain.limits import plausible_amount, plausible_count, plausible_time
from gangline.domain.storage.storage_url import check_same_protocol, check_storage_url
from gangline.errors import GanglineError

_NOW = 1_700_000_000.0


@pytest.mark.parametrize("at", [0.0, 1.0, _NOW - 1e9, _NOW, _NOW + 3600])
def test_possible_times_stay(at: float) -> None:
    assert plausible_time(at, _NOW) == at


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf, -1.0, 1e308, _NOW + 2 * 86400])
def test_impossible_times_become_the_receivers(at: float) -> None:
    assert plausible_time(at, _NOW) == _NOW


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.5, 1e308])
def test_impossible_amounts_become_unknown(value: float) -> None:
    assert plausible_amount(value) == 0.0
    assert plausible_amount(0.25) == 0.25


@pytest.mark.parametrize("number", [-1, -(2**63), 2**63 - 1])
def test_impossible_counts_become_unknown(number: int) -> None:
    assert plausible_count(number) == 0
    assert plausible_count(7) == 7


_DEEP = "[" * 100 + "]" * 100
_VERY_DEEP = '{"a":' * 100_000


@pytest.mark.parametrize(
    "text", ["no JSON", "[1]", "7", f'{{"a": {_DEEP}}}', _VERY_DEEP, '{"a": "\\ud800"}', '{"\\ud800": 1}', "1" * 5000]
)
def test_documents_that_readers_cannot_show_are_refused(text: str) -> None:
    with pytest.raises(GanglineError) as failure:
        check_document(text, "the metadata of checkpoint c1")
    assert failure.value.code == "document.invalid"
    assert failure.value.message.startswith("the metadata of checkpoint c1 cannot be stored: ")
    assert "\n" not in failure.value.message


def test_documents_with_nan_are_taken() -> None:
    check_document('{"validation_metrics": {"loss": NaN, "best": Infinity}, "name": "größe"}', "it")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("no JSON", None),
        (_DEEP, None),
        (_VERY_DEEP, None),
        ('{"a": [NaN, 1.5, -Infinity]}', {"a": [None, 1.5, None]}),
        ('{"\\ud800": "x\\udfffy"}', {"\N{REPLACEMENT CHARACTER}": "x\N{REPLACEMENT CHARACTER}y"}),
        ('{"a": 1}', {"a": 1}),
    ],
)
def test_whatever_is_stored_can_be_read_and_written_again(text: str, value: Any) -> None:
    document = read_document(text)
    assert document == value
    json.dumps(document, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("simplecache::http://host/x", "storage.chain"),
        ("zip://inner::file:///etc/passwd", "storage.chain"),
        ("http://169.254.169.254/latest", "storage.protocol"),
        ("memory://x", "storage.protocol"),
        ("zip://x", "storage.protocol"),
        ("github://a:b@c/d", "storage.protocol"),
        ("HTTP://host/x", "storage.protocol"),
        ("data:text/plain,x", "storage.protocol"),
        ("file:///x\0", "storage.url"),
        ("file:///x\x1b[2J", "storage.url"),
    ],
)
def test_urls_of_no_storage_are_refused(url: str, code: str) -> None:
    with pytest.raises(GanglineError) as failure:
        check_storage_url(url, "/var/lib/storage")
    assert failure.value.code == code
    assert repr(url) in failure.value.message


@pytest.mark.parametrize(
    "url", ["/x/y", "relative", "file:///x", "s3://bucket/x", "gs://b", "abfs://c/x", "hdfs://n/x"]
)
def test_urls_of_documented_storages_and_of_the_clusters_own_pass(url: str) -> None:
    check_storage_url(url, "hdfs://namenode/gangline")


def test_what_lies_in_the_clusters_storage_has_its_protocol() -> None:
    check_same_protocol("file:///x/y", "/x")
    check_same_protocol("gcs://bucket/x", "gs://bucket")
    with pytest.raises(GanglineError, match=r"use one of file$"):
        check_same_protocol("s3://bucket/x", "/x")
