"""Holds the map of the repository to the code.

ARCHITECTURE.md, docs/design and the READMEs of folders name only files, functions, classes, folders and keys in etcd
that exist. docs/design/folders.md has every folder of the library and the services, docs/design/state.md every key in
etcd. ARCHITECTURE.md stays short enough to be read at one go.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from scripts import folder_table
from services.common import keys
from tests.support.source import FOLDERS, ROOT, list_source_files

MAP = ROOT / "ARCHITECTURE.md"
MAX_BYTES_OF_MAP = 12_000
DESIGN = ROOT / "docs" / "design"
_READMES = (page for folder in ("gangline", "services", "tests") for page in (ROOT / folder).rglob("README.md"))
PAGES = [MAP, *sorted(DESIGN.glob("*.md")), *sorted(_READMES)]
KEYS = {value.removeprefix(keys.ROOT) for name, value in vars(keys).items() if name.isupper() and value != keys.ROOT}
# Files of a running cluster, such as exit.json, have other endings.
_PATH = re.compile(r"(?<![\w./*-])(?:[\w-][\w.-]*/)*[\w-][\w.-]*\.(?:py|md|toml|proto)\b")
_NAME = re.compile(rf"({_PATH.pattern}):([A-Za-z_]\w*(?:\.\w+)*)")
_FOLDER = re.compile(r"`((?:[\w-]+/)+)`")
# `Ledger`, `Ledger.consider` or `STALLED_SECONDS`, without a file.
_NAME_ALONE = re.compile(r"`((?=[A-Z])(?:\w*[a-z]|[A-Z]+_)\w*(?:\.\w+)*)`")
# Folders of a running cluster have a dot in their names.
_KEY = re.compile(r"`((?:meta|election)/\w+|[a-z_]+/<[^`.]+)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]+)?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _id_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_map_is_short() -> None:
    assert len(MAP.read_bytes()) <= MAX_BYTES_OF_MAP


@pytest.mark.parametrize("page", PAGES, ids=_id_of)
def test_named_files_exist(page: Path) -> None:
    """A path starts in the page's folder or at the root. The end of a path suffices if only one file has it."""
    wrong = [path for path in sorted(set(_PATH.findall(page.read_text()))) if _find(path, page) is None]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=_id_of)
def test_named_folders_exist(page: Path) -> None:
    wrong = [path for path in sorted(set(_FOLDER.findall(page.read_text()))) if not _is_folder(path, page)]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=_id_of)
def test_named_functions_and_classes_exist(page: Path) -> None:
    text = page.read_text()
    wrong = []
    for path, name in sorted(set(_NAME.findall(text))):
        file = _find(path, page)
        if file is None or not _is_defined(ast.parse(file.read_text()).body, name.split(".")):
            wrong.append(f"{path}:{name}")
    wrong += [name for name in sorted(set(_NAME_ALONE.findall(text))) if not _is_defined_anywhere(name.split("."))]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=_id_of)
def test_named_keys_exist(page: Path) -> None:
    tables = tuple(key for key in KEYS if key.endswith("/"))
    named = sorted(set(_KEY.findall(page.read_text())))
    assert [key for key in named if key not in KEYS and not key.startswith(tables)] == []


@pytest.mark.parametrize("page", PAGES, ids=_id_of)
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    broken = []
    for path, anchor in sorted(set(_LINK.findall(page.read_text()))):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors_of(target)):
            broken.append(path + anchor)
    assert broken == []


def test_every_folder_has_a_row() -> None:
    text = (DESIGN / "folders.md").read_text()
    folders = {str(Path(file.path).parent) for file in list_source_files()}
    services_and_library = sorted(folder for folder in folders if folder.startswith(("gangline", "services")))
    assert [folder for folder in services_and_library if f"\n| `{folder}/` |" not in text] == []


def test_the_table_of_folders_is_up_to_date() -> None:
    assert folder_table.PAGE.read_text() == folder_table.make_page()


def test_every_key_has_a_row() -> None:
    text = (DESIGN / "state.md").read_text()
    assert keys.ROOT in text
    assert [key for key in sorted(KEYS) if not re.search(rf"^\|.*`{key}", text, re.MULTILINE)] == []


def _find(path: str, page: Path) -> Path | None:
    """Returns the file of this path; None where no file has it, or several files end with it."""
    for file in (page.parent / path, ROOT / path):
        if file.is_file():
            return file
    matches = [file for file in _list_files() if file.as_posix().endswith(f"/{path}")]
    return matches[0] if len(matches) == 1 else None


def _is_folder(path: str, page: Path) -> bool:
    return (page.parent / path).is_dir() or (ROOT / path).is_dir()


@cache
def _list_files() -> tuple[Path, ...]:
    """Lists the files that a page may name."""
    below = (file for folder in (*FOLDERS, "deploy", "docs", "protos") for file in (ROOT / folder).rglob("*.*"))
    return tuple(file for file in (*ROOT.glob("*.*"), *below) if file.is_file())


@cache
def _anchors_of(page: Path) -> frozenset[str]:
    """Returns the anchors that GitHub gives the headings of a page."""
    headings = _HEADING.findall(page.read_text())
    return frozenset("#" + re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings)


def _is_defined_anywhere(names: Sequence[str]) -> bool:
    """Returns whether one file of ours or one proto defines all of the names."""
    kinds = "(?:async def|def|class|message|service|rpc)"
    patterns = [re.compile(rf"^\s*(?:{kinds} {name}\b|{name}\s*[:=])", re.MULTILINE) for name in names]
    return any(all(pattern.search(text) for pattern in patterns) for text in _list_texts())


@cache
def _list_texts() -> tuple[str, ...]:
    protos = sorted((ROOT / "protos").rglob("*.proto"))
    return (*(file.text for file in list_source_files()), *(file.read_text() for file in protos))


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
