"""A filter selects the rows that a plain model of its grammar selects, and every text is a filter or is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gangline.errors import GanglineError
from services.gateway.table.field import Family, Field, FieldList, Kind, Value
from services.gateway.table.filter import MAX_COMPARISONS, MAX_DEPTH, MAX_LENGTH, MAX_PATTERNS, parse_filter
from services.gateway.table.sorting import SortKey, sort_fields, sort_places
from tests.support.examples import examples

NOW = 1e9
Row = dict[str, Any]
FIELDS: FieldList[Row] = FieldList(
    [
        Field("size", Kind.NUMBER, lambda row: row["size"]),
        Field("name", Kind.TEXT, lambda row: row["name"]),
        Field("old", Kind.FLAG, lambda row: row["old"]),
        Field("tags", Kind.TEXTS, lambda row: row["tags"]),
    ],
    [Family("hp.", lambda row: row["hp"])],
)
TEXTS = st.sampled_from(["", "a", "b", "ab", "a b", 'q"q', "null", "1", "or", "é\n"])
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -0.5, 1e300]))
ANY = st.one_of(NUMBERS, TEXTS, st.booleans(), st.none(), st.just(math.nan))
ROWS = st.fixed_dictionaries(
    {
        "size": st.one_of(NUMBERS, st.none()),
        "name": st.one_of(TEXTS, st.none()),
        "old": st.one_of(st.booleans(), st.none()),
        "tags": st.lists(TEXTS, max_size=3).map(tuple),
        "hp": st.dictionaries(st.sampled_from(["lr", "my rate", "a.b"]), ANY, max_size=3),
    }
)
Model = Callable[[Row], bool]
Part = tuple[str, Model]


def is_same(value: Any, wanted: Any) -> bool:
    if isinstance(value, tuple):
        return any(each == wanted for each in value)
    if value is None or isinstance(value, bool) != isinstance(wanted, bool):
        return False
    return bool(isinstance(value, str) == isinstance(wanted, str) and value == wanted)


def ordered(operator: str, value: Any, wanted: Any) -> bool:
    kinds = [
        None if one is None or isinstance(one, bool) else "text" if isinstance(one, str) else "number"
        for one in (value, wanted)
    ]
    if kinds[0] is None or kinds[0] != kinds[1]:
        return False
    return bool({"<": value < wanted, "<=": value <= wanted, ">": value > wanted, ">=": value >= wanted}[operator])


def plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def written(value: Any) -> str:
    return json.dumps(value)


@st.composite
def comparisons(draw: st.DrawFn) -> Part:
    name = draw(st.sampled_from(["size", "name", "old", "tags", "hp.lr", 'hp."my rate"', "hp.a.b"]))
    key = name.removeprefix("hp.").strip('"')

    def read(row: Row) -> Any:
        return plain(row["hp"].get(key)) if name.startswith("hp.") else row[name]

    values = {"size": NUMBERS, "old": st.booleans(), "tags": TEXTS, "name": TEXTS}.get(
        name, st.one_of(NUMBERS, TEXTS, st.booleans())
    )
    shape = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "in", "not in", "null", "not null", "~", "!~"]))
    if shape in ("null", "not null"):
        mark = "=" if shape == "null" else "!="
        return f"{name} {mark} null", lambda row: (read(row) is None) == (shape == "null")
    if shape in ("in", "not in"):
        wanted = draw(st.lists(values, min_size=1, max_size=3))
        text = f"{name} {shape} ({', '.join(map(written, wanted))})"
        return text, lambda row: any(is_same(read(row), one) for one in wanted) == (shape == "in")
    if shape in ("~", "!~") and name not in ("size", "old"):
        pattern = draw(st.sampled_from(["a", "b$", "^q", "."]))
        return f"{name} {shape} {written(pattern)}", lambda row: is_found(pattern, read(row)) == (shape == "~")
    value = draw(values)
    if shape in ("<", "<=", ">", ">=") and name not in ("old", "tags"):
        return f"{name}{shape}{written(value)}", lambda row: ordered(shape, read(row), value)
    mark = "!=" if shape == "!=" else "="
    return f"{name} {mark} {written(value)}", lambda row: is_same(read(row), value) == (mark == "=")


def is_found(pattern: str, value: Any) -> bool:
    """Searches as RE2 does, where $ is the end of the text alone."""
    texts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(text, str) and re.search(pattern.replace("$", r"\Z"), text) for text in texts)


def joined(parts: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    def combine(word: str, left: Part, right: Part) -> Part:
        both = (lambda row: left[1](row) and right[1](row)) if word == "and" else (
            lambda row: left[1](row) or right[1](row)
        )  # fmt: skip
        return f"({left[0]}) {word} ({right[0]})", both

    def negate(part: Part) -> Part:
        return f"not ({part[0]})", lambda row: not part[1](row)

    return st.one_of(st.builds(combine, st.sampled_from(["and", "or"]), parts, parts), st.builds(negate, parts))


FILTERS = st.recursive(comparisons(), joined, max_leaves=6)


@settings(deadline=None, max_examples=examples(300))
@given(FILTERS, st.lists(ROWS, max_size=8))
def test_a_filter_selects_what_the_model_selects(part: Part, rows: list[Row]) -> None:
    text, model = part
    matches = parse_filter(text, FIELDS.find, NOW)
    assert [matches(row) for row in rows] == [model(row) for row in rows], text


@settings(deadline=None, max_examples=examples(100))
@given(comparisons(), comparisons(), comparisons(), ROWS)
def test_and_goes_before_or(first: Part, second: Part, third: Part, row: Row) -> None:
    matches = parse_filter(f"{first[0]} or {second[0]} and {third[0]}", FIELDS.find, NOW)
    assert matches(row) == (first[1](row) or (second[1](row) and third[1](row)))


@settings(deadline=None, max_examples=examples(200))
@given(st.text('size name()"\\=<>!~,and or not in hp.é1 \n', max_size=80))
def test_any_text_is_a_filter_or_is_refused_in_one_line(text: str) -> None:
    refusal: GanglineError | None = None
    try:
        parse_filter(text, FIELDS.find, NOW)
    except GanglineError as error:
        refusal = error
    assert refusal is None or (refusal.code.partition(".")[0] in ("filter", "table") and "\n" not in refusal.message)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("size = 1 and " * 1000, "filter.length"),
        (" and ".join(["size = 1"] * (MAX_COMPARISONS + 1)), "filter.size"),
        ("(" * (MAX_DEPTH + 1) + "size = 1", "filter.depth"),
        ("not " * (MAX_DEPTH + 1) + "size = 1", "filter.depth"),
        (" or ".join(["name ~ a"] * (MAX_PATTERNS + 1)), "filter.size"),
        (f"size in ({', '.join(['1'] * 501)})", "filter.size"),
        (r'name ~ "(a"', "filter.pattern"),
        (r'name ~ "\\pL{400}"', "filter.pattern"),
        ("size = many", "filter.value"),
        ("old = 1", "filter.value"),
        ("sice = 1", "table.field"),
        ("size = 1 size = 2", "filter.syntax"),
        ("size ! 1", "filter.syntax"),
        ('name = "a', "filter.syntax"),
        ("tags < a", "filter.operator"),
        ("size ~ 1", "filter.operator"),
        ("size < null", "filter.operator"),
    ],
)
def test_what_is_refused(text: str, code: str) -> None:
    with pytest.raises(GanglineError) as refusal:
        parse_filter(text, FIELDS.find, NOW)
    assert refusal.value.code == code
    assert len(text) <= MAX_LENGTH or code == "filter.length"


@pytest.mark.parametrize(
    ("text", "value", "is_matching"),
    [
        # True equals 1 in Python, and False is less.
        ("hp.lr < true", False, False),
        ("hp.lr <= 1", True, False),
        ("hp.lr = 1", True, False),
        ("hp.lr in (1, 2)", True, False),
        ("hp.lr in (true)", 1, False),
        ("hp.lr in (true, 1)", 1, True),
        ("hp.lr in (null, 2)", None, True),
        ("hp.lr not in (2)", None, True),
        ("hp.lr in (1.0)", 1, True),
        ('hp.lr = "1"', 1, False),
        ("hp.lr < inf", 10**400, True),
        ("hp.lr = null", math.nan, True),
    ],
)
def test_values_of_different_types(text: str, value: Any, is_matching: bool) -> None:
    row = {"size": None, "name": None, "old": None, "tags": (), "hp": {"lr": value}}
    assert parse_filter(text, FIELDS.find, NOW)(row) == is_matching


def test_a_mistake_names_its_place_and_the_nearest_field() -> None:
    with pytest.raises(GanglineError, match=r"character 10: expected `and`, `or` or the end, found 'size'"):
        parse_filter("size = 1 size = 2", FIELDS.find, NOW)
    with pytest.raises(GanglineError, match="there is no field 'sice', nearest is size"):
        parse_filter("sice = 1", FIELDS.find, NOW)


def sort_rows(rows: list[Row], keys: tuple[SortKey, ...]) -> list[Row]:
    places = list(range(len(rows)))
    for key, field in reversed([*zip(keys, sort_fields(keys, FIELDS.find), strict=True)]):
        places = sort_places(places, [field.read(row) for row in rows], is_descending=key.is_descending)
    return [rows[place] for place in places]


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(ROWS, max_size=12), st.booleans(), st.booleans())
def test_rows_are_sorted_by_several_keys_and_those_without_a_value_come_last(
    rows: list[Row], is_first_descending: bool, is_second_descending: bool
) -> None:
    keys = (SortKey("size", is_first_descending), SortKey("name", is_second_descending))
    ordered_rows = sort_rows(rows, keys)
    assert sorted(map(id, ordered_rows)) == sorted(map(id, rows))
    for left, right in pairwise(ordered_rows):
        for (name, is_descending), (one, two) in zip(
            keys, ((left["size"], right["size"]), (left["name"], right["name"])), strict=True
        ):
            assert one is not None or two is None, name
            if one is None or two is None:
                if one is two:
                    continue
                break
            assert one >= two if is_descending else one <= two
            if one != two:
                break


def test_equal_rows_keep_their_order() -> None:
    rows: list[Row] = [{"size": number % 2, "name": str(number)} for number in range(10)]
    names: list[Value] = [row["name"] for row in sort_rows(rows, (SortKey("size", is_descending=True),))]
    assert names == ["1", "3", "5", "7", "9", "0", "2", "4", "6", "8"]
