"""docs/sdk.md names every method and object that the SDK has, and none that it has not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangline.client import Agent, Checkpoint, Client, Experiment, Job, Trial
from scripts.method_table import LEFT_OUT, main

METHODS = Path(__file__).parents[3] / "docs" / "sdk-methods.md"
PAGE = Path(__file__).parents[3] / "docs" / "sdk.md"
TEXT = PAGE.read_text("utf-8")
FIELDS: dict[type, set[str]] = {
    Agent: {"record", "allocations"},
    Checkpoint: {"record"},
    Experiment: {"record", "warnings"},
    Job: {"task"},
    Trial: {"record"},
}


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_the_table_of_a_class_is_the_class(kind: type) -> None:
    section = re.split(r"\n##+ ", TEXT.split(f"\n### {kind.__name__}\n")[1])[0]
    # The second cell of a row names members, and explains them outside of backquotes and in parentheses.
    cells = [row.split("|")[2] for row in section.splitlines() if row.startswith("|")][2:]
    named = set(re.findall(r"`([a-z_]+)`", "\n".join(cells)))
    members = {name for name in dir(kind) if not name.startswith("_")} | FIELDS[kind]
    assert named == members


def test_the_page_of_the_clients_methods_is_the_client() -> None:
    """LEFT_OUT has the parts of create_experiment, and what `with` calls."""
    rows = re.findall(r"^\| `(\w+)\(.*\)` \| .*\. \|$", METHODS.read_text("utf-8"), re.MULTILINE)
    members = {name for name in dir(Client) if not name.startswith("_")}
    assert {*rows} == members - LEFT_OUT
    assert len(rows) == len({*rows})
    assert main(["--check"]) == 0


def test_the_examples_call_what_exists() -> None:
    code = "".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    compile(code, str(PAGE), "exec")
    called = set(re.findall(r"client\.([a-z_]+)\(", code))
    assert called
    assert called <= set(dir(Client))
