"""docs/sdk.md names every method and object that the SDK has, and none that it has not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangline.client import Agent, Checkpoint, Client, Experiment, Job, Trial

PAGE = Path(__file__).parents[3] / "docs" / "sdk.md"
TEXT = PAGE.read_text("utf-8")
# `with` closes; the others are the parts of create_experiment, and the connection's own login.
UNNAMED = {
    "close",
    "create_prepared",
    "login",
    "submit_experiment",
    "submit_prepared",
    "upload_code",
    "upload_prepared",
}
FIELDS: dict[type, set[str]] = {
    Agent: {"record", "allocations"},
    Checkpoint: {"record"},
    Client: set(),
    Experiment: {"record", "warnings"},
    Job: {"task"},
    Trial: {"record"},
}


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_the_table_of_a_class_is_the_class(kind: type) -> None:
    heading = "## The client" if kind is Client else f"### {kind.__name__}"
    section = re.split(r"\n##+ ", TEXT.split(f"\n{heading}\n")[1])[0]
    # The second cell of a row names members, and explains them outside of backquotes and in parentheses.
    cells = [row.split("|")[2] for row in section.splitlines() if row.startswith("|")][2:]
    named = set(re.findall(r"`([a-z_]+)`", "\n".join(cells)))
    members = {name for name in dir(kind) if not name.startswith("_")} | FIELDS[kind]
    assert named == members - UNNAMED


def test_the_examples_call_what_exists() -> None:
    code = "".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
    compile(code, str(PAGE), "exec")
    called = set(re.findall(r"client\.([a-z_]+)\(", code))
    assert called
    assert called <= set(dir(Client))
