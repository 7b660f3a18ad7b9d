"""Sources of small programs written as Determined's documentation teaches it; they import nothing of Gangline."""

from __future__ import annotations

# A trial as for MNIST, on 8 by 8 pictures of a bright bar whose place is its class.
MNIST = '''
import logging

import determined as det
import torch
from determined import pytorch
from determined.pytorch import DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial, PyTorchTrialContext
from torch import nn
from torch.utils.data import TensorDataset


def make_pictures(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 8, (count,), generator=generator)
    pictures = 0.3 * torch.randn(count, 1, 8, 8, generator=generator)
    pictures[torch.arange(count), 0, labels] += 1.0
    return TensorDataset(pictures, labels)


class Epochs(PyTorchCallback):
    def __init__(self):
        self.seen = []

    def on_training_epoch_end(self, epoch_idx):
        self.seen.append(epoch_idx)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state_dict):
        self.seen = state_dict["seen"]


class Hits(pytorch.MetricReducer):
    """Right answers over all records, whatever slot saw them."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.right = self.all = 0

    def update(self, output, labels):
        self.right += int((output.argmax(dim=1) == labels).sum())
        self.all += len(labels)

    def per_slot_reduce(self):
        return self.right, self.all

    def cross_slot_reduce(self, per_slot_metrics):
        right, everything = (sum(column) for column in zip(*per_slot_metrics))
        return {"accuracy": right / everything}


class BarsTrial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext, hparams=None) -> None:
        self.context = context
        self.hparams = hparams or context.get_hparams()
        hidden = self.hparams["hidden"]
        net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, hidden),
                            nn.ReLU(), nn.Linear(hidden, 8))
        self.model = self.context.wrap_model(net)
        self.optimizer = self.context.wrap_optimizer(
            torch.optim.Adam(self.model.parameters(), lr=self.hparams["learning_rate"])
        )
        self.schedule = self.context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5),
            step_mode=LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )
        self.hits = self.context.wrap_reducer(Hits(), for_training=False)
        self.loss = nn.CrossEntropyLoss()

    def build_training_data_loader(self):
        return DataLoader(make_pictures(512, 1), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(make_pictures(101, 2), batch_size=self.context.get_per_slot_batch_size())

    def build_callbacks(self):
        return {"epochs": Epochs()}

    def train_batch(self, batch, epoch_idx: int, batch_idx: int):
        pictures, labels = batch
        loss = self.loss(self.model(pictures), labels)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda params: torch.nn.utils.clip_grad_norm_(params, 5.0)
        )
        if self.context.is_epoch_start() and self.context.distributed.get_rank() == 0:
            self.context.get_tensorboard_writer().add_scalar("learning_rate", self.schedule.get_last_lr()[0], batch_idx)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        pictures, labels = batch
        output = self.model(pictures)
        self.hits.update(output, labels)
        return {"validation_loss": self.loss(output, labels).item()}


def run():
    info = det.get_cluster_info()
    hparams = info.trial.hparams if info else {"global_batch_size": 64, "learning_rate": 0.01, "hidden": 16}
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    with det.pytorch.init(hparams=hparams) as train_context:
        trial = BarsTrial(train_context, hparams)
        trainer = det.pytorch.Trainer(trial, train_context)
        trainer.fit(
            max_length=pytorch.Epoch(2),
            validation_period=pytorch.Epoch(1),
            checkpoint_period=pytorch.Epoch(1),
            reporting_period=pytorch.Batch(4),
            latest_checkpoint=info.latest_checkpoint if info else None,
        )


if __name__ == "__main__":
    run()
'''

# The stages of the Core API's introduction: a loop that counts up.
METRICS = """
import logging
import sys

import determined as det


def main(core_context, increment_by):
    x = 0
    for batch in range(30):
        x += increment_by
        steps_completed = batch + 1
        if steps_completed % 10 == 0:
            core_context.train.report_training_metrics(steps_completed=steps_completed, metrics={"x": x})
    core_context.train.report_validation_metrics(steps_completed=steps_completed, metrics={"x": x})


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, format=det.LOG_FORMAT)
    with det.core.init() as core_context:
        main(core_context=core_context, increment_by=1)
"""

CHECKPOINTS = '''
import time

import determined as det


def save_state(x, steps_completed, trial_id, checkpoint_directory):
    with checkpoint_directory.joinpath("state").open("w") as file:
        file.write(f"{x},{steps_completed},{trial_id}")


def load_state(trial_id, checkpoint_directory):
    with checkpoint_directory.joinpath("state").open() as file:
        x, steps_completed, its_trial_id = [int(word) for word in file.read().split(",")]
    # Another trial's weight is kept, its place in the data is not.
    return x, steps_completed if its_trial_id == trial_id else 0


def main(core_context, latest_checkpoint, trial_id, increment_by):
    x, starting_batch = 0, 0
    if latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(latest_checkpoint) as path:
            x, starting_batch = load_state(trial_id, path)
    for batch in range(starting_batch, 100):
        x += increment_by
        steps_completed = batch + 1
        if steps_completed % 10 == 0:
            core_context.train.report_training_metrics(steps_completed=steps_completed, metrics={"x": x})
            with core_context.checkpoint.store_path({"steps_completed": steps_completed}) as (path, storage_id):
                save_state(x, steps_completed, trial_id, path)
            if core_context.preempt.should_preempt():
                return
            if steps_completed == 20 and starting_batch == 0:
                wait_for_preemption(core_context)
    core_context.train.report_validation_metrics(steps_completed=steps_completed, metrics={"x": x})


def wait_for_preemption(core_context):
    """The test pauses the trial here, so that it need not hit a moment."""
    while not core_context.preempt.should_preempt(auto_ack=False):
        time.sleep(0.01)


if __name__ == "__main__":
    info = det.get_cluster_info()
    assert info is not None
    with det.core.init() as core_context:
        main(core_context, info.latest_checkpoint, info.trial.trial_id, increment_by=1)
'''

SEARCH = """
import determined as det


def main(core_context, increment_by):
    x, batch = 0, 0
    for op in core_context.searcher.operations():
        while batch < op.length:
            x += increment_by
            batch += 1
            if batch % 10 == 0:
                core_context.train.report_training_metrics(steps_completed=batch, metrics={"x": x})
                op.report_progress(batch)
        core_context.train.report_validation_metrics(steps_completed=batch, metrics={"x": x})
        op.report_completed(x)


if __name__ == "__main__":
    info = det.get_cluster_info()
    with det.core.init() as core_context:
        main(core_context, info.trial.hparams["increment_by"])
"""

# The last stage as it is taught starts a worker for each slot by itself; see LAUNCHED.
DISTRIBUTED = """
import determined as det
import torch.distributed as dist


def main(core_context, increment_by):
    distributed = core_context.distributed
    x = 0
    for op in core_context.searcher.operations():
        for batch in range(op.length):
            all_increments = distributed.allgather(increment_by + distributed.rank)
            x += sum(all_increments)
            steps_completed = batch + 1
            if steps_completed % 10 == 0:
                if distributed.rank == 0:
                    core_context.train.report_training_metrics(steps_completed=steps_completed, metrics={"x": x})
                    op.report_progress(steps_completed)
                with core_context.checkpoint.store_path({"steps_completed": steps_completed}, shard=True) as (path, _):
                    path.joinpath(f"rank{distributed.rank}").write_text(str(x))
                if core_context.preempt.should_preempt():
                    return
        if distributed.rank == 0:
            core_context.train.report_validation_metrics(steps_completed=steps_completed, metrics={"x": x})
            op.report_completed(x)
    assert distributed.broadcast(x if distributed.rank == 0 else None) == x
    assert distributed.gather_local(x) == ([x] * distributed.local_size if distributed.local_rank == 0 else None)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    info = det.get_cluster_info()
    distributed = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=distributed) as core_context:
        main(core_context, info.trial.hparams["increment_by"])
"""

# The same behind a launcher of the script's own, which starts a worker for each slot of its machine. It needs no torch.
LAUNCHED = (
    DISTRIBUTED.partition("if __name__")[0].replace("import torch.distributed as dist\n", "")
    + """
import subprocess
import sys


def launcher_main(slots_per_node, cross_rank):
    workers = []
    for local_rank in range(slots_per_node):
        rank = cross_rank * slots_per_node + local_rank
        wrapped = ["python3", "-m", "determined.launch.wrap_rank", str(rank), "--"]
        workers.append(subprocess.Popen([*wrapped, "python3", __file__, "worker", str(local_rank)]))
    return max(worker.wait() for worker in workers)


def worker_main(slots_per_node, num_nodes, cross_rank, local_rank):
    distributed = det.core.DistributedContext(
        rank=cross_rank * slots_per_node + local_rank,
        size=num_nodes * slots_per_node,
        local_rank=local_rank,
        local_size=slots_per_node,
        cross_rank=cross_rank,
        cross_size=num_nodes,
        chief_ip=info.container_addrs[0],
    )
    print("hello from worker", distributed.rank, flush=True)
    with det.core.init(distributed=distributed) as core_context:
        main(core_context, info.trial.hparams["increment_by"])


if __name__ == "__main__":
    info = det.get_cluster_info()
    slots_per_node = len(info.slot_ids)
    if sys.argv[1] == "launcher":
        sys.exit(launcher_main(slots_per_node, info.container_rank))
    worker_main(slots_per_node, len(info.container_addrs), info.container_rank, int(sys.argv[2]))
"""
)
