"""Names, metrics, hyperparameters, files and lines that are markup, control characters and text from right to left, of
5,000 characters each, in every view that shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from gangline.domain.audit import AuditRecord
from gangline.domain.experiment import Checkpoint, Project, Workspace
from gangline.domain.history import LogLine, MetricsPoint
from gangline.domain.state import Outcome
from gangline.domain.user import MAX_TEXT_LENGTH, User
from gangline.protocol import wire
from services.common import keys
from services.common.access.security import as_password, hash_token
from services.common.etcd import Put
from services.gateway.audit.audit_log import Entry
from services.gateway.audit.change import write_changes
from services.gateway.history.audit_rows import AuditRows
from services.gateway.history.database import open_database
from services.gateway.history.store import store_batches
from services.gateway.mirror.ingest_record import IngestBatch, IngestRecord
from tests.support.browser import WIDE, find_faults, window
from tests.support.many_experiments import make_experiment, make_trial
from tests.support.many_page import USERS, ManyExperiments, many_experiments, token_of

_START = "<img src=x onerror=window.isHacked=1><script>window.isHacked=2</script>\u202egnp \x00\x07\x1b[31m\n\t&lt;b "
HOSTILE = _START + "x" * (5000 - len(_START) - len(" the end")) + " the end"
# Names of hyperparameters and metrics, and their values, are checked when they come in: no NUL, and a limit.
KEY = HOSTILE.replace("\x00", "")[:256]
# Each place with views that show it. A view has to have a part of a hostile text in its content.
VIEWS = {
    "lists": ("", "experiments?of=all", "workspaces", "workspaces/2", "projects/2", "users", "audit?object=hostile"),
    "experiment": tuple(f"experiments/1?tab={tab}" for tab in ("overview", "trials", "curves", "search")),
    "more of it": tuple(f"experiments/1?tab={tab}" for tab in ("config", "checkpoints", "logs", "notes")),
    "trial": tuple(f"trials/1.1?tab={tab}" for tab in ("metrics", "logs", "overview", "checkpoints")),
    "trials beside one another": ("compare?trial=1.1&trial=2.1", "compare?trial=1.1&trial=2.1&tab=curves"),
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManyExperiments]:
    folder = tmp_path_factory.mktemp("hostile")
    with many_experiments(folder, 2) as running:
        running.put(*_records())
        _store_history(folder)
        yield running


def _records() -> Iterator[Put]:
    token = token_of(USERS[0])
    name = HOSTILE[:MAX_TEXT_LENGTH]
    user = User(USERS[0], hash_token(token), True, login_sha256=hash_token(as_password(token)), id=1, display_name=name)
    yield Put(keys.user(user.name), wire.encode(user))
    yield Put(keys.workspace(2), wire.encode(Workspace(2, HOSTILE, "alice")))
    yield Put(keys.project(2), wire.encode(Project(2, 2, HOSTILE, HOSTILE, "alice")))
    for number in (1, 2):
        experiment = make_experiment(number)
        config = {**json.loads(experiment.config_json), "name": HOSTILE, "description": HOSTILE, "labels": [HOSTILE]}
        config["hyperparameters"] = {KEY: {"type": "const", "val": HOSTILE}}
        config["searcher"]["metric"] = KEY
        experiment = replace(
            experiment,
            name=HOSTILE,
            owner="alice",
            config_json=json.dumps(config),
            outcome=Outcome.FAILED,
            reason=HOSTILE,
            labels=(HOSTILE,),
            notes=HOSTILE,
            project_id=2,
        )
        trial = replace(
            make_trial(number),
            hyperparameters_json=json.dumps({KEY: f"{number} {HOSTILE}"}),
            validation_json=json.dumps({KEY: number / 2}),
            metadata_json=json.dumps({HOSTILE: HOSTILE}),
            outcome=Outcome.FAILED,
            reason=HOSTILE,
            warning=HOSTILE,
        )
        checkpoint = Checkpoint(
            f"checkpoint-{number}", trial.id, number, 7, "file:///tmp/none", {HOSTILE: 3},
            metadata_json=json.dumps({HOSTILE: HOSTILE}),
        )  # fmt: skip
        yield Put(keys.experiment(number), wire.encode(experiment))
        yield Put(keys.trial(trial.id), wire.encode(trial))
        yield Put(keys.checkpoint(checkpoint.id), wire.encode(checkpoint))


def _store_history(folder: Path) -> None:
    engine = open_database(f"sqlite:///{folder}/gateway.db")
    for number in (1, 2):
        contents: tuple[MetricsPoint | LogLine, ...] = (
            MetricsPoint("training", 1, {KEY: 1.0, "loss": 2.0}),
            MetricsPoint("validation", 2, {KEY: 0.5}),
            MetricsPoint(HOSTILE, 3, {KEY: 0.5}),
            LogLine(0, HOSTILE, "stdout", HOSTILE),
        )
        records = tuple(IngestRecord(place, 1.7e9 + place, content) for place, content in enumerate(contents, 1))
        store_batches(engine, [IngestBatch(f"{number}.1.1/0", number, f"{number}.1", records)], 1.7e9)
    changes = write_changes({KEY: HOSTILE, "name": ""}, {KEY: [HOSTILE], "name": HOSTILE})
    record = AuditRecord(
        0, 1.7e9, "user", HOSTILE, HOSTILE, HOSTILE, "http", f"experiment.{HOSTILE}", "hostile", HOSTILE, HOSTILE,
        changes, HOSTILE, HOSTILE,
    )  # fmt: skip
    AuditRows(engine).store([Entry("1", record)])
    engine.dispose()


@pytest.mark.parametrize("paths", VIEWS.values(), ids=VIEWS.keys())
def test_no_text_runs_as_a_script_or_breaks_the_layout(
    browser: Browser, hostile: ManyExperiments, paths: tuple[str, ...]
) -> None:
    with window(browser, viewport=WIDE) as page:
        hostile.open(page, "/")
        for path in paths:
            page.goto(f"{hostile.url}/{path}")
            expect(page.locator("main"), path).to_contain_text("onerror=window.isHacked")
            expect(page.get_by_text("Loading…"), path).to_have_count(0)
            assert find_faults(page) == [], path
            assert page.locator("main").get_by_role("alert").count() == 0, path
            assert page.locator("img, main script").count() == 0, path
            assert page.evaluate("window.isHacked ?? null") is None, path
            page.set_viewport_size(WIDE)
