"""Models in a browser: a checkpoint is registered, an alias moves, and users of different rights see the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from gangline.errors import GanglineError
from tests.support.browser import find_faults
from tests.support.cluster import Cluster

# User code, which knows only the core library.
TRAIN = """\
import gangline

with gangline.core.init() as core:
    for batches in (1, 2):
        core.train.report_validation_metrics(batches, {"loss": 1 / batches})
        with core.checkpoint.store_path({"steps_completed": batches}) as (path, _):
            (path / "weights.txt").write_text(f"after {batches}")
"""
CONFIG = """\
name: makes models
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 2}}
checkpoint_storage: {save_trial_latest: 2}
"""
MODEL = "<i>digits of 'ann'"


@pytest.fixture(scope="module")
def experiment_id(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    """An experiment that has ended with two checkpoints."""
    folder: Path = tmp_path_factory.mktemp("models")
    (folder / "train.py").write_text(TRAIN)
    (folder / "config.yaml").write_text(CONFIG)
    made: int = cluster.read("experiment", "create", folder / "config.yaml", folder)["experiment"]["id"]
    with cluster.connect() as client:
        view = client.wait_experiment(made)
    assert view.experiment.outcome == "COMPLETED", view.experiment.reason
    return made


def _register(page: Page, cluster: Cluster, experiment_id: int, older: str, newer: str) -> None:
    """Registers both checkpoints, the first one as the champion."""
    # From the list of checkpoints, into a model that is made with it.
    page.goto(f"{cluster.http_url}/checkpoints")
    page.get_by_role("button", name=f"Register {older}").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Model; a new name makes a new model").fill(MODEL)
    dialog.get_by_label("Alias that moves to it, if any").fill("7")
    expect(dialog).to_contain_text(f"gangline model register '<i>digits of '\\''ann'\\''' {older} --alias 7")
    dialog.get_by_role("button", name="Register").click()
    # The API's one line.
    expect(dialog.get_by_role("alert")).to_contain_text("not digits alone, such as champion")
    assert find_faults(page) == []
    dialog.get_by_label("Alias that moves to it, if any").fill("champion")
    dialog.get_by_label("Notes, in Markdown").fill("the *first* one <script>")
    dialog.get_by_role("button", name="Register").click()
    expect(page.get_by_role("status").filter(has_text="is version 1 of model")).to_be_visible()

    # From the trial.
    page.goto(f"{cluster.http_url}/trials/{experiment_id}.1")
    page.get_by_role("tab", name="Checkpoints").click()
    page.get_by_role("listitem").filter(has_text=newer).get_by_role("button", name="Register").click()
    dialog.get_by_label("Model; a new name makes a new model").fill(MODEL)
    dialog.get_by_label("Name of the version, if any").fill("second")
    dialog.get_by_role("button", name="Register").click()
    expect(page.get_by_role("status").filter(has_text="is version 2 of model")).to_be_visible()


def test_a_checkpoint_becomes_the_champion_of_a_model(page: Page, cluster: Cluster, experiment_id: int) -> None:
    with cluster.connect() as client:
        older, newer = (checkpoint.id for checkpoint in client.list_checkpoints(experiment_id))
    page.goto(f"{cluster.http_url}/models")
    expect(page.get_by_text("There is no model yet.")).to_be_visible()
    expect(page.get_by_text("gangline model create NAME")).to_be_visible()
    assert find_faults(page) == []

    _register(page, cluster, experiment_id, older, newer)
    page.goto(f"{cluster.http_url}/models")
    row = page.get_by_role("region", name="Models").get_by_role("row").filter(has_text="champion: 1")
    expect(row).to_be_visible()
    assert find_faults(page) == []
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("<i>digits")
    versions = page.get_by_role("region", name="Versions").get_by_role("row")
    expect(versions).to_have_count(3)
    expect(versions.nth(1)).to_contain_text("loss: 0.5")
    page.get_by_text("Notes of version 1").click()
    expect(versions.nth(2).locator("em")).to_have_text("first")
    assert find_faults(page) == []

    page.get_by_role("button", name="Set alias of version 2").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox", name="Alias").fill("champion")
    expect(dialog).to_contain_text("It moves from version 1 to 2.")
    assert find_faults(page) == []
    dialog.get_by_role("button", name="Set").click()
    expect(page.get_by_text("champion is version 2")).to_be_visible()
    assert cluster.read("model", "describe-version", MODEL, "champion")["version"]["checkpoint_id"] == newer

    # What the command line changes is on the page without a reload.
    cluster.run("model", "alias", MODEL, "old", "1")
    expect(page.get_by_text("old is version 1")).to_be_visible(timeout=5_000)
    page.get_by_role("button", name="Remove alias old").click()
    expect(page.get_by_text("old is version 1")).to_have_count(0)

    page.get_by_role("button", name="Delete version 2").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("is its champion, so it was not deleted").first).to_be_visible()
    page.get_by_role("button", name="Delete version 1").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(versions).to_have_count(2)
    with cluster.connect() as client:
        client.delete_checkpoints([older])
        with pytest.raises(GanglineError, match="is version 2 of model"):
            client.delete_checkpoints([newer])

    page.get_by_role("button", name="Edit", exact=True).click()
    dialog.get_by_label("Labels, separated by commas").fill("vision, small")
    dialog.get_by_label("Notes, in Markdown").fill("# Why\nbecause")
    # Another user's changes meanwhile stay, because only what was changed here is sent.
    cluster.run("model", "edit", MODEL, "--label", "theirs", "--description", "also theirs")
    with page.expect_request(lambda request: request.method == "PATCH") as sent:
        dialog.get_by_role("button", name="Save").click()
    assert sent.value.post_data_json == {"notes": "# Why\nbecause", "addLabels": ["small", "vision"]}
    expect(page.get_by_role("heading", name="Why")).to_be_visible()
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("(archived)")
    assert find_faults(page) == []
    (model,) = cluster.read("model", "list", "--all")
    assert (model["model"]["labels"], model["model"]["archived"]) == (["small", "theirs", "vision"], True)
    assert model["model"]["description"] == "also theirs"


def test_a_user_changes_no_model_of_others(user_page: Page, cluster: Cluster) -> None:
    model_id = cluster.read("model", "create", "of-admin")["id"]
    user_page.goto(f"{cluster.http_url}/models/{model_id}")
    expect(user_page.get_by_text("It is changed by its user and administrators alone.")).to_be_visible()
    expect(user_page.get_by_text("gangline model register of-admin CHECKPOINT")).to_be_visible()
    for name in ("Edit", "Archive", "Delete"):
        expect(user_page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    user_page.goto(f"{cluster.http_url}/models?text=no-such")
    expect(user_page.get_by_text("No model matches.")).to_be_visible()


def test_models_are_offered_as_one_types(page: Page, cluster: Cluster, experiment_id: int) -> None:
    with cluster.connect() as client:
        for number in range(23):
            client.create_model(f"offered {number:02d}")
    page.goto(f"{cluster.http_url}/experiments/{experiment_id}?tab=checkpoints")
    page.get_by_role("button", name="Register").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Model; a new name makes a new model").fill("offered")
    expect(dialog.get_by_role("status")).to_have_text("20 of 23 models offered")
    options = dialog.locator("#own-models option")
    expect(options).to_have_count(20)
    dialog.get_by_role("button", name="Offer more").click()
    expect(options).to_have_count(23)
    dialog.get_by_label("Model; a new name makes a new model").fill("offered 07")
    expect(dialog.get_by_role("status")).to_have_text("1 of 1 model offered")
    assert find_faults(page) == []


def test_a_model_is_made_and_deleted(page: Page, cluster: Cluster) -> None:
    page.goto(f"{cluster.http_url}/models")
    page.get_by_role("button", name="New model").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("brief")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("link", name="brief")).to_be_visible()
    streams: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "/stream?" in request.url else None)
    page.get_by_label("Name contains").press_sequentially("brief", delay=50)
    expect(page.get_by_role("status").filter(has_text="1 model")).to_be_visible()
    # What the command line makes is shown by the stream that was open before.
    cluster.run("model", "create", "briefer")
    expect(page.get_by_role("link", name="briefer")).to_be_visible(timeout=5_000)
    assert streams == []
    cluster.run("model", "delete", "briefer", "--yes")
    page.get_by_role("link", name="brief", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(dialog).to_contain_text("gangline model delete brief")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Models")).to_be_visible()
    assert "brief" not in [each["model"]["name"] for each in cluster.read("model", "list")]
