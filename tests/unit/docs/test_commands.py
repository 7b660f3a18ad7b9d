"""The commands of all pages are commands of the program, with options that they have; the calls of docs/http.md are
calls of the gateway, with parameters and bodies that it takes. Nothing is sent or started here."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import typer.main

from gangline.cli.main import assemble
from services.gateway.app import describe_api
from tests.support.source import ROOT

PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
_BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"\bcurl (?P<words>.+)")
_VARIABLE = re.compile(r"(?P<name>[A-Z]+)='(?P<value>\{.*)'")
# Where a page shows the form of a command, not the command: placeholders in brackets, or several commands in one line.
_FORM = re.compile(r"\[|\.\.\.|<")
_PROGRAM: Any = typer.main.get_command(assemble())


def _lines(page: Path) -> Iterator[str]:
    """Yields the lines of a page's blocks, without comments; a line that ends with a backslash goes on."""
    for block in _BLOCK.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.strip()


def _commands(page: Path) -> Iterator[list[str]]:
    for line in _lines(page):
        if line.startswith("gangline ") and not _FORM.search(line.split("#")[0]):
            words = shlex.split(line, comments=True)
            cut = next((index for index, word in enumerate(words) if word in ("|", "<", ">", "&&", ";")), len(words))
            yield words[1:cut]


COMMANDS = [(page.name, words) for page in PAGES for words in _commands(page)]


def test_the_pages_have_commands() -> None:
    assert len(COMMANDS) > 50


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda value: " ".join(value)[:60])
def test_every_command_of_a_page_is_one_of_the_program(page: str, words: list[str]) -> None:
    """Reads the arguments as the program does, and calls nothing."""
    command, context, rest = _PROGRAM, None, list(words)
    while hasattr(command, "commands"):
        assert rest, f"{page}: gangline {' '.join(words)} names no command"
        name, *rest = rest
        assert name in command.commands, f"{page}: gangline {' '.join(words)}: there is no {name}"
        command = command.commands[name]
    # Numbers stand for the ids that a page calls ID.
    rest = ["7" if word in ("ID", "PROJECT_ID") else word for word in rest]
    context = command.make_context(words[0], rest)
    context.close()


def _calls(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields the calls, with the values of the variables that the page sets."""
    values: dict[str, str] = {}
    for line in _lines(page):
        if found := _CALL.search(line):
            words = shlex.split(found["words"], comments=True)
            yield line, [re.sub(r"\$([A-Z]+)", lambda name: values.get(name[1], name[0]), word) for word in words]
        elif found := _VARIABLE.fullmatch(line):
            values[found["name"]] = found["value"]


CALLS = list(_calls(ROOT / "docs" / "http.md"))
_DESCRIPTION = describe_api()


def _find(method: str, path: str) -> dict[str, Any] | None:
    """Returns the description of a call; the one with the fewest parameters in its path comes first."""
    for template, operations in sorted(_DESCRIPTION["paths"].items(), key=lambda item: item[0].count("{")):
        pattern = re.sub(r"\\{path\\}", ".+", re.escape(template))
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", pattern), path) and method.lower() in operations:
            found: dict[str, Any] = operations[method.lower()]
            return found
    return None


@pytest.mark.parametrize(("line", "words"), CALLS, ids=[line[:70] for line, _ in CALLS])
def test_every_call_of_the_http_page_is_one_of_the_gateway(line: str, words: list[str]) -> None:
    method, body, url = "GET", "", ""
    # With -G, data are parameters of the query.
    has_query = any(word == "-G" or (word.startswith("-s") and word.endswith("G")) for word in words)
    parameters: list[str] = []
    for flag, word in zip(["", *words], words, strict=False):
        if flag == "-X":
            method = word
        elif has_query and flag in ("-d", "--data-urlencode"):
            parameters.append(word)
        elif flag == "-d":
            method, body = ("POST" if method == "GET" else method), word
        elif flag == "-sT":
            method = "PUT"
        elif word.startswith("$GATEWAY"):
            url = word.removeprefix("$GATEWAY")
    path, _, typed = url.partition("?")
    parameters += typed.split("&")
    operation = _find(method, path)
    assert operation is not None, f"{method} {path} is no call"
    known = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"}
    given = parameters
    assert {part.partition("=")[0] for part in given if part} <= known, line
    if body and body != "@-":
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        jsonschema_rs.validate({**schema, "components": _DESCRIPTION["components"]}, json.loads(body))
