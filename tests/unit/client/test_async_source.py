"""The asynchronous client is the one that blocks, with `await`: the same methods, arguments and words."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from typing import Any

import pytest

import gangline.client
from gangline.client import cluster_handle, handle
from gangline.client.cluster_calls import ClusterCalls
from scripts.generate_async_client import OBJECTS, SOURCES, find_names
from tests.support.source import ROOT

PAIRS = [(getattr(gangline.client, name), getattr(gangline.client, f"Async{name}")) for name in ("Client", *OBJECTS)]


def test_generated_files_are_what_their_sources_say() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_async_client.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=lambda pair: pair.__name__)
def test_both_have_the_same_methods_with_the_same_arguments(blocking: type, asynchronous: type) -> None:
    assert _public(blocking) == _public(asynchronous)
    for name in _public(blocking):
        ours, theirs = inspect.getattr_static(blocking, name), inspect.getattr_static(asynchronous, name)
        assert ours.__doc__ == theirs.__doc__
        if not isinstance(ours, property):
            assert _arguments(ours) == _arguments(theirs), name


def test_every_call_of_the_gateway_is_awaited() -> None:
    """A method that waits is a coroutine or yields; a method that only passes a stream on is neither."""
    trees = [ast.parse((ROOT / "gangline" / "client" / f"{name}.py").read_text()) for name in SOURCES]
    names = find_names(trees)
    for _, asynchronous in PAIRS:
        for name in _public(asynchronous):
            method = inspect.getattr_static(asynchronous, name)
            if name in names.waiting and not isinstance(method, property):
                assert inspect.iscoroutinefunction(method), name


def test_the_objects_of_a_client_are_all_exported() -> None:
    classes = {
        name
        for module in (handle, cluster_handle)
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert classes == set(OBJECTS)
    assert issubclass(gangline.client.Client, ClusterCalls)


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def _arguments(method: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]
