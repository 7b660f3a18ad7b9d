"""Source of a trial whose gradients make two buckets by default, and of times that a test gives to the fusion tuner."""

from __future__ import annotations

from collections.abc import Mapping

# 1.3 MiB: one bucket of 1 MiB and a rest. It prints the buckets that torch made after the fourth and the last step, and
# a digest of all that was learned. hparams: steps; straggles, whether rank 1 is slow now and then.
FUSED = """
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
# As long as a trial must be to be tuned; it ends when the test has seen enough.
TrainingLoop._steps_left = lambda loop: 20_000


def say(line):
    # In one piece, as both ranks may write into one file.
    os.write(1, f"{line}\\n".encode())


class FusedTrial(pytorch.PyTorchTrial):
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
        if rank == 1 and self.context.get_hparam("straggles"):
            time.sleep(float(torch.rand((), generator=self.random)) * 0.01)
        loss = self.model(torch.randn(4, 96, generator=self.random)).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        if batch_idx in (3, self.context.get_hparam("steps") - 1):
            buckets = self.context.strategy._wrappers[0]._get_ddp_logging_data()["rebuilt_bucket_sizes"]
            say(f"rank {rank} step {batch_idx} buckets {buckets}")
        if batch_idx == self.context.get_hparam("steps") - 1:
            say(f"rank {rank} digest {self.digest()}")
        return {"loss": loss}

    def digest(self):
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        found = hashlib.sha256()
        for value in [*self.model.parameters(), *states]:
            found.update(value.detach().float().numpy().tobytes())
        return found.hexdigest()

    def evaluate_batch(self, batch):
        return {"loss": 0.0}


def script_times():
    # Under the default's two buckets a step takes twice as long as with any others, whatever the machine does.
    end_step, rewrap, applied = Meter.end_step, BucketedModel.rewrap, [DEFAULT_CAPS]

    def noting_rewrap(model, caps):
        applied.append(caps)
        rewrap(model, caps)

    def scripted_end_step(meter):
        step = end_step(meter)
        step.begin, step.end = 0.0, 0.02 if applied[-1] == DEFAULT_CAPS else 0.01
        step.gradients = [(parameter, 1e-4 * place) for place, (parameter, _) in enumerate(step.gradients)]
        return step

    Meter.end_step, BucketedModel.rewrap = scripted_end_step, noting_rewrap
    probe.measure_link = probe.measure_link_quickly = lambda *arguments: LinkCost(1e-5, 2e8)
"""

SCRIPTED = FUSED + "\n\nscript_times()\n"


def fused_config(steps: int, optimizations: Mapping[str, object]) -> dict[str, object]:
    """The experiment's configuration for it."""
    return {
        "entrypoint": "model_def:FusedTrial",
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": steps}},
        "optimizations": dict(optimizations),
        "checkpoint_policy": "none",
    }
