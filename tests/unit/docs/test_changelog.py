"""Holds CHANGELOG.md to the version of the package and to its size: a release is described in a page or two."""

from __future__ import annotations

import re
import tomllib

import gangline
from tests.support.source import ROOT

TEXT = (ROOT / "CHANGELOG.md").read_text()
MAX_BYTES_OF_RELEASE = 8000


def test_version_is_the_same_everywhere() -> None:
    """`gangline --version` prints `gangline.__version__`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert gangline.__version__ == project["version"]
    assert gangline.__version__ in _sections()


def test_every_section_is_short() -> None:
    too_long = [
        f"[{version}]: {len(section.encode())} bytes, at most {MAX_BYTES_OF_RELEASE}"
        for version, section in _sections().items()
        if len(section.encode()) > MAX_BYTES_OF_RELEASE
    ]
    assert too_long == []


def test_linked_pages_exist() -> None:
    pages = re.findall(r"\]\((?!https?:)([^)#]+)", TEXT)
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def _sections() -> dict[str, str]:
    """Sections by the version in their heading, such as `## [0.1.0] - 2026-11-28`, or "Unreleased"."""
    return dict(re.findall(r"^## \[([^\]]+)\][^\n]*\n(.*?)(?=^## \[|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL))
