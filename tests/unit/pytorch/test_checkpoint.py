"""A trial's checkpoint on one rank: what is in it, the first version's layout, and what is refused in one line."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from gangline import pytorch
from gangline.core import CheckpointContext
from gangline.core.storage_access.storage import CheckpointStore, digest_of
from gangline.domain.state import ExitKind
from gangline.domain.storage.manifest import StoredFile, files_of, write_document
from gangline.errors import GanglineError
from gangline.launch.failure import describe
from gangline.pytorch.checkpoint import capture
from gangline.pytorch.checkpoint import name as checkpoint_name
from gangline.pytorch.checkpoint.metadata import read_metadata
from tests.support.points_trial import Net, PointsTrial, Recorder, fit, make_optimizer


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _saved(**options: Any) -> Path:
    recorder = fit("none", 3, **options)
    return Path("checkpoints", recorder.checkpoints[-1])


def _resume(folder: Path, **options: Any) -> Recorder:
    return fit("none", 6, str(folder.resolve()), **options)


def test_folder_holds_one_share_and_what_is_plain() -> None:
    folder = _saved()
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert files == ["metadata.json", "rank_0.pth", "tensors/.metadata", "tensors/__0_0.distcp", "trainer.pth"]
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["manifest"]["files"].keys() == set(files) - {"metadata.json"}
    assert (metadata["steps_completed"], metadata["parallelism"], metadata["world_size"]) == (3, "none", 1)
    assert metadata["validation_metrics"].keys() == {"error", "records"}


def test_state_fits_bare_modules() -> None:
    state = pytorch.load_checkpoint(_saved())
    net = Net()
    net.load_state_dict(state["models_state_dict"][0])
    optimizer = make_optimizer(net, "adamw")
    optimizer.load_state_dict(state["optimizers_state_dict"][0])
    assert all(entries["step"] == 3 for entries in optimizer.state.values())
    assert state["callbacks"] == {"recorder": {"seen": 3}}


class _Compiled(PointsTrial):
    """Whose model is compiled as a whole, and has a compiled module inside."""

    def make_model(self) -> nn.Module:
        model: Any = super().make_model()
        model.stem = torch.compile(model.stem, backend="eager")
        whole: nn.Module = torch.compile(model, backend="eager")  # type: ignore[assignment]  # torch types it as a function
        return whole


@pytest.mark.parametrize("is_earlier", [False, True], ids=["this version", "an earlier version"])
@pytest.mark.parametrize(
    ("saved_by", "resumed_by"), [(_Compiled, PointsTrial), (_Compiled, _Compiled), (PointsTrial, _Compiled)]
)
def test_a_checkpoint_does_not_depend_on_compilation(
    is_earlier: bool, saved_by: type[PointsTrial], resumed_by: type[PointsTrial], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = fit("none", 6).losses[3:]
    with monkeypatch.context() as patch:
        if is_earlier:
            patch.setattr(capture, "plain_names", dict)
            patch.setattr(checkpoint_name, "plain_name", lambda path: path)
        folder = _saved(kind=saved_by)
    names = read_metadata(folder / "tensors").state_dict_metadata
    assert any("_orig_mod" in path for path in names) == (is_earlier and saved_by is _Compiled)
    assert _resume(folder, kind=resumed_by).losses == wanted
    state = pytorch.load_checkpoint(folder)
    net = Net()
    net.load_state_dict(state["models_state_dict"][0])
    make_optimizer(net, "adamw").load_state_dict(state["optimizers_state_dict"][0])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: _flip(folder / "tensors" / "__0_0.distcp"),
            r"tensors/__0_0.distcp differs from what was saved .*; use another checkpoint",
        ),
        (lambda folder: (folder / "tensors" / "__0_0.distcp").unlink(), r"lacks tensors/__0_0.distcp; use another"),
        (lambda folder: (folder / "tensors" / ".metadata").unlink(), r"lacks tensors/.metadata; use another"),
        (lambda folder: _flip(folder / "trainer.pth"), r"trainer.pth differs from what was saved"),
        (lambda folder: (folder / "rank_0.pth").unlink(), r"lacks rank_0.pth; use another checkpoint"),
        (lambda folder: _flip(folder / "metadata.json"), r"metadata.json (is no JSON: |has no|differs|does not|names)"),
        (lambda folder: (folder / "metadata.json").write_text(""), r"metadata.json is no JSON: .*; use another"),
        (lambda folder: (folder / "metadata.json").unlink(), r"no checkpoint [0-9a-f-]+ at|holds no metadata.json"),
        (
            lambda folder: _change(folder, state_format=3),
            r"holds a trial's state in format 3, this version of Gangline reads up to 2; use a newer one",
        ),
        (lambda folder: _put_pickle(folder, os.system), r"does not describe tensors: it names posix.system"),
        (lambda folder: _put_pickle(folder, None), r".metadata holds a NoneType; use another checkpoint"),
    ],
)
def test_damage_is_told_in_one_line(damage: Callable[[Path], object], message: str) -> None:
    folder = _saved()
    damage(folder)
    for read in (pytorch.load_checkpoint, _resume):
        with pytest.raises(GanglineError, match=message) as caught:
            read(folder)
        assert "\n" not in caught.value.message


def _change(folder: Path, files: dict[str, StoredFile] | None = None, **values: Any) -> None:
    """As if it had been saved so."""
    path = folder / "metadata.json"
    document = json.loads(path.read_text())
    entries = files_of(document) | (files or {})
    document.pop("manifest")
    path.write_bytes(write_document({**document, **values}, entries))


def _put_pickle(folder: Path, content: Any) -> None:
    """With a manifest that says that it belongs there."""
    path = folder / "tensors" / ".metadata"
    path.write_bytes(pickle.dumps(content))
    _change(folder, {"tensors/.metadata": StoredFile(path.stat().st_size, digest_of(path))})


class _OneGroup(PointsTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.optimizers[0] = torch.optim.AdamW(self.model.parameters())


class _OtherOrder(PointsTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        for group in context.optimizers[0].param_groups:
            group["params"].reverse()


class _OtherNames(PointsTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.models[0] = nn.Sequential(self.model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"hparams": {"width": 10}},
            r"another model than Net: its stem.weight has the shape \(8, 6\), not \(10, 6\); its stem.bias has the "
            r"shape \(8\), not \(10\) \(and 13 differences more\)",
        ),
        ({"kind": _OtherNames}, r"another model than Sequential: it has no 0.mask; it has no 0.stem.weight \(and"),
        (
            {"kind": _OneGroup},
            "optimizer 0 has groups of 6, 10 parameters, this trial's AdamW has groups of 16; it belongs to another",
        ),
        (
            {"kind": _OtherOrder},
            "optimizer 0 has the parameter 0.stem.weight where this trial's AdamW has 0.head.weight; it belongs",
        ),
    ],
)
def test_checkpoint_of_another_trial(options: dict[str, Any], message: str) -> None:
    folder = _saved()
    with pytest.raises(GanglineError, match=message):
        _resume(folder, **options)


@pytest.mark.parametrize(
    ("saved_by", "own", "batches"), [("7.1", "8.1", 6), ("7.1", "7.1", 3), ("", "8.1", 3), ("7.1", "", 3)]
)
def test_position_is_that_of_the_trial_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, saved_by: str, own: str, batches: int
) -> None:
    monkeypatch.setattr(pytorch.PyTorchTrialContext, "get_trial_id", lambda context: saved_by)
    folder = _saved()
    caplog.set_level("INFO", "gangline")
    monkeypatch.setattr(pytorch.PyTorchTrialContext, "get_trial_id", lambda context: own)
    starts: list[tuple[int, int]] = []

    class Started(PointsTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            if not starts:
                same = torch.equal(self.model.state_dict()["head.bias"], saved["models_state_dict"][0]["head.bias"])
                assert same
                starts.append((self.context.get_initial_batch(), batch_idx))
            return super().train_batch(batch, epoch_idx, batch_idx)

    saved = pytorch.load_checkpoint(folder)
    recorder = _resume(folder, kind=Started)
    assert len(recorder.losses) == batches
    assert starts == [(6 - batches, 6 - batches)]
    text = "the checkpoint is of trial 7.1 after batch 3: trial 8.1 takes its state and begins at batch 0"
    assert (text in caplog.messages) is (batches == 6)


class _OtherClass(PointsTrial):
    """As its hyperparameter `optimizer` says, under a name of its own."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.before = {name: value.clone() for name, value in self.model.state_dict().items()}
        _OtherClass.newest = self

    newest: _OtherClass


@pytest.mark.parametrize(
    ("is_older", "message"),
    [
        (False, "the checkpoint's optimizer 0 is a SGD, this trial's is a AdamW; use the same class, or load the"),
        (True, "optimizer 0 has dampening, momentum, nesterov and no amsgrad, betas, .*, this trial's is a AdamW; use"),
    ],
)
def test_checkpoint_of_another_optimizer_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, is_older: bool, message: str
) -> None:
    if is_older:
        monkeypatch.setattr("gangline.pytorch.checkpoint.capture.OPTIMIZER_CLASSES", "unknown_key")
    folder = _saved(hparams={"optimizer": "sgd"})
    with pytest.raises(GanglineError, match=message) as caught:
        _resume(folder, kind=_OtherClass)
    assert caught.value.code == "checkpoint.other_optimizer"
    trial = _OtherClass.newest
    assert all(torch.equal(trial.before[name], value) for name, value in trial.model.state_dict().items())


class _Remembering(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.found = state_dict


def _remembering(values: dict[str, Any]) -> type[PointsTrial]:
    class Trial(PointsTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            self.recorder = _Remembering()
            self.recorder.values = values

    return Trial


def test_callbacks_may_keep_what_numpy_and_pathlib_have() -> None:
    values: dict[str, Any] = {
        "best": numpy.float32(0.1),
        "seen": [numpy.int64(3), (numpy.bool_(True), numpy.str_("a"))],
        "matrix": numpy.arange(6.0).reshape(2, 3).T,
        "names": numpy.array(["a", "bc"]),
        "place": Path("/data/x"),
    }
    trial_class = _remembering(values)
    restored = getattr(_resume(_saved(kind=trial_class), kind=trial_class), "found", {})
    assert restored["best"] == numpy.float32(0.1)
    assert restored["seen"] == [3, (True, "a")]
    assert numpy.array_equal(numpy.asarray(restored["matrix"]), values["matrix"])
    assert restored["names"] == ["a", "bc"]
    assert Path(restored["place"]) == values["place"]


class _Odd:
    """An object of no kind that a checkpoint can restore."""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"fine": 1, "deep": [{"odd": _Odd()}]},
            "callback 'recorder': state_dict()['deep'][0]['odd'] is a _Odd, which a checkpoint cannot give back; "
            "keep tensors, arrays, numbers, strings, lists and dictionaries",
        ),
        (
            {"call": lambda: 0},
            "callback 'recorder': state_dict()['call'] is a function, which a checkpoint cannot give back; "
            "keep tensors, arrays, numbers, strings, lists and dictionaries",
        ),
    ],
)
def test_what_cannot_be_given_back_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(GanglineError) as caught:
        _saved(kind=_remembering(values))
    assert (caught.value.code, caught.value.message) == ("checkpoint.not_plain", message)


class _Noted(Recorder):
    """Adds to the state and to the folder, as Determined's callbacks may."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["note"] = {"of": "the user"}

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "vocabulary.txt").write_text("a b c")

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any] | None) -> None:
        assert checkpoint is not None
        self.note = checkpoint["note"]


class _NotedTrial(PointsTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.recorder = _Noted()


def test_callbacks_may_add_to_a_checkpoint() -> None:
    folder = _saved(kind=_NotedTrial)
    assert (folder / "vocabulary.txt").read_text() == "a b c"
    assert pytorch.load_checkpoint(folder)["note"] == {"of": "the user"}
    assert getattr(_resume(folder, kind=_NotedTrial), "note", None) == {"of": "the user"}


class _Counted(torch.optim.SGD):
    """Keeps numbers and lists beside tensors, under names that tensors cannot have in a checkpoint."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["last.two"] = torch.tensor([1.0, 2.0])
        return super().step(closure)


class _CountedTrial(PointsTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.optimizer = context.optimizers[0] = _Counted(self.model.parameters(), lr=0.1)


def test_optimizer_may_keep_what_is_no_tensor() -> None:
    folder = _saved(kind=_CountedTrial)
    with pytorch.init(hparams={"global_batch_size": 8}) as context:
        trial = _CountedTrial(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(4), latest_checkpoint=str(folder.resolve()))
    for state in trial.optimizer.state.values():
        assert state["count"] == 4
        assert state["last.two"].tolist() == [1.0, 2.0]


def test_first_version_is_read() -> None:
    """One file with everything, whose optimizers count their parameters."""
    losses = fit("none", 6).losses
    state = pytorch.load_checkpoint(_saved())
    progress = {**state["progress"]}
    first = {**state, "progress": progress, "rng_state": state["rng_state"], "rank_state": [{"kept": 1}]}
    store = CheckpointStore(str(Path.cwd()))
    Path("old").mkdir()
    torch.save(first, "old/state_dict.pth")
    path = Path("old/state_dict.pth")
    store.upload_files("old", Path("old"), ["state_dict.pth"])
    store.commit("old", {"steps_completed": 3}, {"state_dict.pth": StoredFile(path.stat().st_size, digest_of(path))})
    folder = Path("checkpoints", "old")
    assert _resume(folder).losses == pytest.approx(losses[3:], abs=1e-9)
    again = pytorch.load_checkpoint(folder)
    assert again.keys() == state.keys()
    assert again["rank_state"] == [{"kept": 1}]
    for name, value in state["models_state_dict"][0].items():
        assert torch.equal(value, again["models_state_dict"][0][name])
    assert again["optimizers_state_dict"][0]["param_groups"] == state["optimizers_state_dict"][0]["param_groups"]


def test_storage_without_folders_holds_a_trial(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    recorders: list[Recorder] = []
    for batches in (3, 6):
        with pytorch.init(hparams={"global_batch_size": 8}, exp_conf={"scheduling_unit": 1}) as context:
            context.core.checkpoint = CheckpointContext(
                context.distributed, context.core.link, CheckpointStore(url), None
            )
            trial = PointsTrial(context)
            latest = f"{url}/checkpoints/{recorders[0].checkpoints[-1]}" if recorders else None
            pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(batches), latest_checkpoint=latest)
            recorders.append(trial.recorder)
    assert recorders[1].losses == pytest.approx(fit("none", 6).losses[3:], abs=1e-9)


class _HeldStore:
    """Storage that takes no file until it is released."""

    def __init__(self) -> None:
        self.original = CheckpointStore.open_file
        self.release = threading.Event()
        self.waiting = threading.Event()

    def opener(self) -> Callable[[CheckpointStore, str, str], Any]:
        """In the place of CheckpointStore.open_file."""

        @contextmanager
        def open_file(store: CheckpointStore, storage_id: str, path: str) -> Iterator[Any]:
            self.waiting.set()
            assert self.release.wait(60)
            with self.original(store, storage_id, path) as stream:
                yield stream

        return open_file


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_training_waits_only_where_it_is_told_to(monkeypatch: pytest.MonkeyPatch, is_asynchronous: bool) -> None:
    store = _HeldStore()
    monkeypatch.setattr(CheckpointStore, "open_file", store.opener())
    seen: list[int] = []

    class Watching(PointsTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            seen.append(batch_idx)
            if batch_idx == 3:
                # The next save waits for this one, which would otherwise never end.
                assert store.waiting.wait(60)
                assert store.release.is_set() is not is_asynchronous
                store.release.set()
            return super().train_batch(batch, epoch_idx, batch_idx)

    if not is_asynchronous:
        store.release.set()
    with pytorch.init(
        hparams={"global_batch_size": 8},
        exp_conf={"async_checkpoints": is_asynchronous, "scheduling_unit": 1, "checkpoint_policy": "none"},
    ) as context:
        trial = Watching(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(5), checkpoint_period=pytorch.Batch(2))
    assert seen == [0, 1, 2, 3, 4]
    batches = sorted(pytorch.load_checkpoint(path)["progress"]["batches"] for path in Path("checkpoints").iterdir())
    assert batches == [2, 4, 5]
    assert len(trial.recorder.checkpoints) == 3


def test_storage_that_fails_ends_training_with_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(store: CheckpointStore, storage_id: str, path: str) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(CheckpointStore, "open_file", refuse)
    with pytest.raises(GanglineError, match=r"after batch 3 could not be written to .*Permission denied") as caught:
        fit("none", 3)
    assert (caught.value.code, caught.value.kind) == ("checkpoint.storage", "unavailable")
    assert not list(Path("checkpoints").glob("*"))


def test_failed_training_waits_for_its_save_only_so_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = _HeldStore()
    monkeypatch.setattr(CheckpointStore, "open_file", store.opener())
    monkeypatch.setattr("gangline.pytorch.checkpoint.saver._SETTLE_SECONDS", 0.0)

    class Diverging(PointsTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            loss = super().train_batch(batch, epoch_idx, batch_idx)["loss"]
            return {"loss": loss * float("nan") if batch_idx == 3 else loss}

    with pytest.raises(GanglineError, match=r"there is no checkpoint yet, one of batch 2 is being saved\. Lower"):
        fit("none", 9, kind=Diverging, checkpoint_period=pytorch.Batch(2))
    store.release.set()
    warning = "the checkpoint after batch 2 was still being written after 0 s, so this end of training loses it"
    assert caplog.messages.count(warning) == 1


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"data": {"root": Path("/data")}}, "hparams.data.root is a PosixPath, which checkpoints cannot keep; give"),
        ({"lr": numpy.float32(0.1)}, "hparams.lr is a float32, which checkpoints cannot keep; give numbers"),
    ],
)
def test_hyperparameter_that_checkpoints_cannot_keep(hparams: dict[str, Any], message: str) -> None:
    with pytest.raises(GanglineError, match=message) as caught:
        fit("none", 3, hparams=hparams)
    assert describe(caught.value).kind is ExitKind.CONFIGURATION_ERROR
