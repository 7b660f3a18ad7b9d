"""`parallelism: auto` on real ranks: all ranks take the chief's choice, train to the numbers of the strategy named by
hand, and learn of the chief's errors."""

from __future__ import annotations

import json
import math
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gangline import pytorch
from gangline.cluster_info import CheckpointInfo
from gangline.config.strategy_choice import StrategyChoice
from gangline.domain.state import ExitKind
from gangline.domain.storage.manifest import MANIFEST_KEY, files_of, read_document, write_document
from gangline.errors import GanglineError
from gangline.protocol.wire import enum_number
from gangline.pytorch.parallel.recomputed import Recomputed
from gangline.pytorch.plan import place
from gangline.pytorch.plan.step_time import SPARE_BYTES, SPARE_RATIO
from tests.support.folder_work import in_folder
from tests.support.gang import run_gang
from tests.support.points_trial import Recorder
from tests.support.rank import Trial, run_trial
from tests.support.trial_source import LINEAR, linear_config

_WIDTH = 512


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(inputs))


class Stack(nn.Module):
    """About a million parameters in four blocks. A pipeline can cut it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


class Whole(nn.Module):
    """The same without a list of blocks, so that no pipeline can cut it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth = Layer(), Layer(), Layer(), Layer()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        passed: torch.Tensor = functional.dropout(self.second(self.first(inputs)), 0.1, self.training)
        return self.fourth(self.third(passed))  # type: ignore[no-any-return]  # torch's modules return Any


class Switch(nn.Module):
    is_on = False


class Shortened(Whole):
    """Runs without its last two layers while its switch is on."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = Switch()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs)) if self.cut.is_on else super().forward(inputs)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, _WIDTH), nn.Linear(_WIDTH, 64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.outer(functional.dropout(torch.tanh(self.inner(inputs)), 0.1, self.training))
        return found


class Long(Stack):
    """Few parameters and many activations, most of them inside of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Wide() for _ in range(4))


class StackTrial(pytorch.PyTorchTrial):
    """Draws weights, data and drop-outs from the process's generators, which `auto` must not move."""

    make: type[nn.Module] = Stack
    shape: tuple[int, ...] = (_WIDTH,)

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(type(self).make())
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=1e-3))
        self.scale = random.uniform(0.5, 1.5)
        self.recorder = Recorder()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        inputs = torch.randn(32, *self.shape, generator=torch.Generator().manual_seed(3))
        data = TensorDataset(inputs, torch.tanh(inputs * self.scale))
        return pytorch.DataLoader(data, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        loss = functional.mse_loss(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": 0.0}


class WholeTrial(StackTrial):
    make = Whole


class LateTrial(StackTrial):
    """Leaves two layers out from the third batch on, which ddp and zero1 refuse."""

    make = Shortened

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.model.get_submodule("cut").is_on = batch_idx >= 2  # type: ignore[assignment]  # no submodule
        return super().train_batch(batch, epoch_idx, batch_idx)


class LongTrial(StackTrial):
    make = Long
    shape = (128, 64)


class BrokenTrial(StackTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        raise ValueError("no data in the folder\nand more")


class Lazy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.LazyLinear(64))


class LazyTrial(StackTrial):
    make = Lazy


class LeavingTrial(StackTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        raise SystemExit("the trial leaves")


@dataclass(frozen=True)
class Case:
    """A training by `auto` under a limit of memory."""

    kind: type[StackTrial]  # kind of the trial
    # A slot may use one byte less than this candidate needs, as an earlier case of the same kind has measured. `least`
    # is below all of them, `plain` below all without recomputation; empty for ample memory.
    below: str = ""
    parallelism: Any = "auto"
    is_passed: bool = True
    config: dict[str, Any] = field(default_factory=dict)


_OF_TWO = {
    "ample": Case(WholeTrial),
    "small": Case(WholeTrial, "ddp"),
    "stack": Case(StackTrial),
    "options": Case(
        StackTrial,
        "zero1",
        {"strategy": "auto", "stages": 2, "find_unused_parameters": True, "activation_checkpointing": "none"},
    ),
    "long": Case(LongTrial),
    "recomputed": Case(LongTrial, "plain"),
    "nothing fits": Case(StackTrial, "least"),
    "broken": Case(BrokenTrial),
    "leaving": Case(LeavingTrial),
    "lazy": Case(LazyTrial),
    "no class": Case(WholeTrial, is_passed=False),
    # The last one, because a backward pass that breaks off may leave messages behind.
    "late": Case(LateTrial),
}
# Which of them is faster depends on the machine: zero1 exchanges more, and its slots share the optimizer's step.
_WHOLE = ("ddp", "zero1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@dataclass(frozen=True)
class Outcome:
    """The result of a case."""

    losses: list[float]
    by_hand: list[float]  # losses under the chosen strategy, named in the configuration
    record: StrategyChoice | None
    strategy: str  # its name as made, with `recomputed` if modules run again
    checkpoint: str | None
    error: str = ""


@in_folder
def choose_all(directory: Path, cases: list[Case]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    sizes: dict[type[StackTrial], dict[str, int]] = {}
    for case in cases:
        outcomes.append(_choose(case, sizes.get(case.kind, {})))
        if (record := outcomes[-1].record) is not None and case.kind not in sizes:
            totals = {row.name: row.bytes["total"] for row in record.rows if row.bytes}
            plain = [totals[row.name] for row in record.rows if row.bytes and row.activation_checkpointing == "none"]
            sizes[case.kind] = {**totals, "least": min(totals.values()), "plain": min(plain)}
    return outcomes


def _choose(case: Case, sizes: dict[str, int]) -> Outcome:
    usable = sizes[case.below] - 1 if case.below else 1e12
    memory = int((usable + SPARE_BYTES) / (1 - SPARE_RATIO))
    with mock.patch.object(place, "memory_limits", return_value={f"process {os.getpid()}": memory}):
        try:
            losses, record, strategy, checkpoint = _train(case, case.parallelism, saves=True)
        except GanglineError as error:
            return Outcome([], [], None, "", None, f"{error.code}: {error.message}")
    assert record is not None
    options: dict[str, Any] = {
        key: value for key, value in record.chosen.options.items() if key in ("stages", "replicas")
    }
    options["activation_checkpointing"] = record.chosen.activation_checkpointing
    by_hand = _train(case, {"strategy": record.chosen.strategy, **options}, saves=False)[0]
    return Outcome(losses, by_hand, record, strategy, checkpoint)


def _train(case: Case, parallelism: Any, *, saves: bool) -> tuple[list[float], StrategyChoice | None, str, str | None]:
    config = {"parallelism": parallelism, "scheduling_unit": 1, **case.config}
    passed = case.kind if case.is_passed else None
    with pytorch.init(hparams={"global_batch_size": 16}, exp_conf=config, trial_class=passed) as context:
        trial = case.kind(context)
        policy = "all" if saves else "none"
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(4), checkpoint_policy=policy)
        checkpoint = context.distributed.broadcast(
            trial.recorder.checkpoints[-1] if trial.recorder.checkpoints else None
        )
        forwards = [vars(module).get("forward") for module in trial.model.modules()]
        # A pipeline calls the forward of a unit through a partial function.
        inner = [own.args[-1] if isinstance(own, partial) else own for own in forwards]
        is_recomputed = any(isinstance(own, Recomputed) for own in inner)
        made = f"{context.strategy.name} recomputed" if is_recomputed else context.strategy.name
        return trial.recorder.losses, context.strategy_choice, made, checkpoint


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> list[list[Outcome]]:
    return run_gang(2, tmp_path_factory.mktemp("two"), choose_all, folder, list(_OF_TWO.values()))


def _outcomes(of_two: list[list[Outcome]], name: str) -> list[Outcome]:
    return [outcomes[list(_OF_TWO).index(name)] for outcomes in of_two]


def _record(outcomes: list[Outcome]) -> StrategyChoice:
    """The record, which all ranks have alike; the losses are those of the strategy named by hand, bit for bit."""
    for outcome in outcomes:
        assert outcome.error == ""
        assert outcome.record == outcomes[0].record
        assert outcome.losses == outcome.by_hand
    # The chief alone keeps losses where the ranks form one replica or report together.
    assert len(outcomes[0].losses) == 4
    assert outcomes[0].record is not None
    chosen = outcomes[0].record.chosen
    made = chosen.strategy + ("" if chosen.activation_checkpointing == "none" else " recomputed")
    assert {outcome.strategy for outcome in outcomes} == {made}
    return outcomes[0].record


def test_with_enough_memory_each_slot_has_the_whole_model(of_two: list[list[Outcome]]) -> None:
    record = _record(_outcomes(of_two, "ample"))
    assert record.choice in _WHOLE
    assert (record.slots, record.out_of_memory, record.notes) == (2, (), ())
    assert [row.strategy for row in record.rows] == ["none", "ddp", "zero1", "zero2", "zero3", "hsdp", "pipeline"]
    speeds = (record.slot_flops, record.convolution_flops, record.kernel_seconds, record.message_seconds)
    rates = (record.memory_rate, record.copy_rate, record.inside_rate, record.broadcast_rate)
    assert all(value is not None and 0 < value < math.inf for value in (*speeds, *rates))


def test_with_too_little_for_ddp_it_is_another(of_two: list[list[Outcome]]) -> None:
    record = _record(_outcomes(of_two, "small"))
    assert record.choice == "zero1"
    refusals = {row.name: row.refusal for row in record.rows}
    assert "above the usable" in refusals["ddp"]


def test_the_chosen_strategy_takes_the_options_that_it_knows(of_two: list[list[Outcome]]) -> None:
    record = _record(_outcomes(of_two, "options"))
    pipelines = [row.options["stages"] for row in record.rows if row.strategy == "pipeline"]
    assert pipelines == [2]
    assert record.chosen.strategy in ("zero2", "zero3", "pipeline")


def test_blocks_are_recomputed_where_their_activations_do_not_fit(of_two: list[list[Outcome]]) -> None:
    assert _record(_outcomes(of_two, "long")).chosen.activation_checkpointing == "none"
    record = _record(_outcomes(of_two, "recomputed"))
    assert record.chosen.activation_checkpointing in ("blocks", "full")


def test_the_record_lies_in_the_checkpoint(of_two: list[list[Outcome]], folder: Path) -> None:
    outcome = _outcomes(of_two, "small")[0]
    assert outcome.record is not None
    documents = list(folder.rglob(f"*{outcome.checkpoint}*/metadata.json"))
    assert len(documents) == 1
    metadata = json.loads(documents[0].read_text())
    assert metadata["strategy_choice"] == json.loads(outcome.record.to_json())
    assert metadata["parallelism"] == "zero1"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing fits", "parallelism.auto: parallelism: no strategy fits on 2 slots of .* such slots would do"),
        ("broken", "parallelism.auto: parallelism: auto cannot measure the trial: .*ValueError: no data in the folder"),
        ("leaving", "parallelism.auto: parallelism: auto cannot measure the trial: .*SystemExit: the trial leaves"),
        ("lazy", r"parallelism.auto: parallelism: auto cannot measure the trial: .* under torch.no_grad\(\)$"),
        ("no class", r"parallelism.trial_class: .*call gangline.pytorch.init\(trial_class=MyTrial\), or name a"),
    ],
)
def test_every_rank_has_the_error_in_one_line(of_two: list[list[Outcome]], name: str, words: str) -> None:
    errors = {outcome.error for outcome in _outcomes(of_two, name)}
    assert len(errors) == 1
    (error,) = errors
    assert re.match(words, error), error
    assert "\n" not in error


def test_off_the_cluster_a_later_refusal_names_the_next_candidate(of_two: list[list[Outcome]]) -> None:
    errors = {outcome.error for outcome in _outcomes(of_two, "late")}
    assert len(errors) == 1
    (error,) = errors
    words = (
        r"pytorch.unused_parameters: third.inner.weight, .* of Shortened took no part in the loss, .*; "
        r"auto has chosen ddp, name parallelism: zero[23] instead"
    )
    assert re.fullmatch(words, error), error


def test_four_ranks_cut_a_model_that_is_too_large_for_copies(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cases = [Case(WholeTrial), Case(StackTrial), Case(StackTrial, "zero1")]
    outcomes = run_gang(4, tmp_path_factory.mktemp("four"), choose_all, tmp_path_factory.mktemp("work"), cases)
    assert _record([rank[0] for rank in outcomes]).choice in _WHOLE
    _record([rank[1] for rank in outcomes])
    assert _record([rank[2] for rank in outcomes]).chosen.strategy in ("zero2", "zero3", "pipeline")


# A loss that reads a weight outside of the model's forward pass is refused by some strategies.
_PLAIN = LINEAR.replace(" + noise * self.model[0].weight.sum()", "")


def _trial(code: str, batches: int = 4, latest: CheckpointInfo | None = None) -> Trial:
    config = linear_config({"batches": batches}, parallelism="auto")
    return Trial({"model_def.py": code}, config, {"global_batch_size": 8}, 2, latest)


def _change_choice(latest: CheckpointInfo, change: Callable[[dict[str, Any]], None]) -> None:
    """Writes another record into a checkpoint, as if the attempt that saved it had chosen so."""
    path = Path(latest.url.removeprefix("file://")) / "metadata.json"
    document = read_document(path.read_bytes(), str(path))
    change(document)
    path.write_bytes(
        write_document({key: document[key] for key in document if key != MANIFEST_KEY}, files_of(document))
    )


def test_the_entrypoint_passes_its_trial_class_and_a_restart_keeps_the_choice(tmp_path: Path) -> None:
    running, codes = run_trial(tmp_path, _trial(_PLAIN))
    assert codes == [0, 0], running.output(0)
    assert len(running.runner.metric("training", "loss")) == 4
    assert running.output(0).count("parallelism: auto chose ") == 1
    assert "parallelism: auto chose " not in running.output(1)
    assert "keeps the choice" not in running.output(0)
    latest = running.latest_checkpoint()

    def choose_another(document: dict[str, Any]) -> None:
        document["strategy_choice"]["choice"] = "zero3"

    _change_choice(latest, choose_another)
    again, codes = run_trial(tmp_path / "again", _trial(_PLAIN, 6, latest))
    assert codes == [0, 0], again.output(0)
    assert "parallelism: auto chose zero3 for 2 slots" in again.output(0)
    assert "parallelism: auto keeps the choice of the attempt before" in again.output(0)

    def damage(document: dict[str, Any]) -> None:
        document["strategy_choice"]["rows"] = 7

    _change_choice(latest, damage)
    third, codes = run_trial(tmp_path / "third", _trial(_PLAIN, 6, latest))
    assert codes == [0, 0], third.output(0)
    assert "parallelism: auto chooses anew, because the choice before cannot be read" in third.output(0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [("ValueError", ExitKind.CONFIGURATION_ERROR), ("ConnectionError", ExitKind.UNAVAILABLE)],
)
def test_a_trial_that_cannot_be_built_ends_every_rank_with_the_same_line(
    tmp_path: Path, error: str, kind: ExitKind
) -> None:
    code = _PLAIN.replace("        self.context = context\n", f"        raise {error}('no data')\n", 1)
    assert code != _PLAIN
    running, codes = run_trial(tmp_path, _trial(code))
    assert codes == [1, 1]
    failures = [running.runner.of(rank, "failure")[0] for rank in range(2)]
    assert failures[0].message == failures[1].message
    assert failures[0].message.startswith("parallelism: auto cannot measure the trial: ")
    assert f"{error}: no data" in failures[0].message
    assert [failure.kind for failure in failures] == [enum_number(kind)] * 2
    # The chief's log has the traceback into the trial's code.
    assert "model_def.py" in running.output(0)
