"""A pipeline over two agents: where its stages lie, that stops and losses of ranks change no number, and what is told
of a stage that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from gangline.client import Client
from gangline.config.strategy_choice import parse_choice
from gangline.domain.state import ExitKind, Outcome, State
from gangline.domain.view import ExperimentView
from gangline.pytorch import load_checkpoint
from tests.support.cluster import Cluster
from tests.support.gated_trial import wait_for

SECONDS = 120.0
NUM_BATCHES = 10

TRIAL = """
import os, signal, threading
import torch
from torch import nn
from torch.utils.data import TensorDataset
from gangline import get_cluster_info, pytorch


class Block(nn.Module):
    def __init__(self, trial):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.trial = trial

    def forward(self, x):
        self.trial.trouble(x)
        return x + torch.tanh(self.inner(x))


class Model(nn.Module):
    def __init__(self, trial):
        super().__init__()
        self.blocks = nn.ModuleList(Block(trial) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def wait_for(condition):
    while not condition():
        threading.Event().wait(0.01)


class MyTrial(pytorch.PyTorchTrial):
    batch_idx = -1

    def __init__(self, context):
        self.context = context
        self.rank = context.distributed.rank
        self.attempt = get_cluster_info().attempt
        self.model = context.wrap_model(Model(self))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=0.01))
        own = [name for name, value in self.model.named_parameters() if not value.is_meta]
        print("holds", *own, flush=True)

    def build_training_data_loader(self):
        data = torch.arange(96.0).reshape(16, 6) % 7 / 7
        return pytorch.DataLoader(TensorDataset(data), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return self.build_training_data_loader()

    def trouble(self, x):
        # Runs inside the blocks, so only on the rank of their stage.
        for kind, wanted, rank, batch_idx in self.context.get_hparam("troubles"):
            if [self.attempt, self.rank, self.batch_idx] == [wanted, rank, batch_idx] and self.model.training:
                if kind == "raise":
                    self.break_stage()
                if kind == "raise in backward" and x.requires_grad:
                    x.register_hook(self.break_stage)
                if kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if kind == "hang":
                    threading.Event().wait()

    def break_stage(self, gradient=None):
        raise ArithmeticError("this stage breaks")

    def train_batch(self, batch, epoch_idx, batch_idx):
        if self.context.get_hparam("is_paused") and self.attempt == 1 and batch_idx != self.batch_idx:
            # Slow batches, so that a stop is looked for after each of them.
            threading.Event().wait(0.2)
            if batch_idx == 5 and self.rank == 0:
                print("waits at batch 5", flush=True)
                wait_for(lambda: self.context.core.link.preemption is not None)
        self.batch_idx = batch_idx
        loss = (self.model(batch[0]) - 1).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"error": (self.model(batch[0]) - 1).square().mean()}
"""


@pytest.fixture(scope="module")
def cluster(two_agents: Cluster) -> Cluster:
    return two_agents


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.connect() as connected:
        yield connected


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(TRIAL)
    return folder


def _config(parallelism: Any, troubles: Any = (), is_paused: bool = False, **more: Any) -> str:
    return yaml.safe_dump(
        {
            "name": "pipeline",
            "entrypoint": "train:MyTrial",
            "parallelism": parallelism,
            "hyperparameters": {
                "global_batch_size": 8,
                "troubles": list(map(list, troubles)),
                "is_paused": is_paused,
            },
            "searcher": {"name": "single", "metric": "error", "max_length": {"epochs": NUM_BATCHES // 2}},
            "resources": {"slots_per_trial": 4},
            "scheduling_unit": 1,
            "min_checkpoint_period": {"batches": 2},
            "max_restarts": 0,
            "reproducibility": {"experiment_seed": 7},
            **more,
        }
    )


def _run(client: Client, code: Path, config: str) -> ExperimentView:
    return client.wait_experiment(client.create_experiment(config, code).experiment.id, SECONDS)


def _series(client: Client, experiment_id: int, group: str, name: str) -> list[tuple[int, float]]:
    points = [stored.point for stored in client.stream_metrics(experiment_id, group=group)]
    return [(point.batches_completed, point.metrics[name]) for point in points]


def _held(client: Client, experiment_id: int) -> dict[int, tuple[str, set[str]]]:
    """Returns the agent of each rank, and the blocks whose values the rank has."""
    held = {}
    for entry in client.stream_logs(experiment_id):
        if entry.text.startswith("holds ") and entry.rank is not None:
            names = entry.text.split()[1:]
            held[entry.rank] = (entry.agent_id, {name.rsplit(".inner", 1)[0] for name in names})
    return held


@pytest.fixture(scope="module")
def whole(client: Client, code: Path) -> ExperimentView:
    """Four stages over two machines, without a disturbance."""
    return _run(client, code, _config("pipeline"))


@pytest.fixture(scope="module")
def alone(client: Client, code: Path) -> ExperimentView:
    """One process."""
    return _run(client, code, _config("none", resources={"slots_per_trial": 1}))


def test_stages_follow_the_machines_and_train_as_one_process(
    client: Client, whole: ExperimentView, alone: ExperimentView
) -> None:
    trial = whole.trials[0].trial
    assert (trial.outcome, trial.attempts) == (Outcome.COMPLETED, 1), trial.reason
    held = _held(client, whole.experiment.id)
    assert [held[rank][1] for rank in range(4)] == [{f"blocks.{rank}"} for rank in range(4)]
    assert held[0][0] == held[1][0] != held[2][0] == held[3][0]
    # One report for each batch, though four ranks have trained it.
    losses = _series(client, whole.experiment.id, "training", "loss")
    assert [batches for batches, _ in losses] == list(range(1, NUM_BATCHES + 1))
    assert losses[-1][1] < losses[0][1]
    assert trial.batches_completed == NUM_BATCHES
    # All stages of a replica read the same records, each of them once in an epoch.
    for group, name in (("training", "loss"), ("validation", "error")):
        own, other = (_series(client, each.experiment.id, group, name) for each in (whole, alone))
        assert [batches for batches, _ in own] == [batches for batches, _ in other]
        assert [value for _, value in own] == pytest.approx([value for _, value in other], rel=1e-5)


def test_a_downloaded_checkpoint_fits_the_plain_model(
    cluster: Cluster, client: Client, whole: ExperimentView, tmp_path: Path
) -> None:
    newest = max(client.list_checkpoints(whole.experiment.id), key=lambda each: each.batches_completed)
    cluster.run("checkpoint", "download", newest.id, "--output", tmp_path / "checkpoint")
    (state,) = load_checkpoint(tmp_path / "checkpoint")["models_state_dict"]
    plain = nn.Module()
    plain.blocks = nn.ModuleList(nn.ModuleDict({"inner": nn.Linear(6, 6)}) for _ in range(4))
    plain.load_state_dict(state, strict=True)
    x = torch.arange(96.0).reshape(16, 6) % 7 / 7
    for number in range(4):
        x = x + torch.tanh(plain.get_submodule(f"blocks.{number}.inner")(x))
    reported = dict(_series(client, whole.experiment.id, "validation", "error"))[newest.batches_completed]
    assert (x - 1).square().mean().item() == pytest.approx(reported, rel=1e-5)


def test_a_killed_and_a_hung_stage_change_no_number(client: Client, code: Path, whole: ExperimentView) -> None:
    troubles = [("kill", 1, 2, 3), ("hang", 2, 1, 7)]
    watch = {"seconds": 2, "factor": 1}
    view = _run(client, code, _config("pipeline", troubles, max_restarts=2, hang_detection=watch))
    trial = view.trials[0].trial
    assert (trial.outcome, trial.attempts, trial.restarts) == (Outcome.COMPLETED, 3, 2), trial.reason
    assert trial.last_failure is not None
    assert (trial.last_failure.kind, trial.last_failure.rank) == (ExitKind.HANG, 1), trial.last_failure
    told = [(entry.agent_id, entry.text) for entry in client.stream_logs(view.experiment.id)]
    assert (_held(client, view.experiment.id)[2][0], "SIGNAL: ended by signal 9 (SIGKILL)") in told
    _check_same(client, view, whole)


def test_a_pause_changes_no_number(client: Client, code: Path, whole: ExperimentView) -> None:
    experiment_id = client.create_experiment(_config("pipeline", is_paused=True), code).experiment.id
    wait_for(
        lambda: any(entry.text == "waits at batch 5" for entry in client.stream_logs(experiment_id)), "batch 5", SECONDS
    )
    client.pause_experiment(experiment_id)
    wait_for(lambda: client.get_experiment(experiment_id).trials[0].trial.state is State.PAUSED, "the pause", SECONDS)
    assert 5 <= client.get_experiment(experiment_id).trials[0].trial.batches_completed < NUM_BATCHES
    client.activate_experiment(experiment_id)
    view = client.wait_experiment(experiment_id, SECONDS)
    trial = view.trials[0].trial
    assert (trial.outcome, trial.attempts, trial.restarts) == (Outcome.COMPLETED, 2, 0), trial.reason
    _check_same(client, view, whole)


def _check_same(client: Client, view: ExperimentView, whole: ExperimentView) -> None:
    """Checks that the last report of each batch, and the last validation, are those of the undisturbed run."""
    for group, name in (("training", "loss"), ("validation", "error")):
        own, other = (dict(_series(client, each.experiment.id, group, name)) for each in (view, whole))
        assert own[NUM_BATCHES] == other[NUM_BATCHES]
        assert {batches: own[batches] for batches in other if batches in own} == other


def test_a_stage_that_breaks_on_the_other_machine_is_named(cluster: Cluster, client: Client, code: Path) -> None:
    section = {"strategy": "pipeline", "stages": 2, "replicas": "zero2"}
    view = _run(client, code, _config(section, [("raise", 1, 3, 4)]))
    held = _held(client, view.experiment.id)
    # Each replica lies on one machine.
    assert held[0][0] == held[1][0] != held[2][0] == held[3][0]
    assert [sorted(held[rank][1]) for rank in range(4)] == [["blocks.0", "blocks.1"], ["blocks.2", "blocks.3"]] * 2
    trial = view.trials[0].trial
    assert (trial.outcome, trial.attempts) == (Outcome.FAILED, 1)
    failure = trial.last_failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.agent_id) == (ExitKind.USER_ERROR, 3, held[3][0])
    wanted = "ArithmeticError: this stage breaks (in stage 1 of 2 (blocks.2 to blocks.3), rank 3, microbatch"
    assert failure.message.startswith(wanted)
    assert any("in break_stage" in line for line in failure.last_lines), failure.last_lines
    # The user's own frames, each once, from the call of the model on.
    assert failure.last_lines[0] == "Traceback (most recent call last):"
    frames = [line.rpartition(" in ")[2] for line in failure.last_lines if line.startswith("  File ")]
    assert frames == ["train_batch", "forward", "forward", "trouble", "break_stage"], failure.last_lines
    log = [entry.text for entry in client.stream_logs(view.experiment.id) if entry.rank == 3]
    assert "Traceback (most recent call last):" in log
    assert any(line.strip() == 'raise ArithmeticError("this stage breaks")' for line in log), log
    described = cluster.run("trial", "describe", trial.id).stdout
    assert wanted in " ".join(described.split())
    assert "onnection closed" not in described


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_backward_pass_that_breaks_is_named_with_its_stage(
    cluster: Cluster, client: Client, code: Path, schedule: str, rank: int
) -> None:
    section = {"strategy": "pipeline", "schedule": schedule, "microbatches": 4}
    troubles = [("raise in backward", 1, rank, 2)]
    view = _run(client, code, _config(section, troubles, resources={"slots_per_trial": 2}))
    trial = view.trials[0].trial
    failure = trial.last_failure
    assert failure is not None
    assert (trial.outcome, failure.kind, failure.rank) == (Outcome.FAILED, ExitKind.USER_ERROR, rank)
    stage = ("0 of 2 (blocks.0 to blocks.1)", "1 of 2 (blocks.2 to blocks.3)")[rank]
    if schedule == "ZBVZeroBubble":
        stage = ("3 of 4 (blocks.3)", "2 of 4 (blocks.2)")[rank]
    wanted = f"ArithmeticError: this stage breaks (in stage {stage}, rank {rank}, backward pass of microbatch 0 of 4)"
    assert failure.message == wanted
    described = cluster.run("trial", "describe", trial.id).stdout
    assert wanted in " ".join(described.split())
    assert "raise ArithmeticError" in described
    log = [entry.text for entry in client.stream_logs(view.experiment.id) if entry.rank == 0]
    bubble = {"1F1B": "20.0", "ZBVZeroBubble": "11.1"}[schedule]
    assert any(line.endswith(f"records in 4 microbatches; bubble {bubble} %") for line in log), log
    assert "onnection closed" not in described


def test_auto_measures_the_links_inside_and_between_machines(client: Client, code: Path) -> None:
    view = _run(client, code, _config("auto"))
    trial = view.trials[0].trial
    assert trial.outcome is Outcome.COMPLETED, trial.reason
    record = parse_choice(trial.strategy_choice_json)
    assert {"ddp", "hsdp"} <= {row.strategy for row in record.rows if row.step_seconds is not None}
    assert record.slots == 4
    assert record.inside_rate is not None
    assert record.across_rate is not None
    (line,) = (entry.text for entry in client.stream_logs(view.experiment.id) if "measured: " in entry.text)
    assert f", {record.inside_rate / 1e9:.3g} GB a second inside a machine, " in line
    assert f", {record.across_rate / 1e9:.3g} GB a second between machines, " in line
