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
from gangline.pytorch.fusion.bucket_partition import DEFAULT_CAPS
from gangline.pytorch.training.loop import TrainingLoop

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
        net = nn.Sequential(*(nn.Sequential(nn.Linear(96, 96), nn.Tanh()) for layer in range(36)))
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


# gloo behind one wire, on which each all-reduce takes some time and then some time for each byte. Nothing is told to
# the tuner: what it learns of the link and of its steps it measures.
SLOW_LINK = """
import queue, threading
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

ALPHA_SECONDS, BYTES_PER_SECOND, LAYER_SECONDS = @ALPHA@, @RATE@, @LAYER@


class Slow(nn.Module):
    # Takes its time in the backward pass, beside which gradients of later layers can travel.
    def forward(self, x):
        if x.requires_grad:
            x.register_hook(lambda gradient: time.sleep(LAYER_SECONDS))
        return torch.tanh(x)


class SlowWork(dist._Work):
    def __init__(self):
        super().__init__()
        self.future = torch.futures.Future()

    def wait(self, timeout=None):
        self.future.wait()
        return True

    def is_completed(self):
        return self.future.done()

    def get_future(self):
        return self.future


class SlowGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.inner = ProcessGroupGloo(store, rank, size, timeout)
        self.wire = queue.SimpleQueue()
        threading.Thread(target=self.carry, daemon=True).start()

    def getBackendName(self):
        return "slow"

    def allreduce(self, tensors, options=None):
        work = SlowWork()
        self.wire.put((tensors, options or dist.AllreduceOptions(), work))
        return work

    def carry(self):
        while True:
            tensors, options, work = self.wire.get()
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            time.sleep(ALPHA_SECONDS + num_bytes / BYTES_PER_SECOND)
            self.inner.allreduce(tensors, options).wait()
            work.future.set_result(tensors)


def passing_on(name):
    return lambda group, *arguments: getattr(group.inner, name)(*arguments)


for name in ("allgather", "_allgather_base", "allgather_coalesced", "barrier", "broadcast", "gather", "reduce", "send",
             "recv", "monitored_barrier"):
    setattr(SlowGroup, name, passing_on(name))

dist.Backend.register_backend("slow", SlowGroup, devices=["cpu"])
init_process_group = dist.init_process_group
dist.init_process_group = lambda backend, **options: init_process_group("slow", **options)
"""


def over_slow_link(alpha_seconds: float, bytes_per_second: float, layer_seconds: float) -> str:
    """The trial, whose exchanges and backward pass take at least so long on every machine. layer_seconds: of every
    third of 36 layers. A busy machine prolongs each pause, so there are few."""
    link = SLOW_LINK.replace("@ALPHA@", str(alpha_seconds)).replace("@RATE@", str(bytes_per_second))
    return FUSED.replace("nn.Tanh()", "Slow() if layer % 3 == 0 else nn.Tanh()") + link.replace(
        "@LAYER@", str(layer_seconds)
    )
