"""Holds what the import contracts in pyproject.toml cannot say: what a PURE module may import, which single module may
use aetcd, and what `import gangline` and a rank's import load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.source import ROOT, SourceFile, list_imports, list_source_files

EFFECTS = {
    *("aetcd", "asyncio", "fsspec", "grpc", "httpx", "sqlalchemy", "torch"),
    *("datetime", "os.environ", "random", "secrets", "time", "uuid"),
    *("select", "socket", "subprocess", "tempfile", "threading"),
}


def _pure_files() -> list[SourceFile]:
    return [file for file in list_source_files() if file.is_pure]


@pytest.mark.parametrize("file", _pure_files(), ids=lambda file: file.path)
def test_pure_module_imports_no_effects(file: SourceFile) -> None:
    """No clock, chance, network, process or framework: `now`, random numbers and new ids come in as arguments."""
    assert _effects_of(file) == set()


@pytest.mark.parametrize("file", _pure_files(), ids=lambda file: file.path)
def test_pure_module_has_no_effects_through_ours(file: SourceFile) -> None:
    """Our modules that it imports, directly or not, need not be marked PURE, but are pure: records, parsers, sums."""
    file_by_module = {source.module: source for source in list_source_files()}
    seen, waiting = {file.module}, [file]
    while waiting:
        names = list_imports(waiting.pop()) & file_by_module.keys() - seen
        seen |= names
        waiting += [file_by_module[name] for name in names]
    assert [name for name in sorted(seen) if _effects_of(file_by_module[name])] == []


def _effects_of(file: SourceFile) -> set[str]:
    return {name for name in list_imports(file) if name in EFFECTS or name.split(".")[0] in EFFECTS}


def test_one_package_talks_to_etcd() -> None:
    users = [file.path for file in list_source_files() if any(n.split(".")[0] == "aetcd" for n in list_imports(file))]
    assert [path for path in users if not path.startswith(("services/common/etcd", "tests/"))] == []


def _modules_loaded_by(statement: str) -> set[str]:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}; print(*sys.modules)"
    command = [sys.executable, "-I", "-c", program]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_import_gangline_is_light() -> None:
    loaded = _modules_loaded_by("import gangline")
    assert "gangline" in loaded
    assert loaded & {"torch", "grpc", "numpy", "pydantic", "google.protobuf", "services"} == set()


def test_patterns_load_their_library_only_where_there_are_some() -> None:
    """Ranks and most clients read configurations without any."""
    assert "re2" not in _modules_loaded_by("import gangline.config")
