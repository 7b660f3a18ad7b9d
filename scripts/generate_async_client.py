"""Writes the asynchronous client from the one that blocks, so that every method and rule of the SDK is written once.

`make async-client` writes the files; with --check it only compares them. The text stays as it is, comments included,
except for these changes: a call that waits gets `await`, a function with such a call becomes `async def`, a loop over a
stream becomes `async for`, and names change by the tables below. A call waits if its name is in WAITING, or if it is a
method of these files that waits itself. mypy checks the results, so a call that is missed here fails there.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "gangline" / "client"
SOURCES = (
    "access",
    "audit",
    "cluster_calls",
    "cluster_handle",
    "creation_calls",
    "experiment_calls",
    "handle",
    "project",
    "quota",
    "registry",
    "saved_view",
    "session",
    "user",
)
# Functions and methods that wait, and the iterator over answers of a gateway, which the sources call.
WAITING = {"_connection.call", "_connection.close", "in_thread", "in_thread_to_its_end", "pause_for", "next"}
STREAMS = {"_connection.stream", "_connection.stream_once"}
HANDLES = ("cluster_handle", "handle")
OBJECTS = ("Agent", "Checkpoint", "Experiment", "Job", "MetricsReader", "Trial")
NAMES = {
    "AuditMethods": "AsyncAuditMethods",
    "Client": "AsyncClient",
    "ClusterCalls": "AsyncClusterCalls",
    "CreationCalls": "AsyncCreationCalls",
    "ExperimentCalls": "AsyncExperimentCalls",
    "ProjectMethods": "AsyncProjectMethods",
    "QuotaMethods": "AsyncQuotaMethods",
    "RegistryMethods": "AsyncRegistryMethods",
    "SavedViewMethods": "AsyncSavedViewMethods",
    "AccessMethods": "AsyncAccessMethods",
    "UserMethods": "AsyncUserMethods",
    "Connection": "AsyncConnection",
    "Iterator": "AsyncIterator",
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__next__": "__anext__",
    "next": "anext",
}
MODULES = {name: f"async_{name}" for name in (*SOURCES, "connection")}


@dataclass
class Names:
    """The methods of the sources that wait, and those that yield from a stream."""

    waiting: set[str] = field(default_factory=lambda: set(WAITING))
    streams: set[str] = field(default_factory=lambda: set(STREAMS))

    def waits(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and bool(_callee(node) & self.waiting)

    def is_stream(self, node: ast.AST) -> bool:
        is_self = isinstance(node, ast.Name) and node.id == "self"
        return is_self or (isinstance(node, ast.Call) and bool(_callee(node) & self.streams))


def _callee(call: ast.Call) -> set[str]:
    """Returns the names by which the tables may know the function."""
    names = ast.unparse(call.func).split(".")
    if names[0] == "self" or len(names) == 1:
        return {names[-1], ".".join(names[-2:])}
    # A method of another object than self and its client: only objects of the SDK are called so in the sources.
    return {names[-1]} if names[0] in ("experiment",) else set()


def _own_nodes(function: ast.FunctionDef) -> list[ast.AST]:
    """Returns the nodes of a function without those of functions inside of it."""
    nodes: list[ast.AST] = []
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        nodes.append(node)
        if not isinstance(node, ast.FunctionDef):
            stack.extend(ast.iter_child_nodes(node))
    return nodes


def find_names(trees: list[ast.Module]) -> Names:
    """Finds the methods that wait, until no method is added."""
    names = Names()
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    while True:
        before = len(names.waiting) + len(names.streams)
        for function in functions:
            nodes = _own_nodes(function)
            loops = any(isinstance(node, ast.For) and names.is_stream(node.iter) for node in nodes)
            waits = loops or any(map(names.waits, nodes))
            if not waits:
                passes = [node for node in nodes if isinstance(node, ast.Return) and node.value is not None]
                if any(names.is_stream(node.value) for node in passes if isinstance(node.value, ast.Call)):
                    names.streams.add(function.name)
            elif any(isinstance(node, ast.Yield) for node in nodes):
                names.streams.add(function.name)
            else:
                names.waiting.add(function.name)
        if len(names.waiting) + len(names.streams) == before:
            return names


class _Writer:
    """Collects the changes to one file and applies them from its end to its start."""

    def __init__(self, text: str, names: Names, *, has_objects: bool) -> None:
        self._text = text
        self._names = names
        self._tree = ast.parse(text)
        self._parents = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._changes: list[tuple[int, int, str]] = []
        self._table = {**NAMES, **({name: f"Async{name}" for name in OBJECTS} if has_objects else {})}

    def write(self) -> str:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef):
                self._function(node)
            elif isinstance(node, ast.ClassDef):
                self._rename(self._at(node) + len("class "), node.name)
            elif isinstance(node, ast.Name):
                self._rename(self._at(node), node.id)
            elif isinstance(node, ast.Attribute):
                self._attribute(node)
            elif isinstance(node, ast.For) and self._names.is_stream(node.iter):
                self._insert(self._at(node), "async ")
            elif isinstance(node, ast.ImportFrom):
                self._import(node)
            if self._names.waits(node):
                self._await(node)
        text = self._text
        for start, end, new in sorted(self._changes, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def _function(self, node: ast.FunctionDef) -> None:
        nodes = _own_nodes(node)
        loops = any(isinstance(inner, ast.For) and self._names.is_stream(inner.iter) for inner in nodes)
        start = self._at(node)
        if loops or any(map(self._names.waits, nodes)) or node.name == "__enter__":
            self._insert(start, "async ")
        self._rename(start + len("def "), node.name)

    def _attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in HANDLES and node.attr in OBJECTS:
            self._insert(self._end(node) - len(node.attr), "Async")

    def _await(self, node: ast.AST) -> None:
        is_inner = isinstance(self._parents[node], ast.Attribute | ast.Subscript | ast.BoolOp)
        self._insert(self._at(node), "(await " if is_inner else "await ")
        if is_inner:
            self._insert(self._end(node), ")")

    def _import(self, node: ast.ImportFrom) -> None:
        package, _, module = (node.module or "").rpartition(".")
        start = self._at(node)
        line = self._text[start : self._end(node)]
        new = line
        if package == "gangline.client" and module in MODULES:
            new = new.replace(f"{package}.{module} ", f"{package}.{MODULES[module]} ")
        for alias in node.names:
            if node.module == "gangline.client" and alias.name in MODULES:
                new = re.sub(rf"\b{alias.name}\b", f"{MODULES[alias.name]} as {alias.name}", new)
            elif alias.name in self._table and alias.asname is None:
                new = new.replace(f" {alias.name}", f" {self._table[alias.name]}")
        if new != line:
            self._changes.append((start, self._end(node), new))

    def _rename(self, start: int, name: str) -> None:
        if name in self._table and self._text.startswith(name, start):
            self._changes.append((start, start + len(name), self._table[name]))

    def _insert(self, at: int, text: str) -> None:
        self._changes.append((at, at, text))

    def _at(self, node: Any) -> int:
        return int(self._starts[node.lineno - 1] + node.col_offset)

    def _end(self, node: Any) -> int:
        return int(self._starts[node.end_lineno - 1] + node.end_col_offset)


def generate() -> dict[Path, str]:
    """Returns the text of each file of the asynchronous client."""
    texts = {name: (FOLDER / f"{name}.py").read_text("utf-8") for name in SOURCES}
    names = find_names([ast.parse(text) for text in texts.values()])
    return {
        FOLDER / f"async_{name}.py": _format(_head(name) + _body(_write(text, names, name)))
        for name, text in texts.items()
    }


def _write(text: str, names: Names, name: str) -> str:
    assert text.isascii(), f"{name}.py: positions in the tree are bytes"
    return _Writer(text, names, has_objects=name in HANDLES).write()


def _head(name: str) -> str:
    return (
        f'"""The twin of gangline.client.{name} for asyncio.\n\n'
        f"Written by scripts/generate_async_client.py from {name}.py. Change that file, then run `make async-client`.\n"
        '"""\n\n'
    )


def _body(text: str) -> str:
    """Returns the text without its docstring."""
    return text[text.index("from __future__") :]


def _format(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    for arguments in (["check", "--select", "I", "--fix-only", "--quiet"], ["format", "--quiet"]):
        command = [str(ruff), *arguments, "--stdin-filename", "gangline/client/generated.py", "-"]
        text = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main(arguments: list[str]) -> int:
    stale = [path for path, text in generate().items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what its source says; run: make async-client")
        return 1 if stale else 0
    for path, text in generate().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
