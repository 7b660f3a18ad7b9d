"""Trains a random program in one process of plain PyTorch, which is the reference. Imports nothing of Gangline.

The batches are those of the whole gang. State of a module depends on how often the module runs and on the records that
it gets, so each replica has a copy of the model with state of its own, the same parameters and the stream of random
numbers that docs/determinism gives it, and gets its records in as many microbatches as under the strategy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.random_program import build
from benchmarks.random_program.block import copy_with_parameters
from benchmarks.random_program.outcome import Outcome
from benchmarks.random_program.program import Program


def train_alone(program: Program) -> Outcome:
    """Returns the outcome. The process's generators are seeded, and left as training leaves them."""
    seed_all(0)
    world = build.build(program, _same, _same, _same)
    return _Alone(program, world).train()


def seed_all(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class _Alone:
    def __init__(self, program: Program, world: build.World) -> None:
        self._program = program
        self._world = world
        others = (copy_with_parameters(world.model) for _ in range(1, program.replicas))
        self._copies: list[nn.Module] = [world.model, *others]
        # Training draws from a stream for each replica, whose seeds follow on that of the trial.
        self._streams: list[Any] = []
        for replica in range(program.replicas):
            seed_all(1 + replica)
            self._streams.append(_capture())
        self._outcome = Outcome()

    def train(self) -> Outcome:
        program, outcome = self._program, self._outcome
        for model in self._copies:
            model.train()
        last_validation = -1
        for batch in range(program.batches):
            if batch % program.epoch == 0:
                self._begin_epoch(batch // program.epoch)
            outcome.losses.append(self._train_batch(batch))
            for scheduler in self._world.schedulers if (batch + 1) % program.aggregation == 0 else ():
                for _ in range(program.aggregation):
                    scheduler.step()
            if (batch + 1) % program.period == 0:
                self._validate()
                last_validation = batch
            if batch + 1 == program.saved:
                self._share_buffers()
        if last_validation != program.batches - 1:
            self._validate()
        self._share_buffers()
        outcome.state = {name: value.detach().clone() for name, value in self._world.model.state_dict().items()}
        groups = (group for optimizer in self._world.optimizers for group in optimizer.param_groups)
        outcome.rates = [float(group["lr"]) for group in groups]
        return outcome

    def _begin_epoch(self, epoch: int) -> None:
        for step in (step for place, step in self._program.events if place == epoch):
            with self._stream(0):
                build.make_steps(self._world, [step])
            for model in self._copies[1:] if step[0] in build.OF_EACH_COPY else ():
                build.make_steps(self._world.copied(model), [step])

    def _train_batch(self, batch: int) -> float:
        program = self._program
        replicas, aggregation = program.replicas, program.aggregation
        total = 0.0
        for replica, pieces in enumerate(self._pieces_of(batch)):
            for inputs, targets in pieces:
                with self._stream(replica):
                    loss = build.loss_of(self._copies[replica], inputs, targets) / (replicas * len(pieces))
                    (loss / aggregation).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                total += float(loss.detach())
        if (batch + 1) % aggregation == 0:
            for optimizer in self._world.optimizers:
                build.clip(program, [parameter for group in optimizer.param_groups for parameter in group["params"]])
                optimizer.step()
                optimizer.zero_grad()
        return total

    def _pieces_of(self, batch: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
        """Returns the microbatches of each replica."""
        program = self._program
        first = sum(map(program.records_of, range(batch % program.epoch)))
        inputs, targets = (
            tensor[first : first + program.records_of(batch % program.epoch)] for tensor in build.training_data(program)
        )
        of_replicas = zip(inputs.chunk(program.replicas), targets.chunk(program.replicas), strict=True)
        count = program.microbatches
        return [list(zip(x.chunk(count), y.chunk(count), strict=True)) for x, y in of_replicas]

    @torch.no_grad()
    def _validate(self) -> None:
        self._share_buffers()
        for model in self._copies:
            model.eval()
        size = build.VALIDATION_BATCH
        inputs_of, targets_of = (
            tensor.split(size)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            for tensor in build.validation_data(self._program)
        )
        batches = zip(inputs_of, targets_of, strict=True)
        losses = []
        for number, (inputs, targets) in enumerate(batches):
            losses.append(float(build.loss_of(self._copies[number % len(self._copies)], inputs, targets)))
        for model in self._copies:
            model.train()
        self._outcome.validations.append(sum(losses) / len(losses))

    @torch.no_grad()
    def _share_buffers(self) -> None:
        """A validation and a checkpoint take the buffers of the first replica."""
        own = dict(self._world.model.named_buffers())
        for model in self._copies[1:]:
            for name, buffer in model.named_buffers():
                buffer.copy_(own[name])

    @contextmanager
    def _stream(self, replica: int) -> Iterator[None]:
        _restore(self._streams[replica])
        yield
        self._streams[replica] = _capture()


def _same(value: Any) -> Any:
    return value


def _capture() -> Any:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _restore(state: Any) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
