"""`gangline experiment archive`, `unarchive` and `delete`: text, JSON, the question and the exit status."""

from __future__ import annotations

import json

import pytest

from gangline.cli import experiment_action
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway
from tests.support.view import make_experiment


@pytest.fixture(autouse=True)
def _ended(gateway: StandInGateway) -> None:
    for number in (1, 2):
        gateway.experiments[number] = make_experiment("TERMINAL", "COMPLETED", id=number, ended_at=1001.0)


def _listed(cli: Cli, *options: str) -> list[int]:
    return [experiment["id"] for experiment in json.loads(cli("experiment", "list", "--json", *options).out)]


def test_an_archived_experiment_leaves_the_list(cli: Cli) -> None:
    ran = cli("experiment", "archive", "1")
    assert (ran.status, ran.out) == (0, "experiment 1 digits: COMPLETED, archived\n")
    assert _listed(cli) == [2]
    assert _listed(cli, "--archived") == [1]
    assert _listed(cli, "--all") == [2, 1]
    ran = cli("experiment", "unarchive", "1", "2")
    assert ran.out == "experiment 1 digits: COMPLETED\nexperiment 2 digits: COMPLETED\n"
    assert _listed(cli) == [2, 1]


def test_delete_prints_what_happens_and_may_be_repeated(cli: Cli) -> None:
    ran = cli("experiment", "delete", "--yes", "1", "2")
    assert (ran.status, ran.out) == (0, "experiment 1 is being deleted\nexperiment 2 is being deleted\n")
    ran = cli("experiment", "delete", "-y", "1")
    assert (ran.status, ran.out) == (0, "experiment 1 is deleted\n")
    ran = cli("experiment", "delete", "--yes", "1", "2", "--json")
    assert json.loads(ran.out) == [{"id": 1, "state": "DELETED"}, {"id": 2, "state": "DELETED"}]


def test_delete_of_an_unknown_one_deletes_the_others(cli: Cli, gateway: StandInGateway) -> None:
    ran = cli("experiment", "delete", "--yes", "9", "1")
    assert (ran.status, ran.out) == (2, "experiment 1 is being deleted\n")
    assert ran.err.startswith("error: there is no experiment 9")
    assert list(gateway.experiments) == [2]


def test_without_a_terminal_delete_wants_yes(cli: Cli, gateway: StandInGateway) -> None:
    ran = cli("experiment", "delete", "1", "2")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "error: nothing was deleted: deleting experiments 1 2 cannot be undone, and there is no terminal to ask; add "
        "--yes\n"
    )
    assert gateway.calls == []


@pytest.mark.parametrize(("answer", "status"), [(True, 0), (False, 1)])
def test_on_a_terminal_delete_asks(
    cli: Cli, gateway: StandInGateway, monkeypatch: pytest.MonkeyPatch, answer: bool, status: int
) -> None:
    questions: list[str] = []

    def confirm(question: str, *, err: bool) -> bool:
        assert err, "standard output has the result only"
        questions.append(question)
        return answer

    monkeypatch.setattr(experiment_action, "can_ask", lambda: True)
    monkeypatch.setattr("typer.confirm", confirm)
    ran = cli("experiment", "delete", "1")
    assert questions == ["delete experiment 1 with all checkpoints, logs and metrics? This cannot be undone"]
    assert ran.status == status
    assert (1 in gateway.experiments) is not answer
    assert ran.err == ("" if answer else "nothing was deleted\n")


def test_an_experiment_that_is_being_deleted_is_listed_as_such(cli: Cli, gateway: StandInGateway) -> None:
    gateway.experiments[1].deletion = 1  # type: ignore[assignment]  # protobuf takes the number
    assert "DELETING" in cli("experiment", "list").out
