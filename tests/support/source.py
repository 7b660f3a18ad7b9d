"""Reads the repository's own Python files for the tests that check its structure.

Generated stubs are excluded. Called by tests/unit/test_size.py and test_layers.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "examples", "gangline", "scripts", "services", "tests")
GENERATED = ROOT / "gangline" / "v1"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """path is relative to the repository; module is its dotted name."""

    path: str
    module: str
    num_lines: int
    tree: ast.Module

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")

    @property
    def is_pure(self) -> bool:
        return self.docstring.startswith("PURE")


@cache
def list_source_files() -> tuple[SourceFile, ...]:
    return tuple(
        _read(path)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if GENERATED not in path.parents
    )


def iterate_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Methods and inner functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@cache
def list_imports(tree: ast.AST) -> frozenset[str]:
    """Dotted names of what is imported anywhere in the file; of `from a import b` both "a" and "a.b".

    What stands under `if TYPE_CHECKING:` is left out: it is never loaded.
    """
    names: set[str] = set()
    for node in _walk_loaded(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def _walk_loaded(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk_loaded(child)


def _read(path: Path) -> SourceFile:
    text = path.read_text()
    parts = path.relative_to(ROOT).with_suffix("").parts
    return SourceFile(
        path=str(path.relative_to(ROOT)),
        module=".".join(parts[:-1] if parts[-1] == "__init__" else parts),
        num_lines=text.count("\n"),
        tree=ast.parse(text),
    )
