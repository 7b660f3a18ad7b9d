"""docs/python.md names every method that the SDK has, and none that it has not."""

from __future__ import annotations

import re
from pathlib import Path

from gangline.client import Client

PAGE = Path(__file__).parents[3] / "docs" / "python.md"
# `with` closes; the others are what create_experiment consists of.
UNNAMED = {"close", "create_prepared", "upload_code", "submit_experiment"}
# Client inherits some of them.
METHODS = {name for kind in Client.__mro__ if kind is not object for name in vars(kind)}


def test_the_table_is_the_class() -> None:
    text = PAGE.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    named = set(re.findall(r"`([a-z_]+)`", "\n".join(rows)))
    assert named == {name for name in METHODS if not name.startswith("_")} - UNNAMED


def test_the_examples_are_python() -> None:
    code = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
    compile(code, str(PAGE), "exec")
    called = set(re.findall(r"client\.([a-z_]+)\(", code))
    assert called
    assert called <= METHODS
