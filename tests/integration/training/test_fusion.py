"""Tensor fusion tuned in real ranks under torchrun: nothing that is learned changes, and what was found is recalled.

How long a step takes is given to the tuner, so that it finds the same buckets on every machine; buckets, exchanges and
training are real.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.wait import until

_ROOT = str(Path(__file__).parents[3])
_STEPS = 60
_SECONDS = 100.0
# 1.3 MiB: one bucket of 1 MiB and a rest by default.
_SCRIPT = """
import hashlib, json, logging, os, sys, time
import torch
from torch import nn
from gangline import pytorch
from gangline.pytorch.fusion import probe
from gangline.pytorch.fusion.bucketed import BucketedModel
from gangline.pytorch.fusion.cost import LinkCost
from gangline.pytorch.fusion.meter import Meter
from gangline.pytorch.fusion.partition import DEFAULT_CAPS
from gangline.pytorch.loop import TrainingLoop

logging.basicConfig(level=logging.INFO, format="%(message)s")
torch.set_num_threads(1)
options = json.loads(sys.argv[1])


def say(line):
    # In one piece, as both ranks write into one file.
    os.write(1, f"{line}\\n".encode())


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        torch.manual_seed(1)
        net = nn.Sequential(*(nn.Sequential(nn.Linear(96, 96), nn.Tanh()) for _ in range(36)))
        self.model = context.wrap_model(net)
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(net.parameters(), lr=0.001))
        self.random = torch.Generator().manual_seed(context.distributed.rank)

    def build_training_data_loader(self):
        return pytorch.DataLoader(torch.utils.data.TensorDataset(torch.zeros(64, 1)), batch_size=1)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, epoch_idx, batch_idx):
        rank = self.context.distributed.rank
        say(f"rank {rank} step {batch_idx} begins")
        if rank == 1 and options.get("straggles"):
            time.sleep(float(torch.rand((), generator=self.random)) * 0.01)
        loss = self.model(torch.randn(4, 96, generator=self.random)).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        if batch_idx in (3, options["steps"] - 1):
            buckets = self.context.strategy._wrappers[0]._get_ddp_logging_data()["rebuilt_bucket_sizes"]
            say(f"rank {rank} step {batch_idx} buckets {buckets}")
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": 0.0}


real_end_step, real_rewrap = Meter.end_step, BucketedModel.rewrap
applied = [DEFAULT_CAPS]


def noting_rewrap(model, caps):
    applied.append(caps)
    real_rewrap(model, caps)


def scripted_end_step(meter):
    # Under the default's two buckets a step takes twice as long as with any others.
    step = real_end_step(meter)
    step.begin, step.end = 0.0, 0.02 if applied[-1] == DEFAULT_CAPS else 0.01
    step.gradients = [(parameter, 1e-4 * place) for place, (parameter, _) in enumerate(step.gradients)]
    return step


with pytorch.init(
    exp_conf={"optimizations": options["optimizations"]}, enable_tensorboard_logging=False
) as context:
    # As long as a trial must be to be tuned; it ends when the test has seen enough.
    TrainingLoop._steps_left = lambda loop: 20_000
    if options.get("scripted", True):
        Meter.end_step, BucketedModel.rewrap = scripted_end_step, noting_rewrap
        probe.measure_link = probe.measure_link_quickly = lambda *arguments: LinkCost(1e-5, 2e8)
    trial = Trial(context)
    pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(options["steps"]))
    states = [value for state in trial.optimizer.state.values() for value in state.values()]
    digest = hashlib.sha256()
    for value in [*trial.model.parameters(), *states]:
        digest.update(value.detach().float().numpy().tobytes())
    say(f"rank {context.distributed.rank} digest {digest.hexdigest()}")
"""


@dataclass(frozen=True)
class Outcome:
    """Of one trial in two ranks. buckets: by rank and step, the bytes of each as torch made them."""

    output: str

    @property
    def digests(self) -> list[str]:
        return [found for _, found in sorted(re.findall(r"rank (\d) digest (\w+)", self.output))]

    def buckets(self, step: int) -> list[str]:
        return [found for _, found in sorted(re.findall(rf"rank (\d) step {step} buckets (.+)", self.output))]

    @property
    def fusion_lines(self) -> list[str]:
        return re.findall(r"^fusion: .*$", self.output, re.MULTILINE)


def _start(directory: Path, memory: Path, **options: object) -> subprocess.Popen[str]:
    script = directory / "train.py"
    script.write_text(_SCRIPT)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GANGLINE_")}
    environment = {
        **kept,
        "PYTHONPATH": _ROOT,
        "GANGLINE_FUSION_DIR": str(memory),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    with (directory / "output").open("w") as output:
        return subprocess.Popen(
            [*torchrun, json.dumps({"steps": _STEPS, "optimizations": {}, **options})],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _run(directory: Path, memory: Path, **options: object) -> Outcome:
    directory.mkdir()
    process = _start(directory, memory, **options)
    code = process.wait(_SECONDS)
    outcome = Outcome((directory / "output").read_text())
    assert code == 0, outcome.output[-3000:]
    return outcome


_TUNED = {"auto_tune_tensor_fusion": True}


def test_tuned_trial_learns_the_same_bit_for_bit(tmp_path: Path) -> None:
    plain = _run(tmp_path / "plain", tmp_path / "memory")
    assert plain.fusion_lines == []
    tuned = _run(tmp_path / "tuned", tmp_path / "memory", optimizations=_TUNED)
    assert len(tuned.fusion_lines) == 1
    assert "2.00x default" in tuned.fusion_lines[0]
    first, last = tuned.buckets(3), tuned.buckets(_STEPS - 1)
    assert first == plain.buckets(3) == plain.buckets(_STEPS - 1)
    assert last[0] == last[1] != first[0]
    assert tuned.digests == plain.digests
    assert len(tuned.digests) == 2


def test_next_trial_has_the_buckets_from_its_first_step(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    tuned = _run(tmp_path / "tuned", memory, optimizations=_TUNED)
    again = _run(tmp_path / "again", memory, optimizations=_TUNED, steps=20)
    assert again.buckets(3) == again.buckets(19) == tuned.buckets(_STEPS - 1)
    (line,) = again.fusion_lines
    assert re.fullmatch(r"fusion: .*, 2.00x default, recalled from an earlier trial, which took \d+ steps", line)


def test_explicit_cap_turns_tuning_off(tmp_path: Path) -> None:
    outcome = _run(
        tmp_path / "fixed", tmp_path / "memory", steps=5, optimizations={**_TUNED, "tensor_fusion_threshold": 1}
    )
    assert outcome.fusion_lines == [
        "fusion: not tuned: optimizations.tensor_fusion_threshold fixes the buckets at 1 MiB"
    ]


async def test_straggler_and_a_pause_in_mid_tuning_end_with_one_partition(tmp_path: Path) -> None:
    """With times as they are: which buckets win is not foreseen, but all ranks have the same."""
    directory = tmp_path / "disturbed"
    directory.mkdir()
    process = _start(directory, tmp_path / "memory", optimizations=_TUNED, straggles=True, scripted=False)

    def output() -> str:
        return (directory / "output").read_text()

    def newest_step(rank: int) -> int:
        return max(map(int, re.findall(rf"rank {rank} step (\d+) begins", output())), default=-1)

    await until(lambda: newest_step(1) >= 8, "rank 1 tunes", _SECONDS)
    pid = _pid_of_rank(process.pid, 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        # Rank 0 begins the step after rank 1's and can get no further: the pause is felt.
        await until(lambda: newest_step(0) >= newest_step(1), "rank 0 waits", _SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)
    await until(lambda: process.poll() is not None, "the end of training", _SECONDS)
    assert process.returncode == 0, output()[-3000:]
    outcome = Outcome(output())
    last = outcome.buckets(_STEPS - 1)
    assert len(last) == 2
    assert last[0] == last[1]
    assert len(outcome.fusion_lines) == 1
    assert outcome.digests[0] == outcome.digests[1]


def _pid_of_rank(parent: int, rank: int) -> int:
    """Of torchrun's child with this RANK."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_child = f"\nPPid:\t{parent}\n" in (folder / "status").read_text()
            if is_child and f"RANK={rank}" in (folder / "environ").read_text().split("\0"):
                return int(folder.name)
        except OSError:
            continue
    pytest.fail(f"rank {rank} is not among the children of {parent}")
