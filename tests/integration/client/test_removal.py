"""Archiving and deleting by the SDK, and a submit whose code goes with a deleted experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.client import Client, creation_calls
from gangline.errors import GanglineError, conflict, not_found
from tests.support.stand_in_gateway import StandInGateway
from tests.support.view import make_experiment

CONFIG = "name: digits\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"


def test_archive_and_delete(client: Client, gateway: StandInGateway) -> None:
    gateway.experiments[1] = make_experiment("TERMINAL", "COMPLETED")
    assert client.archive_experiment(1).archived
    assert (client.list_experiments(), len(client.list_experiments(archived=True))) == ([], 1)
    assert len(client.list_experiments(archived=None)) == 1
    assert not client.unarchive_experiment(1).archived
    begun = client.delete_experiment(1)
    assert begun is not None
    assert begun.id == 1
    assert client.delete_experiment(1) is None


@pytest.mark.parametrize(
    "failure", [conflict("code.deleting", "it goes"), not_found("code.not_uploaded", "no code is stored")]
)
def test_code_that_goes_between_upload_and_submit_is_uploaded_again(
    client: Client, gateway: StandInGateway, tmp_path: Path, failure: GanglineError
) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    gateway.create_failures = [failure, failure]
    created = client.create_experiment(CONFIG, tmp_path)
    assert created.experiment.id == 1
    assert gateway.calls == ["UploadCode", "CreateExperiment"] * 3


def test_code_that_cannot_be_stored_is_an_error_in_the_end(
    client: Client, gateway: StandInGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation_calls, "_CODE_SECONDS", 0.5)
    (tmp_path / "train.py").write_text("pass\n")
    gateway.create_failures = [not_found("code.not_uploaded", "no code is stored") for _ in range(20)]
    with pytest.raises(GanglineError) as caught:
        client.create_experiment(CONFIG, tmp_path)
    assert caught.value.code == "code.not_uploaded"
    assert 0 < len(gateway.create_failures) < 19
