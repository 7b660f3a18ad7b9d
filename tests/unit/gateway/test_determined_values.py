"""Values in the forms of Determined's client, and the code folder as it sends it."""

from __future__ import annotations

import base64
import gzip
import io
import tarfile
from typing import Any

import pytest

from gangline.domain.experiment import QueueMove, ResourceChange
from gangline.domain.history import MetricsPoint
from gangline.domain.state import ExitKind, Outcome, State
from gangline.errors import GanglineError
from services.gateway.determined.determined_app import list_calls
from services.gateway.determined.lacking_call import _BY_PREFIX, lacking
from services.gateway.determined.model_definition import pack_files
from services.gateway.determined.task import listed_id, trial_of
from services.gateway.determined.values import (
    metrics_json,
    read_queue_control,
    read_resources,
    report_json,
    state_name,
    states_named,
    to_number,
)


def file(path: object, content: object = "aGk=", **more: Any) -> dict[str, Any]:
    return {"path": path, "type": 48, "content": content, "mode": 0o644, **more}


def test_a_folder_is_packed_with_its_files_and_their_rights() -> None:
    files = [
        {"path": "sub/", "type": 53, "mode": 0o755},
        file("sub/run.sh", mode=0o755),
        file("a.py", base64.b64encode(b"print()").decode()),
        file("empty", ""),
    ]
    packed, code_sha256 = pack_files(files)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as archive:
        members = {member.name: (member.isdir(), member.mode, member.size) for member in archive.getmembers()}
    assert members == {
        "sub": (True, 0o755, 0), "sub/run.sh": (False, 0o755, 2), "a.py": (False, 0o644, 7), "empty": (False, 0o644, 0),
    }  # fmt: skip
    assert pack_files(list(reversed(files))) == (packed, code_sha256), "the same files give the same archive"


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (None, "no file with a path"),
        ({}, "no file with a path"),
        (file(5), "no file with a path"),
        (file("./"), "no file with a path"),
        (file("a\0b"), "no file with a path"),
        (file("a", "?"), "the content of a is no base64"),
        (file("a", 7), "the content of a is no base64"),
        (file("a", ["aGk="]), "the content of a is no base64"),
    ],
)
def test_an_entry_that_is_no_file_is_refused(entry: object, sentence: str) -> None:
    with pytest.raises(GanglineError) as failure:
        pack_files([file("b"), entry])
    assert (failure.value.code, sentence in failure.value.message) == ("code.model_definition", True)


@pytest.mark.parametrize(("value", "number"), [("7", 7), (7, 7), ("-1", -1), (str(2**63 - 1), 2**63 - 1)])
def test_ids_are_numbers_or_their_texts(value: object, number: int) -> None:
    assert to_number(value, "id") == number


@pytest.mark.parametrize("value", ["", "x", "7.1", "--1", "٣", "²", str(2**63), "9" * 5000, None, [], 1.5, True])
def test_what_is_no_id_is_refused_in_one_line(value: object) -> None:
    with pytest.raises(GanglineError) as failure:
        to_number(value, "id")
    assert failure.value.code == "request.id"
    assert len(failure.value.message) < 120


def test_each_state_has_a_name_that_selects_it() -> None:
    for state in State:
        for outcome in Outcome if state is State.TERMINAL else (None,):
            states, outcomes = states_named([state_name(state, outcome)])
            assert (states, outcomes) == (((), (outcome,)) if outcome else ((state,), ()))
    assert state_name(State.STOPPING, None, ExitKind.KILLED) == "STATE_STOPPING_KILLED"
    assert states_named(["STATE_ACTIVE", "STATE_DELETED"]) == ((State.QUEUED, State.STARTING, State.RUNNING), ())


def test_metrics_that_are_no_numbers_have_names() -> None:
    metrics = {"a": 1.5, "b": float("nan"), "c": float("inf"), "d": float("-inf")}
    assert metrics_json(metrics) == {"a": 1.5, "b": "NaN", "c": "Infinity", "d": "-Infinity"}


def test_a_report_has_numbers_and_other_values() -> None:
    point = MetricsPoint("training", 1, {"loss": float("nan")}, '{"note": "a", "tree": {"b": [Infinity, 1]}}')
    assert report_json(point) == {"loss": "NaN", "note": "a", "tree": {"b": ["Infinity", 1]}}


def test_changes_of_the_queue() -> None:
    assert read_queue_control({"jobId": "7", "priority": 5}) == (7, ResourceChange(priority=5))
    assert read_queue_control({"jobId": "7", "aheadOf": "8"}) == (7, QueueMove(8, is_behind=False))
    assert read_queue_control({"jobId": 7, "behindOf": "8", "priority": None}) == (7, QueueMove(8, is_behind=True))
    assert read_resources({"weight": "2.5", "maxSlots": None}) == ResourceChange(weight=2.5)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({}, "request.id"),
        ({"jobId": "7", "resourcePool": "other"}, "request.lacking"),
        ({"jobId": "7", "weight": "heavy"}, "request.invalid"),
        ({"jobId": "7", "weight": [1]}, "request.invalid"),
        ({"jobId": "7", "priority": "first"}, "request.id"),
    ],
)
def test_a_change_of_the_queue_that_is_none(values: dict[str, Any], code: str) -> None:
    with pytest.raises(GanglineError) as failure:
        read_queue_control(values)
    assert failure.value.code == code


@pytest.mark.parametrize("prefix", [*_BY_PREFIX, "/api/v2/things"])
def test_a_call_that_is_not_there_is_refused_with_the_way_out(prefix: str) -> None:
    message = lacking("POST", f"{prefix}/5/things").message
    assert any(way in message for way in ("gangline ", "docs/", "entrypoint"))
    assert "\n" not in message


def test_no_route_is_in_two_tables() -> None:
    places = list_calls()
    assert len(places) == len(set(places)) > 70


@pytest.mark.parametrize("trial", ["7.1", "7.12", "123456.99999"])
def test_the_id_of_a_task_in_the_list_is_that_of_its_trial(trial: str) -> None:
    assert trial_of(listed_id(trial)) == trial
    assert trial_of(trial) == trial


def test_a_task_without_its_code_is_the_first_trial() -> None:
    codes = ("", ".00000000-0000-0000-0000-000000000000", ".b131e1b0-3145-924b-23c4-44226841ab2d")
    assert {trial_of(f"7{code}") for code in codes} == {"7.1"}
    assert trial_of("7.00000000-0000-0000-0000-0-2-4-6-8-0-") == "7.1"


@pytest.mark.parametrize(
    ("path", "way_out"),
    [
        ("/api/v1/checkpoints/7db1be6d/metadata", "store_path"),
        ("/api/v1/projects/3/notes", "description"),
        ("/api/v1/master/cluster_message", "no message"),
    ],
)
def test_some_calls_have_an_answer_of_their_own(path: str, way_out: str) -> None:
    assert way_out in lacking("POST", path).message
    assert way_out not in lacking("POST", path + "/more").message
