"""Every command that shows what users supplied, with a gateway full of text that tries to act on the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from google.protobuf.message import Message

from gangline.cli.main import assemble
from gangline.client.transfer.packing import pack_nothing
from gangline.errors import conflict
from gangline.v1 import audit_pb2, ingest_pb2, project_pb2, quota_pb2, registry_pb2, types_pb2
from gangline.v1 import gateway_pb2 as pb
from tests.integration.cli.conftest import Cli
from tests.support.stand_in_gateway import StandInGateway
from tests.support.view import make_agent_view, make_allocation, make_experiment, make_log, make_trial

_EVIL = "\x1b]0;owned\x07\x1b[2J\x9b2J\r\nfake row\u202e\u2066\x7f\u2028fake row[red]x[/red]"
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
# Ids that the scheduler makes, by which commands find what they change.
_IDS = {"id", "trial_id", "allocation_id", "request_id", "slot_ids", "latest_checkpoint_id"}
# Nothing in what they print comes from other users.
_OWN = {
    "up",
    "down",
    "login",
    "simulate",
    # It shows the user's own file and code.
    "plan",
    "experiment schema",
    "tensorboard",
    "migrate check",
    "migrate cluster",
    "checkpoint import",
    "user create",
    "user change-password",
}
# They show tasks with the functions of `experiment describe`, `logs` and `kill`, and refuse any other experiment; or
# they run a program that the user names.
_OWN |= {f"{kind} {name}" for kind in ("cmd", "notebook", "shell") for name in ("describe", "logs", "kill")}
# They read and write files of the caller alone, in tests of their own.
_OWN |= {f"certs {name}" for name in ("init", "issue", "rotate", "show")}
_OWN |= {"cmd run", "notebook start", "notebook open", "shell start", "shell open"}
# A stored configuration has none of these texts, and a fork refuses them.
_FORKED = (
    "--config", "entrypoint=model_def:T", "--config", "name=x", "--config", "labels=[]", "--config", "hyperparameters=",
    "--config", "hyperparameters.global_batch_size=1",
    "--config", "searcher={name: single, metric: loss, max_length: {batches: 1}}",
)  # fmt: skip
_COMMANDS = {
    "status": (), "top": (), "open": ("--print",), "usage": ("--since", "7d"), "preview-search": ("const.yaml",),
    "experiment create": ("const.yaml",), "experiment list": (), "experiment describe": ("1",),
    "experiment find": ("r1",), "experiment follow": ("1",),
    "experiment logs": ("1",), "experiment metrics": ("1",), "experiment wait": ("1",), "experiment kill": ("1",),
    "experiment pause": ("1",), "experiment activate": ("1",), "experiment cancel": ("1",),
    "experiment delete": ("--yes", "1"), "experiment archive": ("1",), "experiment unarchive": ("1",),
    "experiment code": ("1",), "experiment continue": ("1",),
    "experiment trials": ("1",), "experiment set priority": ("1", "7"), "experiment set weight": ("1", "2"),
    "experiment set max-slots": ("1", "2"), "experiment set name": ("1", "x"), "experiment fork": ("1", *_FORKED),
    "experiment set description": ("1", "x"), "experiment set notes": ("1", "x"),
    "experiment set gc-policy": ("1", "--save-trial-latest", "1", "--yes"),
    "experiment set log-retention": ("1", "--days", "3"),
    "experiment label add": ("1", "x"), "experiment label remove": ("1", "x"),
    "trial describe": ("1.1",), "trial logs": ("1.1",), "trial metrics": ("1.1",), "trial kill": ("1.1",),
    "trial profile": ("1.1",), "trial output": ("1.1",),
    "cmd list": (), "notebook list": (), "shell list": (),
    "task list": (), "job list": (), "job explain": ("1",), "job update": ("1", "--priority", "3"),
    "agent list": (), "agent enable": ("a1",), "agent disable": ("a1",),
    "slot list": (), "slot enable": ("a1/0",), "slot disable": ("a1/0",),
    "checkpoint list": (), "checkpoint describe": ("c1",), "checkpoint download": ("c1",), "checkpoint rm": ("c1",),
    "fusion list": (), "fusion forget": ("--all",),
    "experiment move": ("1", "2"),
    "workspace create": ("lab",), "workspace list": (), "workspace describe": ("lab",),
    "workspace list-projects": ("lab",), "workspace edit": ("lab", "--name", "x"), "workspace archive": ("lab",),
    "workspace unarchive": ("lab",), "workspace delete": ("lab", "--yes"),
    "project create": ("lab", "vision"), "project list": (), "project describe": ("lab", "vision"),
    "project list-experiments": ("lab", "vision"), "project edit": ("lab", "vision", "--description", "x"),
    "project archive": ("lab", "vision"), "project unarchive": ("lab", "vision"),
    "project delete": ("lab", "vision", "--yes"),
    "template set": ("base", "const.yaml"), "template list": (), "template describe": ("base",),
    "template remove": ("base",),
    "model create": ("m",), "model list": (), "model describe": ("m",), "model edit": ("m", "--name", "x"),
    "model archive": ("m",), "model unarchive": ("m",), "model delete": ("m", "--yes"), "model versions": ("m",),
    "model register": ("m", "c1"), "model describe-version": ("m", "1"),
    "model edit-version": ("m", "1", "--name", "x"), "model delete-version": ("m", "1", "--yes"),
    "model download": ("m", "1"), "model alias": ("m", "best", "1"), "model unalias": ("m", "best"),
    "user list": (), "user whoami": (), "user activate": ("ann",), "user deactivate": ("ann",),
    "user edit": ("ann", "--display-name", "x"), "user rename": ("ann", "anne"), "user logout": (),
    "quota set": ("workspace", "lab", "--slots", "3"), "quota list": (), "quota show": ("workspace", "lab"),
    "quota remove": ("workspace", "lab"),
    "group create": ("team", "ann"), "group delete": ("team",), "group add": ("team", "ann"), "group list": (),
    "group remove": ("team", "ann"), "group show": ("team",), "role list": (),
    "role assign": ("editor", "--group", "team"), "role remove": ("--group", "team"),
    "audit": (), "token create": (), "token list": (), "token revoke": ("3",),
}  # fmt: skip


def _leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The shown commands; aliases are hidden."""
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(path)
        return
    for name, child in children.items():
        if not child.hidden:
            yield from _leaves(child, (*path, name))


def test_every_command_is_walked_through() -> None:
    assert set(_leaves(typer.main.get_command(assemble()))) == {*_COMMANDS, *_OWN}


def _poison(message: Message) -> Any:
    """Every text in it that a user, a trial or a machine may have chosen."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is None:
                _poison_map(getattr(message, field.name))
        elif field.message_type is not None:
            for element in value if field.is_repeated else [value]:
                _poison(element)
        elif field.cpp_type == field.CPPTYPE_STRING and field.name not in _IDS:
            if field.is_repeated:
                value[:] = [text + _EVIL for text in value]
            elif not field.name.endswith("_json"):
                setattr(message, field.name, value + _EVIL)
    return message


def _poison_map(values: Any) -> None:
    for key, value in list(values.items()):
        del values[key]
        values[key + _EVIL] = value + _EVIL if isinstance(value, str) else value


_REPORT = types_pb2.ExitReport(
    agent_id="a2", kind=types_pb2.EXIT_KIND_USER_ERROR, message="bad", rank=3, last_lines=["last"]
)


_AUDIT = audit_pb2.AuditRecord(
    id=1, at=1.0, actor_kind="user", actor="ann", credential="token 1", address="10.0.0.1", surface="grpc",
    action="workspace.create", object_kind="workspace", object_id="2", workspace="lab", outcome="done",
    request_id="r1", changes_json=json.dumps({"name": {"old": f"x{_EVIL}", "new": f"y{_EVIL}"}}),
)  # fmt: skip


def _trial() -> types_pb2.Trial:
    values = json.dumps({f"lr{_EVIL}": f"x{_EVIL}"})
    return make_trial(
        "TERMINAL", "FAILED", hyperparameters_json=values, reason="because", last_failure=_REPORT, restarts=1,
        validation_json=json.dumps({f"loss{_EVIL}": 0.5}), excluded_agents={"a3": "why"}, best_validation=0.5,
        latest_checkpoint_id="c1",
    )  # fmt: skip


def _fill(gateway: StandInGateway) -> None:
    config = json.dumps(
        {
            "name": f"n{_EVIL}", "description": f"d{_EVIL}", "searcher": {"metric": f"loss{_EVIL}"},
            "hyperparameters": {f"lr{_EVIL}": f"x{_EVIL}"}, "labels": [f"l{_EVIL}"],
        }
    )  # fmt: skip
    experiment = make_experiment(
        "TERMINAL", "FAILED", config_json=config, reason="because", ended_at=1001.0, request_id="r1"
    )
    gateway.experiments[1] = experiment
    reason = types_pb2.Reason(
        code=types_pb2.REASON_CODE_NO_CAPACITY, message="needs 4", would_start_if="more came", blocking_ids=["1.1"]
    )
    point = ingest_pb2.MetricsPoint(group="validation", batches_completed=1, metrics={"loss": 0.5})
    request = types_pb2.Request(trial_id="1.1", experiment_id=1, pool="default", slots=4)
    waiting = make_trial("QUEUED", reason="because", last_failure=_REPORT)
    gateway.views[1] = [
        pb.ExperimentView(experiment=experiment, reason=reason, trials=[pb.TrialView(trial=_trial(), validation=point)])
    ]
    gateway.audit_records = [_AUDIT]
    gateway.tasks = [
        pb.Task(trial=make_trial(), experiment_name="digits", allocation=make_allocation(("a1", 2))),
        pb.Task(trial=waiting, experiment_name="digits", request=request, reason=reason, queue_place=1),
    ]
    gateway.logs = [make_log(1, "hello"), make_log(2, "from the runner", None)]
    gateway.metrics = [pb.StoredMetrics(id=1, trial_id="1.1", at=1.0, point=point)]
    gateway.agents = [make_agent_view()]
    gateway.agents[0].agent.slots[0].problem, gateway.agents[0].agent.slots[0].model = "xid", "H200"
    gateway.checkpoints = [
        types_pb2.Checkpoint(id="c1", trial_id="1.1", state=types_pb2.CHECKPOINT_STATE_COMPLETED, file_bytes={"w": 1})
    ]
    gateway.files = {"w": b"w", "metadata.json": b"{}"}
    gateway.fusion = [types_pb2.FusionRecord(key="ab-cd", summary="a model", trial_id="1.1")]
    gateway.warnings = [f"beware{_EVIL}"]
    gateway.preview = types_pb2.SearchPreview(
        searcher="grid", num_trials=1, hyperparameters_json=[json.dumps({f"lr{_EVIL}": f"x{_EVIL}"})]
    )
    gateway.cluster.leader.id, gateway.cluster.leader.kind = "s1", "scheduler"
    _fill_projects(gateway)
    _fill_models(gateway)
    lists: list[list[Any]] = [
        gateway.views[1], gateway.tasks, gateway.logs, gateway.metrics, gateway.agents, gateway.fusion,
        gateway.workspaces, gateway.projects, gateway.templates, [gateway.inheritance],
        gateway.models, gateway.versions,
        [gateway.user, gateway.token, *gateway.audit_records],
    ]  # fmt: skip
    for messages in lists:
        for message in messages:
            _poison(message)
    # The commands find these by their names; the second of each has a name that acts.
    gateway.models[0].model.name, gateway.versions[0].version.checkpoint_id = "m", "c1"
    gateway.workspaces[0].workspace.name, gateway.projects[0].project.name = "lab", "vision"
    gateway.templates[0].name = "base"
    _poison(experiment)
    gateway.codes[experiment.code_sha256] = pack_nothing().payload
    _poison(gateway.cluster)
    gateway.cluster.leader.id += _EVIL


def _fill_projects(gateway: StandInGateway) -> None:
    text = json.dumps({"labels": [f"l{_EVIL}"], "data": {f"k{_EVIL}": f"v{_EVIL}"}})
    storage = json.dumps({"bucket": f"b{_EVIL}"})
    defaults = project_pb2.ProjectDefaults(resource_pool="p", checkpoint_storage_json=storage, template="t")
    for number in (2, 3):
        workspace = project_pb2.Workspace(id=number, name="w", owner="ann", defaults=defaults)
        project = project_pb2.Project(
            id=number, workspace_id=2, name="p", description="about", owner="ann", defaults=defaults
        )
        gateway.workspaces.append(project_pb2.WorkspaceView(workspace=workspace))
        gateway.projects.append(project_pb2.ProjectView(project=project, workspace_name="lab"))
        gateway.templates.append(project_pb2.Template(name="t", owner="ann", config_json=text))
    gateway.inheritance.layers.append(project_pb2.ConfigLayer(source="template t", config_json=text))


def _fill_models(gateway: StandInGateway) -> None:
    metadata = json.dumps({f"k{_EVIL}": f"v{_EVIL}"})
    texts: Any = {"name": "m", "owner": "ann", "notes": "about", "metadata_json": metadata}
    for number in (1, 2):
        model = registry_pb2.Model(
            id=number, description="d", labels=["l"], aliases=[registry_pb2.ModelAlias(name="best", version=1)], **texts
        )
        version = registry_pb2.ModelVersion(
            id=f"1.{number}",
            model_id=1,
            number=number,
            checkpoint_id="c1",
            trial_id="1.1",
            metrics_json=metadata,
            **texts,
        )
        gateway.models.append(registry_pb2.ModelView(model=model, workspace_name="lab"))
        gateway.versions.append(registry_pb2.ModelVersionView(version=version, model_name="m", aliases=["best"]))


def _assert_harmless(text: str) -> None:
    assert _UNSAFE.findall(text) == []
    assert [line for line in text.splitlines() if line.strip().startswith("fake row")] == []


@pytest.mark.parametrize("command", _COMMANDS)
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_command_lets_text_of_others_act(
    cli: Cli, code: Any, gateway: StandInGateway, command: str, form: str
) -> None:
    _fill(gateway)
    subject = quota_pb2.QuotaSubject(kind="workspace", key="1")
    for name in ("lab", f"lab{_EVIL}"):
        gateway.quotas["workspace", name] = quota_pb2.QuotaView(
            subject=subject, name=name, max_slots=2, month=_EVIL, slot_hours=1.0, changed_by=_EVIL
        )
    arguments = [str(code / argument) if argument.endswith(".yaml") else argument for argument in _COMMANDS[command]]
    ran = cli(*command.split(), *arguments, *(["--json"] if form == "json" else []))
    assert (ran.status, ran.err if ran.status == 2 else "") in [(0, ""), (1, "")]
    assert ran.out
    _assert_harmless(ran.out)
    _assert_harmless(ran.err)


@pytest.mark.parametrize("command", ["experiment list", "job list", "checkpoint rm", "experiment kill"])
def test_refusals_are_harmless(cli: Cli, gateway: StandInGateway, command: str) -> None:
    gateway.failures = [conflict("x", f"no{_EVIL}")]
    ran = cli(*command.split(), *_COMMANDS[command])
    assert ran.status == 2
    _assert_harmless(ran.out + ran.err)
    assert ran.err.startswith("error: no\\x1b]0;owned")


def test_text_that_reads_as_markup_stays(cli: Cli, gateway: StandInGateway) -> None:
    gateway.logs = [make_log(1, "[red]loss[/red] :smile: \x1b[31mred\x1b[0m\n[1.1 rank 1] fake")]
    gateway.experiments[1] = make_experiment()
    ran = cli("experiment", "logs", "1")
    head = "1970-01-01 00:16:41.000 INFO  [1.1 rank 0]"
    assert ran.out == f"{head} [red]loss[/red] :smile: red\n{head} [1.1 rank 1] fake\n"
