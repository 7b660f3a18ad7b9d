"""Reads the repository's own Python files for the tests that check its structure.

Generated stubs are excluded. Syntax trees are not kept: those of all files are millions of objects, which each garbage
collection would visit. Called by tests/unit/test_size.py, test_fields.py and test_layers.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "examples", "gangline", "scripts", "services", "tests")
GENERATED = ROOT / "gangline" / "v1"
_DOCSTRING = re.compile(r'(?:#[^\n]*\n|\s)*"""(.*?)"""', re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """path is relative to the repository; module is its dotted name."""

    path: str
    module: str = field(compare=False)
    text: str = field(compare=False, repr=False)

    @property
    def num_lines(self) -> int:
        return self.text.count("\n")

    @property
    def docstring(self) -> str:
        found = _DOCSTRING.match(self.text)
        return found[1] if found else ""

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")

    @property
    def is_pure(self) -> bool:
        return self.docstring.startswith("PURE")

    @property
    def tree(self) -> ast.Module:
        """Its syntax tree, parsed anew."""
        return ast.parse(self.text)


@dataclass(frozen=True, slots=True)
class Function:
    """A function in a file."""

    name: str
    line: int  # its first line
    num_lines: int  # its lines without decorators


@cache
def list_source_files() -> tuple[SourceFile, ...]:
    return tuple(
        _read(path)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if GENERATED not in path.parents
    )


def list_functions(file: SourceFile) -> tuple[Function, ...]:
    """Methods and inner functions too."""
    return _facts_of(file)[0]


def list_imports(file: SourceFile) -> frozenset[str]:
    """Dotted names of what is imported anywhere in the file; of `from a import b` both "a" and "a.b".

    What stands under `if TYPE_CHECKING:` is left out: it is never loaded.
    """
    return _facts_of(file)[1]


@cache
def _facts_of(file: SourceFile) -> tuple[tuple[Function, ...], frozenset[str]]:
    functions: list[Function] = []
    imports: set[str] = set()
    for node, is_loaded in _walk(file.tree, is_loaded=True):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(Function(node.name, node.lineno, (node.end_lineno or 0) - node.lineno + 1))
        elif is_loaded:
            imports |= _imported(node)
    return tuple(functions), frozenset(imports)


def _imported(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


def _walk(block: ast.AST, *, is_loaded: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """The statements in a block, and whether they are run: what stands under `if TYPE_CHECKING:` is not."""
    if isinstance(block, ast.If):
        is_loaded = is_loaded and "TYPE_CHECKING" not in ast.dump(block.test)
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(block, name, ()):
            # A handler or a case is no statement, and has some.
            if isinstance(child, ast.stmt):
                yield child, is_loaded
            yield from _walk(child, is_loaded=is_loaded)


def _read(path: Path) -> SourceFile:
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return SourceFile(str(path.relative_to(ROOT)), module, path.read_text())
