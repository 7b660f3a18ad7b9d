"""The cost of an import: the client stays free of torch, training code of the services, the warm process of threads.
And that each service imports what it uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

_REPORT = """
import sys, threading
assert threading.active_count() == 1, threading.enumerate()
loaded = sorted(set(name.split(".")[0] for name in sys.modules) & {forbidden})
assert not loaded, loaded
"""


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("gangline", {"torch", "grpc", "services", "numpy", "pydantic"}),
        ("gangline.client", {"torch", "services", "numpy", "pandas", "pydantic", "rich", "yaml"}),
        ("gangline.core", {"torch", "grpc", "services"}),
        ("gangline.rank.entrypoint", {"torch", "grpc", "services"}),
        ("gangline.pytorch", {"grpc", "services"}),
    ],
)
def test_import_loads_only_what_it_needs(module: str, forbidden: set[str]) -> None:
    program = f"import {module}" + _REPORT.replace("{forbidden}", repr(forbidden))
    if module == "gangline.pytorch":
        program += "import torch; assert not torch.cuda.is_initialized()\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_client_that_blocks_loads_nothing_of_the_other() -> None:
    program = (
        "import sys, gangline.client; print([name for name in sys.modules if name.startswith('gangline.client.async')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_gangline_has_the_names_of_the_sdk_and_loads_it_with_the_first_one() -> None:
    program = """
import sys, gangline
assert {"Client", "AsyncClient", "Experiment"} <= set(dir(gangline)) and "grpc" not in sys.modules
assert gangline.Client is gangline.client.Client and gangline.AsyncClient.__module__.endswith("async_session")
assert not hasattr(gangline, "Cluent")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Imports a service as its command does, and looks for names of modules that are not loaded then, such as
# `importlib.metadata` where no module imports more than `importlib`. Then imports the other modules of the service.
# Generated stubs are left out: they name parts of grpc that only their unused functions need.
_IMPORT_ALL = """
import ast, importlib, pkgutil, sys, types

def is_missing(module, imported, node):
    if isinstance(node, ast.Name):
        return False, getattr(module, node.id, None) if node.id in imported else None
    if not isinstance(node, ast.Attribute):
        return False, None
    missing, owner = is_missing(module, imported, node.value)
    if not isinstance(owner, types.ModuleType):
        return missing, None
    return missing or not hasattr(owner, node.attr), getattr(owner, node.attr, None)

def check(name, module):
    with open(module.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    imports = [alias for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    imported = {alias.asname or alias.name.partition(".")[0] for alias in imports}
    nodes = list(ast.walk(tree))
    # Annotations are not evaluated.
    annotations = [getattr(node, field, None) for node in nodes for field in ("annotation", "returns")]
    left_out = {part for annotation in annotations if annotation for part in ast.walk(annotation)}
    for node in nodes:
        if node not in left_out and is_missing(module, imported, node)[0]:
            sys.exit(f"{name}:{node.lineno} uses {ast.unparse(node)}, which nothing imports")

def check_all():
    for name, module in sorted(sys.modules.items()):
        is_ours = name.partition(".")[0] in {"services", "gangline"} and not name.startswith("gangline.v1")
        if is_ours and getattr(module, "__file__", None):
            check(name, module)

package = sys.argv[1]
if package != "services.common":
    importlib.import_module(package + ".__main__")
    check_all()
for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
    importlib.import_module(module.name)
"""


@pytest.mark.parametrize("package", ["agent", "common", "gateway", "scheduler", "trial_runner"])
def test_a_service_imports_all_that_it_uses_by_itself(package: str) -> None:
    """In other tests all services are forks of one process, in which one has what another one has imported."""
    command = [sys.executable, "-c", _IMPORT_ALL, f"services.{package}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
