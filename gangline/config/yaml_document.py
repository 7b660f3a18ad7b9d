"""PURE: parses YAML text into values, and records the line of each value's key.

Numbers such as 1e-3 are numbers, although PyYAML, which reads YAML 1.1, makes strings of them. A key may occur only
once, and tags other than YAML's own are refused. Aliases are accepted as long as the text with all of them expanded
keeps the limits of gangline.config.bound. Called by gangline.config.parse alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gangline.config.bound import MAX_DEPTH, MAX_VALUES, check_text, too_deep, too_many
from gangline.config.section import clip
from gangline.errors import GanglineError, invalid


@dataclass(frozen=True, slots=True)
class Document:
    """The parsed text."""

    values: Any
    # line of a value's key, from 1, by the path of the value
    line_by_path: dict[tuple[str | int, ...], int] = field(default_factory=dict)
    # For values that were merged from several layers: the layer, empty for this text, and the path there.
    origin_by_path: Mapping[tuple[str | int, ...], tuple[str, tuple[str | int, ...]]] = field(default_factory=dict)

    def line_of(self, path: tuple[str | int, ...]) -> int | None:
        """Returns the line of the value, or of the nearest mapping around an absent value; None for the whole text."""
        source, path = self._origin_of(path)
        while path and path not in self.line_by_path:
            path = path[:-1]
        return None if source else self.line_by_path.get(path)

    def source_of(self, path: tuple[str | int, ...]) -> str:
        """Returns the layer that set the value; empty for the text itself."""
        return self._origin_of(path)[0]

    def _origin_of(self, path: tuple[str | int, ...]) -> tuple[str, tuple[str | int, ...]]:
        for length in range(len(path), 0, -1):
            if path[:length] in self.origin_by_path:
                source, original = self.origin_by_path[path[:length]]
                return source, (*original, *path[length:])
        return "", path


# A longer text is no number that fits into 64 bits, and parsing it takes time that grows with the square of its length.
_MOST_DIGITS = 64


_HALF = re.compile("[\ud800-\udfff]")

# The patterns match PyYAML's problems from their beginning; \\1 is the quoted part of the text.
_WORDS_BY_PROBLEM = (
    (r"found character '\\t'", r"a tab cannot indent a line; use spaces"),
    (r"found character '(.)'", r"a value cannot begin with \1; put the value in quotes"),
    (
        r"mapping values are not allowed",
        r"a second ': ' in one line, or a line that is indented too far; put a value that contains ': ' in quotes",
    ),
    (r"expected ',' or '(.)'", r"a comma or the closing \1 is missing"),
    (r"found unexpected end of stream", r"a string in quotes has no closing quote"),
    (r"found undefined alias '(.*)'", r"no anchor &\1 precedes the alias *\1; a value that begins with * needs quotes"),
    (r"found duplicate anchor '(.*?)'", r"the anchor &\1 occurs a second time; rename one"),
    (r"could not determine a constructor for the tag '(.*)'", r"the tag \1 has no meaning here; remove it"),
    (r"but found another document", r"a second document begins here; keep one, and remove the line ---"),
    (r"found unhashable key", r"a list or a mapping cannot be a key; use a string"),
    (
        r"found unknown escape character '(.)'",
        r"a string in double quotes has the unknown escape \\\1; use single quotes, or write \\\\\1",
    ),
    (r"could not find expected ':'", r"the ':' after a key is missing, or a line is indented too little"),
    (r"expected <block end>", r"this line is not indented as the lines before it"),
    (
        r"expected the node content",
        r"a value is missing here; one that begins with a special character needs quotes",
    ),
    (r"expected alphabetic or numeric character", r"* and & need a name; put a value that begins with one in quotes"),
    (r"expected a single document", r"a second document begins here; keep one, and remove the line ---"),
    (r"expected a mapping", r"<< merges mappings only; name the anchor of a mapping"),
)


class _ValueFault(yaml.constructor.ConstructorError):
    """A value that this module refuses; its problem is our own sentence."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with its own table of number shapes, a limit on nesting, and one-line errors for malformed numbers and
    dates."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            raise too_deep()
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode):
            node.value = _join_pairs(node.value)
        return node

    def construct_flag(self, node: yaml.ScalarNode) -> Any:
        try:
            return self.construct_yaml_bool(node)
        except LookupError as failure:
            what = f"{clip(node.value)!r} is neither true nor false"
            raise _ValueFault(None, None, what, node.start_mark) from failure

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        if len(node.value) > _MOST_DIGITS:
            what = f"a number of {len(node.value)} characters is beyond 64 bits; write it as a string, in quotes"
            raise _ValueFault(None, None, what, node.start_mark)
        read = self.construct_yaml_int if node.tag.endswith(":int") else self.construct_yaml_float
        try:
            return read(node)
        except (ValueError, ArithmeticError, LookupError) as failure:
            what = f"{node.value!r} is no number; write it as a string, in quotes"
            raise _ValueFault(None, None, what, node.start_mark) from failure

    def construct_date(self, node: yaml.ScalarNode) -> Any:
        try:
            return self.construct_yaml_timestamp(node)
        except (ValueError, ArithmeticError, AttributeError) as failure:
            what = f"{clip(node.value)!r} is no date; write it as a string, in quotes"
            raise _ValueFault(None, None, what, node.start_mark) from failure


_Loader.add_constructor("tag:yaml.org,2002:bool", _Loader.construct_flag)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_date)

_Loader.yaml_implicit_resolvers = dict(yaml.SafeLoader.yaml_implicit_resolvers)
# A float in YAML 1.1 needs a dot and a signed exponent. This pattern also accepts 1e-3 and 1e5.
for _letter in "-+0123456789.":
    _Loader.yaml_implicit_resolvers[_letter] = [
        (
            "tag:yaml.org,2002:float",
            re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
        ),
        *_Loader.yaml_implicit_resolvers.get(_letter, []),
    ]


def _join_pairs(text: str) -> str:
    """Returns the text with one character for each surrogate pair, and with halves that have no other half.

    JSON escapes a character beyond U+FFFF as two halves, and YAML reads each escape by itself.
    """
    if not _HALF.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def parse_document(text: str) -> Document:
    """Parses a text. Raises GanglineError `config.syntax` with line and column, `config.duplicate_key` or
    `config.too_large`."""
    check_text(text)
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            _check_aliases(node)
            lines: dict[tuple[str | int, ...], int] = {}
            _note_lines(node, (), lines)
            values = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except yaml.YAMLError as failure:
        raise _syntax_error(failure) from failure
    except RecursionError as failure:
        # Aliases of nested values can be deep together, although each is shallow where it is written.
        raise too_deep() from failure
    except (ValueError, OverflowError) as failure:
        raise invalid(
            "config.syntax", "the configuration is no YAML; a number or a date in it is out of range"
        ) from failure
    return Document(values, lines)


def _check_aliases(root: yaml.Node | None) -> None:
    """Counts the values as if each alias were expanded, without expanding any, because aliases of aliases multiply.

    Raises GanglineError `config.too_large`, and YAMLError for an alias to a value around it.
    """
    size_by_id: dict[int, int] = {}

    def measure(node: yaml.Node) -> int:
        if id(node) not in size_by_id:
            # The size is 0 while the value is being measured. A value that meets its own 0 contains itself.
            size_by_id[id(node)] = 0
            size_by_id[id(node)] = 1 + sum(measure(inner) for inner in _inner(node))
        elif not size_by_id[id(node)]:
            raise _ValueFault(None, None, "an alias stands inside of its own anchor", node.start_mark)
        return size_by_id[id(node)]

    num_values = measure(root) if root is not None else 0
    # This count includes the keys, so the limit is doubled.
    if num_values > 2 * MAX_VALUES:
        raise too_many(num_values, " once its aliases are written out")


def _inner(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _note_lines(node: yaml.Node | None, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*path, key.value if isinstance(key, yaml.ScalarNode) else "?")
            line = key.start_mark.line + 1
            if place in lines and key.tag != "tag:yaml.org,2002:merge":
                raise invalid(
                    "config.duplicate_key",
                    f"line {line}: {clip(place[-1])} stands here a second time (first on line {lines[place]}); keep "
                    "one",
                )
            lines[place] = line
            _note_lines(value, place, lines)
    elif isinstance(node, yaml.SequenceNode):
        for position, entry in enumerate(node.value):
            lines[(*path, position)] = entry.start_mark.line + 1
            _note_lines(entry, (*path, position), lines)


def _syntax_error(failure: yaml.YAMLError) -> GanglineError:
    mark = getattr(failure, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return invalid("config.syntax", f"{place}this is no valid YAML: {_words_of(failure)}")


def _words_of(failure: yaml.YAMLError) -> str:
    """Returns our own sentence for an error of PyYAML."""
    if isinstance(failure, _ValueFault):
        return str(failure.problem)
    if isinstance(failure, yaml.reader.ReaderError):
        return f"the character at position {failure.position} cannot be printed; remove it, or save the file as UTF-8"
    problem = getattr(failure, "problem", None) or ""
    for pattern, words in _WORDS_BY_PROBLEM:
        match = re.match(pattern, problem)
        if match is not None:
            return match.expand(words)
    return "check the quotes, brackets and indentation here"
