"""What the small files of another program's checkpoint say, and which of them are refused."""

from __future__ import annotations

import json
import os
import pickle
from typing import Any

import pytest

from gangline.domain.storage.foreign_checkpoint import DeterminedState, describe_determined, is_of_determined
from gangline.domain.storage.manifest import MANIFEST_KEY
from gangline.errors import GanglineError

_LOAD = {
    "trial_type": "PyTorchTrial",
    "experiment_config": {"name": "n"},
    "hparams": {"lr": 1},
    "trial_cls_spec": "m:T",
}


def _describe(**files: Any) -> DeterminedState:
    """files: contents by name, with _ for the dot; dictionaries become JSON, bytes stay."""
    content = {
        name.replace("_json", ".json").replace("_pkl", ".pkl"): value if isinstance(value, bytes) else json.dumps(value)
        for name, value in files.items()
    }
    texts = {name: value.encode() if isinstance(value, str) else value for name, value in content.items()}
    return describe_determined(texts.get)


def test_newest_layout() -> None:
    progress = pickle.dumps({"trial_id": 4, "last_val": 6, "batches_trained": 8, "epochs_trained": 2})
    metadata = {"determined_version": "0.38.1", "steps_completed": 7, "framework": "torch-2.0"}
    described = _describe(metadata_json=metadata, load_data_json=_LOAD, trial_state_pkl=progress)
    assert described == DeterminedState(8, "4", "m:T", 6, "0.38.1", {"lr": 1}, {"name": "n"})


def test_layout_of_017_has_all_in_the_metadata_of_its_download() -> None:
    metadata = {
        "framework": "torch-1.9",
        "trial_id": 3,
        "hparams": {"global_batch_size": 16},
        "experiment_config": {"entrypoint": "m:T"},
        "metadata": {},
    }
    progress = pickle.dumps({"trial_id": 3, "latest_batch": 5, "last_val": 0})
    described = _describe(metadata_json=metadata, workload_sequencer_pkl=progress)
    assert (described.batches, described.trial_id, described.trial_class) == (5, "3", "m:T")
    assert (described.global_batch_size, described.last_validation) == (16, -1)


def test_nothing_but_the_state_is_known() -> None:
    assert _describe() == DeterminedState()


class _Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/nowhere/at/all",)


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        ({"load_data_json": b"{"}, "checkpoint.corrupt", "load_data.json is no JSON"),
        ({"metadata_json": b"[1]"}, "checkpoint.corrupt", "metadata.json is no JSON object"),
        ({"trial_state_pkl": pickle.dumps(_Attack())}, "checkpoint.corrupt", "it names posix.mkdir"),
        ({"trial_state_pkl": b"\x80\x04"}, "checkpoint.corrupt", "trial_state.pkl is no pickle"),
        ({"trial_state_pkl": pickle.dumps([1])}, "checkpoint.corrupt", "has a list"),
        ({"load_data_json": {**_LOAD, "trial_type": "TFKerasTrial"}}, "checkpoint.other_framework", "TFKerasTrial"),
        ({"metadata_json": {"framework": "tensorflow-2.4"}}, "checkpoint.other_framework", "tensorflow-2.4"),
    ],
)
def test_refused(files: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(GanglineError, match=words) as caught:
        _describe(**files)
    assert caught.value.code == code


def test_own_checkpoints_are_not_taken_for_determined() -> None:
    """Format 1 of ours has a state_dict.pth as well; its manifest tells them apart."""
    assert is_of_determined({"steps_completed": 1}, has_state=True)
    assert is_of_determined(None, has_state=True)
    assert is_of_determined({MANIFEST_KEY: {}, "state_format": "determined"}, has_state=True)
    assert not is_of_determined({MANIFEST_KEY: {}}, has_state=True)
    assert not is_of_determined({"steps_completed": 1}, has_state=False)
