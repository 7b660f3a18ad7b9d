"""Workspaces, projects and templates over real processes: etcd, two schedulers, a gateway, two users."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gangline.cli.main import run
from gangline.client import Client
from gangline.domain.experiment import Experiment, Project, Template, Workspace
from gangline.domain.state import ProjectAction
from gangline.errors import GanglineError
from gangline.protocol import wire
from gangline.v1 import project_pb2
from services.common import keys
from services.common.etcd import EtcdClient, EtcdSettings
from tests.support.gateway import USER_TOKEN, pack, sha256
from tests.support.proxy import Proxy
from tests.support.two_users import CONFIG, IN_VISION, Bench
from tests.support.wait import until_async


@pytest_asyncio.fixture
async def empty(tmp_path: Path, etcd: EtcdClient, etcd_settings: EtcdSettings) -> AsyncIterator[Bench]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('trains')\n")
    async with AsyncExitStack() as stack:
        yield Bench(tmp_path, etcd_settings, etcd, stack)


@pytest_asyncio.fixture
async def bench(empty: Bench) -> Bench:
    """With one scheduler and one gateway."""
    await empty.scheduler("s1")
    await empty.gateway()
    return empty


def _fill(client: Client) -> None:
    client.create_workspace("lab", resource_pool="default", checkpoint_storage="save_trial_best: 2")
    client.set_template("base", "labels: [shared]\nresources: {priority: 7}\n")
    client.create_project("lab", "vision", description="images", checkpoint_storage="save_trial_best: 3")


def _refusal(act: Callable[[], object]) -> GanglineError:
    with pytest.raises(GanglineError) as raised:
        act()
    assert "\n" not in raised.value.message
    return raised.value


def _config(experiment: Experiment) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(experiment.config_json)
    return config


async def test_an_experiment_inherits_and_keeps_what_it_has_inherited(bench: Bench) -> None:
    def story() -> None:
        _fill(bench.alice)
        first = bench.create(template="base")
        assert (first.project_id, first.template) == (2, "base")
        config = _config(first)
        assert (config["labels"], config["resources"]["priority"]) == (["shared"], 7)
        assert config["resources"]["resource_pool"] == "default"
        assert config["checkpoint_storage"]["save_trial_best"] == 3
        assert (config["workspace"], config["project"]) == ("lab", "vision")

        bench.alice.set_template("base", "labels: [changed]\nresources: {priority: 9}\n")
        bench.alice.edit_project("lab", "vision", template="base", checkpoint_storage="")
        bench.alice.edit_workspace("lab", checkpoint_storage="save_trial_best: 5")
        assert bench.alice.get_experiment(first.id).experiment.config_json == first.config_json
        second = bench.create(IN_VISION + "resources: {priority: 11}\nlabels: [own]\n")
        config = _config(second)
        assert (second.template, config["labels"], config["resources"]["priority"]) == ("base", ["changed", "own"], 11)
        assert config["checkpoint_storage"]["save_trial_best"] == 5
        inheritance = bench.alice.inherit_from("lab", "vision")
        assert [layer.source for layer in inheritance.layers] == ["workspace lab", "template base"]
        bench.alice.edit_project("lab", "vision", template="")
        bench.alice.remove_template("base")
        assert bench.alice.get_experiment(second.id).experiment.template == "base"
        assert bench.create().template == ""

    await asyncio.to_thread(story)


async def test_secrets_of_defaults_reach_the_experiment_and_no_view(bench: Bench) -> None:
    def story() -> None:
        client = bench.alice
        storage = "{type: s3, bucket: b, access_key: its-access-key, secret_key: s3cr3t}"
        created = client.create_workspace("lab", checkpoint_storage=storage)
        project = client.create_project("lab", "vision", checkpoint_storage="{type: s3, bucket: c}")
        experiment = bench.create()
        shown = [created, project, *client.list_workspaces(), *client.list_projects(), experiment]
        shown.append(client.inherit_from("lab", "vision"))
        assert not [each for each in shown if "s3cr3t" in str(each) or "its-access-key" in str(each)]
        # What was shown may be sent back.
        masked = json.loads(created.defaults.checkpoint_storage_json)
        client.edit_workspace("lab", checkpoint_storage=json.dumps({**masked, "prefix": "p"}))
        assert _refusal(lambda: bench.create(f"{CONFIG}checkpoint_storage: {masked}\n")).code == "config.masked"

    await asyncio.to_thread(story)
    [experiment] = await bench.records(Experiment, keys.EXPERIMENTS)
    assert _config(experiment)["checkpoint_storage"]["secret_key"] == "s3cr3t"
    stored = [each.defaults.checkpoint_storage_json for each in await bench.records(Workspace, keys.WORKSPACES)]
    assert [json.loads(each)["secret_key"] for each in stored if each] == ["s3cr3t"]


async def test_lists_are_filtered_by_workspace_and_project(bench: Bench) -> None:
    def story() -> None:
        _fill(bench.alice)
        bench.alice.create_project("lab", "audio")
        ids = [bench.create(config).id for config in (CONFIG, IN_VISION, IN_VISION.replace("vision", "audio"))]
        filters: list[tuple[dict[str, Any], list[int]]] = [
            ({}, ids),
            ({"workspace": "lab"}, ids[1:]),
            ({"workspace": "lab", "project": "vision"}, ids[1:2]),
            ({"project": "audio"}, ids[2:]),
            ({"workspace": "Uncategorized"}, ids[:1]),
        ]
        for names, expected in filters:
            assert [entry.id for entry in bench.alice.list_experiments(**names)][::-1] == expected, names
            listed = [entry.id for entry, _ in bench.alice.list_progress(**names)]
            assert listed[::-1] == expected, names
            tasks = [task.trial.experiment_id for task in bench.alice.list_tasks(**names)]
            assert tasks == expected, names
        assert _refusal(lambda: bench.alice.list_experiments(workspace="lba")).code == "workspace.not_found"
        assert _refusal(lambda: bench.alice.list_tasks(project="visio")).code == "project.not_found"
        views = {view.project.name: view for view in bench.alice.list_projects()}
        assert {name: view.num_active_experiments for name, view in views.items()} == {
            "Uncategorized": 1, "vision": 1, "audio": 1,
        }  # fmt: skip
        workspaces = {view.workspace.name: (view.num_projects, view.num_experiments) for view in
                      bench.alice.list_workspaces()}  # fmt: skip
        assert workspaces == {"Uncategorized": (1, 1), "lab": (2, 2)}

    await asyncio.to_thread(story)


async def test_refusals_say_what_to_do(bench: Bench) -> None:
    def story() -> None:
        _fill(bench.alice)
        experiment = bench.create()
        refusal = _refusal(lambda: bench.create(IN_VISION.replace("vision", "visoin")))
        assert refusal.message.endswith(
            "did you mean 'vision'? if not, create it with: gangline project create lab visoin"
        )
        refusal = _refusal(lambda: bench.create(template="bsae"))
        assert refusal.message.startswith("there is no template 'bsae'; did you mean 'base'? if not, set it with: ")
        # Not only the gateway refuses: this configuration has not been merged before.
        refusal = _refusal(lambda: bench.alice.submit_experiment(
            experiment.config_json.replace('"vision"', '"visoin"'), experiment.code_sha256))  # fmt: skip
        assert refusal.code == "project.not_found"
        for client, act, code in (
            (bench.bob, lambda c: c.edit_workspace("lab", new_name="mine"), "auth.not_owner"),
            (bench.bob, lambda c: c.delete_project("lab", "vision"), "auth.not_owner"),
            (bench.bob, lambda c: c.set_template("base", "name: x"), "auth.not_owner"),
            (bench.alice, lambda c: c.delete_project("lab", "vision"), "project.not_empty"),
            (bench.alice, lambda c: c.delete_workspace("lab"), "workspace.not_empty"),
            (bench.alice, lambda c: c.edit_workspace("Uncategorized", new_name="x"), "workspace.default"),
            (bench.alice, lambda c: c.set_template("bad", "resorces: {}"), "config.unknown_key"),
            (bench.alice, lambda c: c.create_workspace("x", resource_pool="gpus"), "pool.not_found"),
        ):
            assert _refusal(lambda act=act, client=client: act(client)).code == code  # type: ignore[misc]
        bench.alice.archive_workspace("lab")
        assert _refusal(bench.create).code == "workspace.archived"
        bench.alice.unarchive_workspace("lab")
        bench.alice.archive_project("lab", "vision")
        assert _refusal(bench.create).code == "project.archived"
        moved = bench.alice.move_to_project(experiment.id, 1)
        assert (moved.home_id, _config(moved)["project"]) == (1, "Uncategorized")
        assert _refusal(lambda: bench.alice.move_to_project(experiment.id, 2)).code == "project.archived"
        bench.alice.delete_workspace("lab")
        assert [view.workspace.name for view in bench.alice.list_workspaces()] == ["Uncategorized"]

    await asyncio.to_thread(story)


async def test_of_two_users_who_create_the_same_name_at_once_one_succeeds(bench: Bench) -> None:
    def attempt(client: Client, act: Callable[[Client], object]) -> str:
        try:
            act(client)
        except GanglineError as error:
            return error.code
        return "made"

    async def race(act: Callable[[Client], object]) -> list[str]:
        clients = [bench.alice, bench.bob] * 4
        return sorted(await asyncio.gather(*(asyncio.to_thread(attempt, client, act) for client in clients)))

    assert await race(lambda client: client.create_workspace("lab")) == ["made", *["workspace.exists"] * 7]
    assert await race(lambda client: client.create_project("lab", "x")) == ["made", *["project.exists"] * 7]
    assert {workspace.name for workspace in await bench.records(Workspace, keys.WORKSPACES)} == {
        "Uncategorized", "lab",
    }  # fmt: skip
    assert len(await bench.records(Project, keys.PROJECTS)) == 2
    # A template belongs to the user who was first; the other one cannot overwrite it.
    outcomes = await race(lambda client: client.set_template("t", "labels: [x]"))
    assert outcomes == [*["auth.not_owner"] * 4, *["made"] * 4]


async def test_no_experiment_is_left_in_a_project_that_is_deleted_meanwhile(bench: Bench) -> None:
    await asyncio.to_thread(bench.alice.create_workspace, "lab")
    first = await asyncio.to_thread(bench.create, CONFIG, client=bench.bob)
    for number in range(6):
        name = f"p{number}"
        await asyncio.to_thread(bench.alice.create_project, "lab", name)
        config = json.dumps({**_config(first), "workspace": "lab", "project": name})
        outcomes = await asyncio.gather(
            *(asyncio.to_thread(bench.bob.submit_experiment, config, first.code_sha256) for _ in range(3)),
            asyncio.to_thread(bench.alice.delete_project, "lab", name),
            return_exceptions=True,
        )
        codes = {outcome.code for outcome in outcomes if isinstance(outcome, GanglineError)}
        assert codes <= {"project.not_found", "project.not_empty"}, outcomes
        assert codes, "either the deletion or the submits were refused"
    project_ids = {project.id for project in await bench.records(Project, keys.PROJECTS)}
    experiments = await bench.records(Experiment, keys.EXPERIMENTS)
    assert {experiment.project_id for experiment in experiments} <= project_ids


async def test_a_killed_leader_loses_nothing(empty: Bench) -> None:
    bench = empty
    leader = await bench.scheduler("s1")
    await bench.gateway()
    await bench.scheduler("s2")
    await asyncio.to_thread(_fill, bench.alice)
    await asyncio.to_thread(bench.alice.create_project, "lab", "gone")
    await asyncio.to_thread(bench.alice.delete_project, "lab", "gone")
    before = [await bench.records(kind, prefix) for kind, prefix in
              ((Workspace, keys.WORKSPACES), (Project, keys.PROJECTS), (Template, keys.TEMPLATES))]  # fmt: skip
    leader.end(signal.SIGKILL)
    experiment = await asyncio.to_thread(bench.create, template="base")
    assert (experiment.project_id, experiment.template) == (2, "base")
    after = [await bench.records(kind, prefix) for kind, prefix in
             ((Workspace, keys.WORKSPACES), (Project, keys.PROJECTS), (Template, keys.TEMPLATES))]  # fmt: skip
    assert after == before
    created = await asyncio.to_thread(bench.alice.create_project, "lab", "new")
    assert created.id == 4
    assert (await asyncio.to_thread(bench.alice.find_project, "lab", "vision")).num_experiments == 1


@pytest.mark.parametrize(
    ("act", "marker", "num_changed"),
    [
        pytest.param(lambda c: c.create_workspace("new", request_id="q"), keys.WORKSPACES, 1, id="create workspace"),
        pytest.param(lambda c: c.create_project("lab", "new", request_id="q"), keys.PROJECTS, 1, id="create project"),
        pytest.param(lambda c: c.set_template("new", "name: x", request_id="q"), keys.TEMPLATES, 1, id="set template"),
        pytest.param(
            lambda c: c.delete_project("lab", "vision", request_id="q"), keys.PROJECTS, 1, id="delete project"
        ),
        pytest.param(lambda c: c.delete_workspace("lab", request_id="q"), keys.WORKSPACES, 2, id="delete workspace"),
        pytest.param(lambda c: c.remove_template("base", request_id="q"), keys.TEMPLATES, 1, id="remove template"),
    ],
)
async def test_a_change_whose_answer_was_lost_with_its_leader_is_made_once(
    empty: Bench, act: Callable[[Client], object], marker: str, num_changed: int
) -> None:
    """etcd applies the change, but the leader never hears of it and dies. The next leader answers the repetition."""
    bench = empty
    async with Proxy(bench.settings.endpoints[0]) as proxy:
        leader = await bench.scheduler("s1", EtcdSettings(endpoints=(proxy.address,)))
        await bench.gateway()
        await asyncio.to_thread(_fill, bench.alice)
        await bench.scheduler("s2")
        before = await _names(bench)
        proxy.hold_after = marker.encode()
        changing = asyncio.create_task(asyncio.to_thread(act, bench.alice))

        async def is_committed() -> bool:
            return await _names(bench) != before

        await until_async(is_committed, "the commit", 20)
        assert not changing.done()
        leader.end(signal.SIGKILL)
        # The gateway repeats the call at the next leader, which has the change already.
        await changing
        assert len(await _names(bench) ^ before) == num_changed


async def test_a_repeated_request_changes_nothing_and_a_new_one_is_refused(bench: Bench) -> None:
    def story() -> None:
        for _ in range(2):
            assert bench.alice.create_workspace("lab", request_id="w").id == 2
            assert bench.alice.create_project("lab", "vision", request_id="p").id == 2
            assert bench.alice.set_template("base", "name: x", request_id="t").name == "base"
        assert _refusal(lambda: bench.alice.create_workspace("lab")).code == "workspace.exists"
        request = project_pb2.UpdateProjectRequest(request_id="d", project_id=2)
        request.action = wire.enum_number(ProjectAction.DELETE)  # type: ignore[assignment]  # protobuf takes the number
        for _ in range(2):
            assert not bench.alice._connection.call(bench.alice._stub.UpdateProject, request).HasField("project")
        request.request_id = "other"
        refusal = _refusal(lambda: bench.alice._connection.call(bench.alice._stub.UpdateProject, request))
        assert refusal.code == "project.not_found"
        for _ in range(2):
            bench.alice.remove_template("base", request_id="r")
        assert _refusal(lambda: bench.alice.remove_template("base")).code == "template.not_found"

    await asyncio.to_thread(story)


async def _names(bench: Bench) -> frozenset[str]:
    """The keys of all workspaces, projects and templates."""
    listings = [await bench.etcd.list(prefix) for prefix in (keys.WORKSPACES, keys.PROJECTS, keys.TEMPLATES)]
    return frozenset(item.key for listing in listings for item in listing.items)


async def test_the_http_api_has_determined_paths_and_names(bench: Bench) -> None:
    archive = pack({"train.py": b"print(1)\n"})
    async with bench.http as http:
        key = {"Idempotency-Key": "once"}
        for _ in range(2):
            answer = await http.post("/workspaces", json={"name": "lab", "defaultComputePool": "default"}, headers=key)
            assert answer.status_code == 200, answer.text
            workspace = answer.json()["workspace"]
        assert (workspace["id"], workspace["username"], workspace["immutable"]) == (2, "alice", False)
        assert (await http.post("/workspaces", json={"name": "lab"})).status_code == 409
        assert (await http.post("/workspaces", json={"nam": "lab"})).status_code == 400
        project = (await http.post("/workspaces/2/projects", json={"name": "vision"})).json()["project"]
        assert (project["workspaceId"], project["workspaceName"], project["numExperiments"]) == (2, "lab", 0)
        patch = {"description": "images", "checkpointStorageConfig": {"save_trial_best": 4}}
        answer = await http.patch(f"/projects/{project['id']}", json=patch)
        assert answer.json()["project"]["checkpointStorageConfig"] == {"save_trial_best": 4}
        answer = await http.put("/templates/base", json={"config": "labels: [shared]\n"})
        assert answer.json()["template"]["config"] == {"labels": ["shared"]}
        answer = await http.put("/templates/bad", json={"config": {"labls": []}})
        assert (answer.status_code, answer.json()["code"]) == (400, "config.unknown_key")

        assert (await http.put(f"/code/{sha256(archive)}", content=archive)).status_code == 200
        body = {"config": CONFIG, "codeSha256": sha256(archive), "template": "base", "projectId": project["id"]}
        created = (await http.post("/experiments", json=body)).json()["experiment"]
        assert (created["projectId"], created["template"], created["config"]["labels"]) == (2, "base", ["shared"])
        assert (created["config"]["workspace"], created["config"]["checkpoint_storage"]["save_trial_best"]) == (
            "lab",
            4,
        )
        for query, count in ((f"projectId={project['id']}", 1), ("workspace=lab", 1), ("projectId=1", 0)):
            assert len((await http.get(f"/experiments?{query}")).json()["experiments"]) == count, query
        assert len((await http.get("/tasks?workspace=lab&project=vision")).json()["tasks"]) == 1
        assert (await http.get("/experiments?project=nix")).status_code == 404

        # The id counts, not the names in the configuration.
        elsewhere = {**body, "config": IN_VISION, "projectId": 1}
        answer = (await http.post("/experiments", json=elsewhere)).json()["experiment"]
        assert (answer["projectId"], answer["config"]["project"]) == (1, "Uncategorized")

        refused = await http.delete("/projects/2")
        assert (refused.status_code, refused.json()["code"]) == (409, "project.not_empty")
        moved = await http.post(f"/experiments/{created['id']}/move", json={"destinationProjectId": 1})
        assert moved.json()["experiment"]["projectId"] == 1
        assert (await http.post("/projects/2/archive")).json() == {}
        assert (await http.get("/projects/2")).json()["project"]["archived"] is True
        assert (await http.post("/experiments", json=body)).json()["code"] == "project.archived"
        assert (await http.post("/projects/2/unarchive")).status_code == 200
        assert (await http.delete("/projects/2")).json() == {"completed": True}
        assert [entry["name"] for entry in (await http.get("/workspaces/2/projects")).json()["projects"]] == []
        assert (await http.delete("/templates/base")).status_code == 200
        assert (await http.get("/templates")).json() == {"templates": []}
        assert (await http.delete("/workspaces/2")).json() == {"completed": True}
        listed = (await http.get("/workspaces")).json()["workspaces"]
        assert [(entry["name"], entry["immutable"], entry["numExperiments"]) for entry in listed] == [
            ("Uncategorized", True, 2)
        ]


async def test_the_commands(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GANGLINE_GATEWAY", str(bench.process.addresses["grpc"]))
    monkeypatch.setenv("GANGLINE_TOKEN", USER_TOKEN)
    (tmp_path / "base.yaml").write_text("searcher: {name: single, metric: loss}\nlabels: [shared]\n")
    (tmp_path / "code" / "exp.yaml").write_text("entrypoint: python3 train.py\nworkspace: lab\nproject: vision\n")
    (tmp_path / "code" / "plain.yaml").write_text("entrypoint: python3 train.py\n")
    experiment = str(tmp_path / "code" / "exp.yaml")

    def command(line: str, *more: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run([*line.split(), *more])
        printed = capfd.readouterr()
        return status, printed.out, printed.err

    def story() -> None:
        assert command("workspace create lab")[:2] == (0, "created workspace 2 lab\n")
        assert command("workspace create lab")[0] == 2
        assert command("project create lab vision")[:2] == (0, "created project 2 vision of workspace lab\n")
        assert command("template set base", str(tmp_path / "base.yaml"))[0] == 0
        assert command("template describe base")[1].startswith("searcher:\n  name: single\n")
        # Without the template the configuration has no searcher.
        assert command("experiment create", experiment)[0] == 2
        assert command("experiment create", experiment, "--template", "base")[0] == 0
        assert command("project edit lab vision --default-template base --default-compute-pool default")[0] == 0
        assert '  searcher.metric: "loss"  (template base)\n' in command("project describe lab vision")[1]
        described = command("experiment describe 1")[1]
        assert "configuration, with template base, without" in described
        assert "- shared" in described
        assert json.loads(command("experiment list --workspace lab --project vision --json")[1])[0]["id"] == 1
        assert command("project list-experiments lab vision")[1].splitlines()[1].startswith("1 ")
        assert json.loads(command("top --workspace Uncategorized --json")[1])["tasks"] == []
        assert len(json.loads(command("top --workspace lab --json")[1])["tasks"]) == 1
        assert command("preview-search", experiment, "--template", "base")[0] == 0
        assert "with no terminal" not in command("project delete lab vision")[2]
        status, _, message = command("project delete lab vision --yes")
        assert (status, "holds 1 experiment, so it was not deleted" in message) == (2, True)
        assert command("experiment move 1 Uncategorized Uncategorized")[0] == 0
        assert command("experiment move 1 vision")[0] == 2
        assert command("project archive lab vision")[0] == 0
        assert "ARCHIVED" in command("project list lab")[1]
        assert command("project unarchive lab vision")[0] == 0
        assert command("project delete lab vision --yes")[0] == 0
        assert command("template remove base")[0] == 0
        assert command("workspace archive lab")[0] == 0
        assert command("workspace unarchive lab")[0] == 0
        assert command("workspace edit lab --name lab2")[0] == 0
        assert "workspace 2 lab2" in command("workspace describe lab2")[1]
        assert command("workspace delete lab2 --yes")[:2] == (0, "deleted workspace lab2\n")
        assert json.loads(command("workspace list --json")[1])[0]["workspace"]["name"] == "Uncategorized"

    await asyncio.to_thread(story)
