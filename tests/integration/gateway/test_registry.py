"""Models, versions and aliases over real processes: etcd, two schedulers, a gateway, two users."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gangline.cli.main import run
from gangline.client import Client
from gangline.domain.experiment import Checkpoint, Experiment, Trial
from gangline.domain.registry import ModelFilter, ModelVersion
from gangline.domain.resource import Counter
from gangline.domain.state import CheckpointState, Outcome, State
from gangline.errors import GanglineError
from gangline.protocol import wire
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings, Put
from tests.support.gateway import USER_TOKEN
from tests.support.proxy import Proxy
from tests.support.scheduler import config_json
from tests.support.two_users import Bench
from tests.support.wait import until_async

NUM_CHECKPOINTS = 12
METADATA = json.dumps({"validation_metrics": {"loss": 0.25}})


@pytest_asyncio.fixture
async def empty(tmp_path: Path, etcd: EtcdClient, etcd_settings: EtcdSettings) -> AsyncIterator[Bench]:
    """An ended experiment of bob with checkpoints c01, c02 and so on, and no service."""
    config = config_json(checkpoint_storage={"save_trial_latest": NUM_CHECKPOINTS})
    experiment = Experiment(1, "digits", "bob", config, "0" * 64, State.TERMINAL, Outcome.COMPLETED, ended_at=1.0)
    trial = Trial("1.1", 1, 1, state=State.TERMINAL, outcome=Outcome.COMPLETED, latest_checkpoint_id="c01")
    checkpoints = [
        Checkpoint(f"c{number:02d}", "1.1", 1, number, f"/s/{number}", metadata_json=METADATA, created_at=float(number))
        for number in range(1, NUM_CHECKPOINTS + 1)
    ]
    await etcd.commit(
        [
            Put(keys.NEXT_EXPERIMENT, wire.encode(Counter(2))),
            Put(keys.experiment(1), wire.encode(experiment)),
            Put(keys.trial("1.1"), wire.encode(trial)),
            *(Put(keys.checkpoint(checkpoint.id), wire.encode(checkpoint)) for checkpoint in checkpoints),
        ]
    )
    async with AsyncExitStack() as stack:
        yield Bench(tmp_path, etcd_settings, etcd, stack)


@pytest_asyncio.fixture
async def bench(empty: Bench) -> Bench:
    """With one scheduler and one gateway."""
    await empty.scheduler("s1")
    await empty.gateway()
    return empty


def _refusal(act: Callable[[], object]) -> GanglineError:
    with pytest.raises(GanglineError) as raised:
        act()
    assert "\n" not in raised.value.message
    return raised.value


async def test_a_model_from_its_first_version_to_its_deletion(bench: Bench) -> None:
    def story() -> None:
        alice, bob = bench.alice, bench.bob
        alice.create_workspace("lab")
        settings = {"description": "digits", "notes": "# why", "metadata": {"task": 1}}
        model = alice.create_model("mnist", workspace="lab", add_labels=["b", "a"], **settings)  # type: ignore[arg-type]  # as keywords
        assert (model.id, model.owner, model.labels) == (1, "alice", ("a", "b"))
        first = alice.register_model_version("mnist", "c01", version_name="first", aliases=["champion"])
        second = alice.register_model_version("mnist", "c02", notes="better", metadata={"seed": 2})
        assert (first.number, second.number, second.trial_id, second.metrics_json) == (1, 2, "1.1", '{"loss": 0.25}')

        # Everybody reads.
        view = bob.find_model("mnist")
        assert (view.workspace_name, view.num_versions, view.newest_version) == ("lab", 2, 2)
        assert bob.find_model_version("mnist", "champion").version.checkpoint_id == "c01"
        assert [each.version.number for each in bob.list_model_versions("mnist")] == [2, 1]
        assert [each.version.number for each in bob.list_model_versions("mnist", 1, 1)] == [1]
        assert [each.model_name for each in bob.list_model_versions(checkpoint_id="c02")] == ["mnist"]
        assert bob.list_model_versions(checkpoint_id="c03") == []
        assert "only alice and administrators" in _refusal(lambda: bob.set_model_alias("mnist", "champion", 2)).message

        alice.set_model_alias("mnist", "champion", 2, expected_version=1)
        assert _refusal(lambda: alice.set_model_alias("mnist", "champion", 1, 1)).code == "model.alias_moved"
        assert bob.find_model_version("mnist", "champion").version.number == 2
        assert bob.find_model_version("mnist", "champion").aliases == ("champion",)
        alice.edit_model_version("mnist", 1, notes="*former* champion")
        assert bob.find_model_version("mnist", 1).version.notes == "*former* champion"

        # The owner of the experiment keeps it as long as the versions exist.
        refusal = _refusal(lambda: bob.delete_checkpoints(["c03", "c02"]))
        assert "version 2 of model 'mnist'" in refusal.message
        assert _refusal(lambda: bob.delete_experiment(1)).code == "checkpoint.registered"
        states = {each.id: each.state for each in bob.list_checkpoints()}
        assert set(states.values()) == {CheckpointState.COMPLETED}

        assert _refusal(lambda: alice.delete_model_version("mnist", 2)).code == "model.aliased"
        alice.remove_model_alias("mnist", "champion")
        assert _refusal(lambda: alice.delete_model("mnist")).code == "model.not_empty"
        assert _refusal(lambda: alice.delete_workspace("lab")).code == "workspace.not_empty"
        for number in (1, 2):
            alice.delete_model_version("mnist", number)
        alice.delete_model("mnist")
        assert "create it with: gangline model create mnist" in _refusal(lambda: bob.find_model("mnist")).message
        bob.delete_checkpoints(["c02"])
        bob.delete_experiment(1)

    await asyncio.to_thread(story)


async def test_models_are_filtered_and_paged(bench: Bench) -> None:
    def names(**conditions: object) -> list[str]:
        return [view.model.name for view in bench.bob.list_models(wanted=ModelFilter(**conditions))]  # type: ignore[arg-type]  # fields

    def story() -> None:
        bench.alice.create_workspace("lab")
        for name, workspace, labels in (("Beta", "lab", ["x", "y"]), ("alpha", None, ["x"]), ("gamma", "lab", [])):
            bench.alice.create_model(name, workspace=workspace, add_labels=labels)
        bench.bob.create_model("delta")
        bench.alice.archive_model("gamma")
        assert names() == ["alpha", "Beta", "delta", "gamma"]
        assert names(archived=False) == ["alpha", "Beta", "delta"]
        assert names(archived=True, workspace="lab") == ["gamma"]
        assert names(labels=("x", "y")) == ["Beta"]
        assert names(owner="bob") == ["delta"]
        assert names(name_contains="LPH") == ["alpha"]
        assert [view.model.name for view in bench.bob.list_models(2, 1)] == ["Beta", "delta"]
        assert "did you mean 'lab'" in _refusal(lambda: names(workspace="lap")).message

    await asyncio.to_thread(story)


async def test_registering_and_deleting_a_checkpoint_at_once_leaves_one_of_them(bench: Bench) -> None:
    """alice registers a checkpoint while its owner deletes it. No version ever names a checkpoint that is deleted."""
    await asyncio.to_thread(bench.alice.create_model, "mnist")

    async def attempt(act: Callable[[], object]) -> bool:
        try:
            await asyncio.to_thread(act)
        except GanglineError as error:
            if error.code not in ("checkpoint.registered", "checkpoint.deleting", "checkpoint.not_found"):
                raise
            return False
        return True

    for number in range(1, NUM_CHECKPOINTS + 1):
        checkpoint_id = f"c{number:02d}"
        acts: list[Callable[[], object]] = [
            lambda key=checkpoint_id: bench.alice.register_model_version("mnist", key),  # type: ignore[misc]  # bound now
            lambda key=checkpoint_id: bench.bob.delete_checkpoints([key]),  # type: ignore[misc]  # bound now
        ]
        done = await asyncio.gather(*map(attempt, acts if number % 2 else reversed(acts)))
        assert sorted(done) == [False, True]
    versions = await bench.records(ModelVersion, keys.MODEL_VERSIONS)
    kept = {checkpoint.id: checkpoint.state for checkpoint in await bench.records(Checkpoint, keys.CHECKPOINTS)}
    assert all(kept.get(version.checkpoint_id) is CheckpointState.COMPLETED for version in versions)


@pytest.mark.parametrize(
    ("act", "marker"),
    [
        pytest.param(lambda c: c.create_model("new", request_id="q"), keys.MODELS, id="create"),
        pytest.param(lambda c: c.register_model_version("mnist", "c02", request_id="q"), keys.MODEL_VERSIONS, id="new"),
        pytest.param(lambda c: c.set_model_alias("mnist", "champion", 1, 0, "q"), keys.MODELS, id="alias"),
        pytest.param(lambda c: c.delete_model_version("mnist", 1, "q"), keys.MODEL_VERSIONS, id="delete version"),
    ],
)  # fmt: skip
async def test_a_change_whose_answer_was_lost_with_its_leader_is_made_once(
    empty: Bench, act: Callable[[Client], object], marker: str
) -> None:
    """etcd applies the change, but the leader never hears of it and dies. The next leader answers the repetition."""
    bench = empty
    async with Proxy(bench.settings.endpoints[0]) as proxy:
        leader = await bench.scheduler("s1", EtcdSettings(endpoints=(proxy.address,)))
        await bench.gateway()
        await asyncio.to_thread(bench.alice.create_model, "mnist")
        await asyncio.to_thread(bench.alice.register_model_version, "mnist", "c01")
        await bench.scheduler("s2")
        before = await _values(bench)
        proxy.hold_after = marker.encode()
        changing = asyncio.create_task(asyncio.to_thread(act, bench.alice))

        async def is_committed() -> bool:
            return await _values(bench) != before

        await until_async(is_committed, "the commit", 20)
        committed = await _values(bench)
        assert not changing.done()
        leader.end(signal.SIGKILL)
        # The gateway repeats the call at the next leader, which has the change already.
        await changing
        assert await _values(bench) == committed


async def _values(bench: Bench) -> dict[str, bytes]:
    """The values of all models and versions, by key."""
    listings = [await bench.etcd.list(prefix) for prefix in (keys.MODELS, keys.MODEL_VERSIONS)]
    return {item.key: item.value for listing in listings for item in listing.items}


async def test_the_http_api_pages_changes_and_streams(bench: Bench) -> None:
    async with bench.http as http:
        events = _changes(http)
        assert (await anext(events))["event"] == "open"
        key = {"Idempotency-Key": "once"}
        for _ in range(2):
            answer = await http.post("/models", json={"name": "mnist", "labels": ["a", "b"]}, headers=key)
            assert answer.status_code == 200, answer.text
        model = answer.json()["model"]
        assert (model["id"], model["username"], model["workspaceName"]) == (1, "alice", "Uncategorized")
        assert (await anext(events))["models"]["rows"][0]["name"] == "mnist"

        body = {"checkpointUuid": "c01", "aliases": ["champion"], "metadata": {"a": 1}}
        version = (await http.post("/models/1/versions", json=body)).json()["version"]
        assert (version["number"], version["aliases"], version["metrics"]) == (1, ["champion"], {"loss": 0.25})
        assert (await anext(events))["models"]["rows"][0]["aliases"] == [{"name": "champion", "version": 1}]
        await http.post("/models/1/versions", json={"checkpointUuid": "c02"})
        page = (await http.get("/models/1/versions", params={"limit": 1})).json()
        assert [each["number"] for each in page["versions"]] == [2]
        assert page["pagination"]["total"] == 2
        of_checkpoint = (await http.get("/model-versions", params={"checkpointId": "c01"})).json()["versions"]
        assert [(each["modelName"], each["number"]) for each in of_checkpoint] == [("mnist", 1)]
        assert (await http.get("/models/1/aliases/champion")).json()["version"]["number"] == 1

        moved = await http.put("/models/1/aliases/champion", json={"version": 2, "expectedVersion": 1})
        assert moved.json()["model"]["aliases"] == [{"name": "champion", "version": 2}]
        stale = await http.put("/models/1/aliases/champion", json={"version": 1, "expectedVersion": 1})
        assert (stale.status_code, stale.json()["code"]) == (409, "model.alias_moved")
        patched = await http.patch("/models/1", json={"labels": ["b", "c"], "notes": "*n*"})
        assert (patched.json()["model"]["labels"], patched.json()["model"]["notes"]) == (["b", "c"], "*n*")
        refused = await http.post("/models/1/versions", json={"checkpointUuid": "c0"})
        assert (refused.status_code, refused.json()["code"]) == (404, "checkpoint.not_found")
        for absent_id in (9, 0, -1):
            for path in (f"/models/{absent_id}", f"/models/{absent_id}/versions"):
                answer = await http.get(path)
                assert (answer.status_code, answer.json()["code"]) == (404, "model.not_found"), path
                assert f"there is no model {absent_id};" in answer.json()["detail"]
        assert (await http.get("/models/1/aliases/none")).json()["code"] == "model.no_alias"
        assert (await http.delete("/models/1")).json()["code"] == "model.not_empty"
        assert (await http.delete("/models/1/aliases/champion")).json()["model"]["aliases"] == []
        for number in (1, 2):
            assert (await http.delete(f"/models/1/versions/{number}")).status_code == 200
        assert (await http.delete("/models/1")).status_code == 200
        assert (await http.get("/models", params={"name": "mn"})).json()["models"] == []
        while not (change := (await anext(events))["models"])["gone"]:
            pass
        assert change["gone"] == [1]
        await events.aclose()


async def test_lists_have_no_texts_that_they_do_not_show(bench: Bench) -> None:
    async with bench.http as http:
        long = {"notes": "n" * 10_000, "metadata": {"m": "x" * 10_000}}
        await http.post("/models", json={"name": "mnist", **long})
        await http.post("/models/1/versions", json={"checkpointUuid": "c01", **long})
        await http.post("/models/1/versions", json={"checkpointUuid": "c02"})
        (row,) = (await http.get("/models")).json()["models"]
        versions = (await http.get("/models/1/versions")).json()["versions"]
        of_all = (await http.get("/model-versions")).json()["versions"]
        for each in (row, *versions, *of_all):
            assert not {"notes", "metadata"} & each.keys()
        assert [each["hasNotes"] for each in versions] == [False, True]
        assert {**row, **long} == (await http.get("/models/1")).json()["model"]
        assert {**versions[1], **long} == (await http.get("/models/1/versions/1")).json()["version"]


async def test_a_model_is_found_by_its_whole_name(bench: Bench) -> None:
    async with bench.http as http:
        for name in ("net", "a net", "Net"):
            await http.post("/models", json={"name": name})
        for name, found in (("net", ["net"]), ("ne", []), ("NET", [])):
            page = (await http.get("/models", params={"name": name, "exact": True})).json()
            assert ([each["name"] for each in page["models"]], page["pagination"]["total"]) == (found, len(found))


async def test_labels_that_another_user_sets_meanwhile_stay(bench: Bench) -> None:
    async with bench.http as http:
        await http.post("/models", json={"name": "mnist", "labels": ["a"]})
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(http.patch("/models/1", json={"addLabels": [f"b{number}"], "removeLabels": ["a"]}))
        labels = (await http.get("/models/1")).json()["model"]["labels"]
        assert labels == [f"b{number}" for number in range(8)]
        assert (await http.patch("/models/1", json={"labels": []})).json()["model"]["labels"] == []
        both = await http.patch("/models/1", json={"labels": ["x"], "addLabels": ["y"]})
        assert (both.status_code, both.json()["code"]) == (400, "request.labels")
        # An experiment's labels alike.
        answer = await http.patch("/experiments/1", json={"labels": ["a", "b"]})
        assert answer.status_code == 200, answer.text
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(http.patch("/experiments/1", json={"addLabels": [f"c{number}"]}))
        changed = await http.patch("/experiments/1", json={"removeLabels": ["a"]})
        assert changed.json()["experiment"]["labels"] == ["b", "c0", "c1", "c2", "c3"]


async def _changes(http: httpx.AsyncClient) -> AsyncGenerator[dict[str, Any], None]:
    """Yields the data of the stream's events about models."""
    async with http.stream("GET", "/stream", params={"models": True}) as answer:
        assert answer.status_code == 200
        event = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: ") and event in ("open", "changes"):
                yield {"event": event, **json.loads(line.removeprefix("data: "))}


async def test_the_commands_tell_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("GANGLINE_GATEWAY", bench.process.addresses["grpc"])
    monkeypatch.setenv("GANGLINE_TOKEN", USER_TOKEN)
    (tmp_path / "notes.md").write_text("# why\nbecause\n")

    def call(*arguments: str, status: int = 0) -> str:
        assert run(list(arguments)) == status, capfd.readouterr()
        captured = capfd.readouterr()
        return captured.out if status == 0 else captured.err

    def story() -> None:
        assert "gangline model create NAME" in call("model", "list")
        assert call("model", "create", "mnist", "--description", "digits", "--label", "a") == "created model 1 mnist\n"
        assert "gangline model register mnist CHECKPOINT" in call("model", "describe", "mnist")
        registered = call("model", "register", "mnist", "c01", "--alias", "champion", "--metadata", '{"a": 1}')
        assert registered == "registered version 1 of model mnist, its champion: checkpoint c01\n"
        assert call("model", "register", "mnist", "c02", "--name", "second").startswith("registered version 2")
        assert "champion: 1" in call("model", "list")
        assert json.loads(call("model", "versions", "mnist", "--json"))[0]["version"]["checkpoint_id"] == "c02"
        assert "loss: 0.25" in call("model", "versions", "--checkpoint", "c01", "--wide")
        for number in ("9" * 20, "9" * 5000):
            assert "has no alias" in call("model", "describe-version", "mnist", number, status=2)
            assert "VERSION" in call("model", "alias", "mnist", "champion", number, status=2)
            assert "--expect" in call("model", "unalias", "mnist", "champion", "--expect", number, status=2)
        assert "from: trial 1.1, experiment 1, batch 1" in call("model", "describe-version", "mnist", "champion")
        text = call("model", "alias", "mnist", "champion", "2", "--expect", "1")
        assert text == "version 2 of model mnist is its champion\n"
        assert "points at version 2 by now" in call(
            "model", "alias", "mnist", "champion", "1", "--expect", "1", status=2
        )
        call("model", "edit", "mnist", "--notes-file", str(tmp_path / "notes.md"), "--name", "digits")
        assert "  | because" in call("model", "describe", "digits")
        call("model", "edit-version", "digits", "1", "--name", "first")
        assert "--yes" in call("model", "delete-version", "digits", "1", status=2)
        assert call("model", "delete-version", "digits", "1", "--yes") == "deleted version 1 of model digits\n"
        assert call("model", "unalias", "digits", "champion") == "model digits has no alias champion\n"
        assert "--metadata is no JSON" in call("model", "edit", "digits", "--metadata", "{", status=2)
        assert "has 1 version" in call("model", "delete", "digits", "--yes", status=2)
        call("model", "archive", "digits")
        assert "gangline model unarchive digits" in call("model", "register", "digits", "c03", status=2)
        assert "no models yet" in call("model", "list")
        assert "ARCHIVED" in call("model", "list", "--all")

    await asyncio.to_thread(story)
