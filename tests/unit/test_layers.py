"""Holds what the import contracts in pyproject.toml cannot say: what a PURE module may import, which single module may
use aetcd, and what `import gangline` and a rank's import load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Set

from tests.support.source import ROOT, SourceFile, list_imports, list_source_files

EFFECTS = {
    *("aetcd", "asyncio", "fsspec", "grpc", "httpx", "sqlalchemy", "torch"),
    *("datetime", "os.environ", "random", "secrets", "time", "uuid"),
    *("select", "socket", "subprocess", "tempfile", "threading"),
}


def _pure_files() -> list[SourceFile]:
    return [file for file in list_source_files() if file.is_pure]


def test_pure_modules_import_no_effects() -> None:
    """No clock, chance, network, process or framework: `now`, random numbers and new ids come in as arguments."""
    assert {file.path: effects for file in _pure_files() if (effects := _effects_of(file))} == {}


def test_pure_modules_have_no_effects_through_ours() -> None:
    """Our modules that they import, directly or not, need not be marked PURE, but are pure: records, parsers, sums."""
    file_by_module = {source.module: source for source in list_source_files()}
    imports = {module: list_imports(file) & file_by_module.keys() for module, file in file_by_module.items()}
    with_effects = {module for module, file in file_by_module.items() if _effects_of(file)}
    offenders = {file.path: sorted(_reachable(file.module, imports) & with_effects) for file in _pure_files()}
    assert {path: modules for path, modules in offenders.items() if modules} == {}


def _reachable(module: str, imports: Mapping[str, Set[str]]) -> set[str]:
    """Returns the module and what it imports, directly or not."""
    seen, waiting = {module}, [module]
    while waiting:
        names = imports[waiting.pop()] - seen
        seen |= names
        waiting += names
    return seen


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
