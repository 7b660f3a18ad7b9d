"""The text by which users filter a table, such as `state = RUNNING and (hp.lr < 0.1 or label ~ "^a")`.

    filter     = part {"or" part}
    part       = item {"and" item}
    item       = "not" item | "(" filter ")" | comparison
    comparison = field operator value | field ["not"] "in" "(" value {"," value} ")"
    operator   = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~"

`~` searches for a pattern of RE2. A value is a word, or a text in double quotes with JSON's escapes; the word `null` is
the missing value. A part of a field's name may be quoted: `hp."my rate"`. Length, depth, comparisons, values and
patterns are bounded, so the cost of a filter on a row is bounded too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from gangline.errors import GanglineError, invalid
from services.gateway.table.field import Field
from services.gateway.table.term import OPERATORS, Literal, make_member_test, make_test

MAX_LENGTH = 4000
MAX_DEPTH = 20
MAX_COMPARISONS = 50
MAX_VALUES = 500
MAX_PATTERNS = 10

Row = TypeVar("Row")
Predicate = Callable[[Row], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>!=|<=|>=|!~|[=<>~(),])|(?P<string>"(?:[^"\\]|\\.)*")|(?P<word>[^\s=<>~!(),"]+))""", re.DOTALL
)
_WORDS = frozenset({"and", "or", "not", "in"})


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # mark, string, word, or end
    text: str
    start: int
    end: int


def parse_filter(text: str, find: Callable[[str], Field[Row]], now: float) -> Predicate[Row]:
    """Returns the condition on a row; an empty text holds for every row. find: returns the field of a name. now: Unix
    seconds, from which ages such as 7d count. Raises GanglineError `filter.*`, and the errors of `find`."""
    if len(text) > MAX_LENGTH:
        raise invalid("filter.length", f"the filter has {len(text)} characters, at most {MAX_LENGTH} are allowed")
    tokens = _split(text)
    if len(tokens) == 1:
        return lambda row: True
    return _Parser(tokens, find, now).parse()


def _split(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    end = 0
    while text[end:].strip():
        match = _TOKEN.match(text, end)
        if match is None:
            start = end + len(text[end:]) - len(text[end:].lstrip())
            raise _mistake(start, f"{text[start : start + 20]!r} is no part of a filter; texts stand in double quotes")
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind), match.end()))
        end = match.end()
    tokens.append(_Token("end", "", len(text), len(text)))
    return tokens


class _Parser(Generic[Row]):
    """Reads one filter. Its recursion is bounded by MAX_DEPTH."""

    def __init__(self, tokens: list[_Token], find: Callable[[str], Field[Row]], now: float) -> None:
        self._tokens = tokens
        self._find = find
        self._now = now
        self._place = 0
        self._depth = 0
        self._num_comparisons = 0
        self._num_values = 0
        self._num_patterns = 0

    def parse(self) -> Predicate[Row]:
        predicate = self._either()
        if self._next.kind != "end":
            self._fail("expected `and`, `or` or the end")
        return predicate

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _take(self) -> _Token:
        token = self._next
        self._place += token.kind != "end"
        return token

    def _skip(self, text: str) -> bool:
        """Takes the next token if it is this mark or word."""
        is_there = self._next.kind in ("mark", "word") and self._next.text == text
        self._place += is_there
        return is_there

    def _either(self) -> Predicate[Row]:
        parts = [self._all()]
        while self._skip("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else lambda row: any(part(row) for part in parts)

    def _all(self) -> Predicate[Row]:
        items = [self._item()]
        while self._skip("and"):
            items.append(self._item())
        return items[0] if len(items) == 1 else lambda row: all(item(row) for item in items)

    def _item(self) -> Predicate[Row]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise invalid("filter.depth", f"the filter is nested more than {MAX_DEPTH} deep; write it flatter")
        try:
            if self._skip("not"):
                inner = self._item()
                return lambda row: not inner(row)
            if self._skip("("):
                inner = self._either()
                self._expect(")")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Predicate[Row]:
        self._num_comparisons += 1
        self._check("comparisons", self._num_comparisons, MAX_COMPARISONS)
        field = self._field()
        read = field.read
        is_negated = self._skip("not")
        if self._skip("in"):
            test = make_member_test(field, self._values(), self._now)
            if is_negated:
                return lambda row: not test(read(row))
            return lambda row: test(read(row))
        operator = self._next.text if self._next.kind == "mark" else ""
        if is_negated or operator not in OPERATORS:
            self._fail(f"expected one of {' '.join(OPERATORS)} or `in` after the field {field.name}")
        self._take()
        if operator in ("~", "!~"):
            self._num_patterns += 1
            self._check("patterns", self._num_patterns, MAX_PATTERNS)
        test = make_test(field, operator, self._value(), self._now)
        return lambda row: test(read(row))

    def _field(self) -> Field[Row]:
        """Reads a name of words and quoted parts that touch each other."""
        first = self._next
        if first.kind != "word" or first.text in _WORDS:
            self._fail("expected the name of a field")
        name, end = "", first.start
        while self._next.start == end and self._next.kind in ("word", "string"):
            token = self._take()
            name, end = name + (token.text if token.kind == "word" else self._unquoted(token)), token.end
        return self._find(name)

    def _values(self) -> list[Literal]:
        self._expect("(")
        values = [self._value()]
        while self._skip(","):
            values.append(self._value())
        self._expect(")")
        return values

    def _value(self) -> Literal:
        self._num_values += 1
        self._check("values", self._num_values, MAX_VALUES)
        token = self._next
        if token.kind == "string":
            return Literal(self._unquoted(self._take()), is_quoted=True)
        if token.kind != "word" or token.text in _WORDS:
            self._fail("expected a value; texts with spaces or marks stand in double quotes")
        return Literal(self._take().text)

    def _unquoted(self, token: _Token) -> str:
        try:
            text: str = json.loads(token.text, strict=False)
        except ValueError:
            raise _mistake(token.start, "this text has an escape that JSON does not know") from None
        return text

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            self._fail(f"expected {mark!r}")

    def _fail(self, text: str) -> NoReturn:
        found = repr(self._next.text[:20]) if self._next.text else "the end"
        raise _mistake(self._next.start, f"{text}, found {found}")

    def _check(self, what: str, number: int, most: int) -> None:
        if number > most:
            raise invalid("filter.size", f"the filter has more than {most} {what}; shorten it")


def _mistake(start: int, text: str) -> GanglineError:
    return invalid("filter.syntax", f"filter, character {start + 1}: {text}")
