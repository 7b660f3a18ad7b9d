"""Holds the map of the repository to the code.

ARCHITECTURE.md and the READMEs of folders name only files, functions and classes that exist. ARCHITECTURE.md also names
every folder of the library and the services, and every key in etcd.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from services.common import keys
from tests.support.source import FOLDERS, ROOT, list_source_files

MAP = ROOT / "ARCHITECTURE.md"
_READMES = (page for folder in ("gangline", "services", "tests") for page in (ROOT / folder).rglob("README.md"))
PAGES = [MAP, *sorted(_READMES)]
# Files of a running cluster, such as exit.json, have other endings.
_PATH = re.compile(r"(?<![\w./*-])(?:[\w-][\w.-]*/)*[\w-][\w.-]*\.(?:py|md|toml|proto)\b")
_NAME = re.compile(rf"({_PATH.pattern}):([A-Za-z_]\w*(?:\.\w+)*)")


def _id_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_id_of)
def test_named_files_exist(page: Path) -> None:
    """A path starts in the page's folder or at the root. The end of a path suffices if only one file has it."""
    wrong = [path for path in sorted(set(_PATH.findall(page.read_text()))) if _find(path, page) is None]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=_id_of)
def test_named_functions_and_classes_exist(page: Path) -> None:
    wrong = []
    for path, name in sorted(set(_NAME.findall(page.read_text()))):
        file = _find(path, page)
        if file is None or not _is_defined(ast.parse(file.read_text()).body, name.split(".")):
            wrong.append(f"{path}:{name}")
    assert wrong == []


def test_every_folder_is_on_the_map() -> None:
    text = MAP.read_text()
    folders = {str(Path(file.path).parent) for file in list_source_files()}
    services_and_library = sorted(folder for folder in folders if folder.startswith(("gangline", "services")))
    assert [folder for folder in services_and_library if f"`{folder}/`" not in text] == []


def test_every_key_is_on_the_map() -> None:
    text = MAP.read_text()
    values = [value for name, value in vars(keys).items() if name.isupper() and value != keys.ROOT]
    assert keys.ROOT in text
    assert [value for value in values if f"`{value.removeprefix(keys.ROOT)}" not in text] == []


def _find(path: str, page: Path) -> Path | None:
    """Returns the file of this path; None where no file has it, or several files end with it."""
    for file in (page.parent / path, ROOT / path):
        if file.is_file():
            return file
    matches = [file for file in _list_files() if file.as_posix().endswith(f"/{path}")]
    return matches[0] if len(matches) == 1 else None


@cache
def _list_files() -> tuple[Path, ...]:
    """Lists the files that a page may name."""
    below = (file for folder in (*FOLDERS, "deploy", "docs", "protos") for file in (ROOT / folder).rglob("*.*"))
    return tuple(file for file in (*ROOT.glob("*.*"), *below) if file.is_file())


def _is_defined(body: Sequence[ast.stmt], names: Sequence[str]) -> bool:
    """Returns whether the first name is defined here, and each further name inside the one before it."""
    first, *inner_names = names
    for node in body:
        if first in _names_of(node):
            return not inner_names or (isinstance(node, ast.ClassDef) and _is_defined(node.body, inner_names))
    return False


def _names_of(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
