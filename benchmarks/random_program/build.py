"""Builds a program's model, optimizers and schedulers, and makes its steps. The code is a user's: the same under
Gangline and in plain PyTorch, where `wrap` returns what it gets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional
from torch.optim import lr_scheduler

from benchmarks.random_program.block import WIDTH, Scaling
from benchmarks.random_program.model import blocks_of, make_model
from benchmarks.random_program.program import GLOBAL_BATCH, Program, Step

Wrap = Callable[[Any], Any]
VALIDATION_BATCH, VALIDATION_RECORDS = 4, 16


@dataclass(slots=True)
class World:
    """What a program has made."""

    program: Program
    model: nn.Module
    optimizers: list[optim.Optimizer] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)

    def copied(self, model: nn.Module) -> World:
        return World(self.program, model, self.optimizers, self.schedulers)


def build(program: Program, wrap_model: Wrap, wrap_optimizer: Wrap, wrap_scheduler: Wrap) -> World:
    world = World(program, make_model(program))
    make_steps(world, program.before)
    world.model = wrap_model(world.model)
    make_steps(world, program.after)
    for parameters in _divide(world):
        groups = _grouped(parameters) if program.is_grouped else parameters
        optimizer = OPTIMIZERS[program.optimizer](groups)
        world.optimizers.append(wrap_optimizer(optimizer))
        if program.scheduler != "none":
            scheduler = SCHEDULERS[program.scheduler](world.optimizers[-1])
            world.schedulers.append(scheduler)
            wrap_scheduler(scheduler)
    make_steps(world, program.last)
    return world


def make_steps(world: World, steps: Iterable[Step]) -> None:
    for name, number in steps:
        STEPS[name](world, number)


def inputs_of(records: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns random records and what the model is to make of them."""
    inputs = torch.randn(records, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return inputs, torch.tanh(inputs.flip(1))


def training_data(program: Program) -> tuple[torch.Tensor, torch.Tensor]:
    """The records of one epoch."""
    return inputs_of(sum(map(program.records_of, range(program.epoch))), program.seed % 1000)


def validation_data(program: Program) -> tuple[torch.Tensor, torch.Tensor]:
    return inputs_of(VALIDATION_RECORDS, 1000 + program.seed % 1000)


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    output = model(inputs)
    return functional.mse_loss(output["output"] if isinstance(output, dict) else output, targets)


def clip(program: Program, parameters: Any) -> None:
    if program.clip == "norm":
        nn.utils.clip_grad_norm_(parameters, 0.1)
    elif program.clip == "value":
        nn.utils.clip_grad_value_(parameters, 0.01)


def _divide(world: World) -> list[list[nn.Parameter]]:
    parameters = list(world.model.parameters())
    if not world.program.has_two:
        return [parameters]
    last = {id(parameter) for parameter in blocks_of(world.model)[-1].parameters()}
    halves = ([p for p in parameters if (id(p) in last) == is_last] for is_last in (False, True))
    return list(halves)


def _grouped(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda groups: optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
    "decay": lambda groups: optim.SGD(groups, lr=0.1, momentum=0.5, weight_decay=0.1),
    "adam": lambda groups: optim.Adam(groups, lr=0.01, amsgrad=True),
    "adamw": lambda groups: optim.AdamW(groups, lr=0.01),
    "for each": lambda groups: optim.AdamW(groups, lr=0.01, foreach=False),
    "rmsprop": lambda groups: optim.RMSprop(groups, lr=0.005, momentum=0.5),
    "adagrad": lambda groups: optim.Adagrad(groups, lr=0.05),
    "adadelta": lambda groups: optim.Adadelta(groups, lr=1.0),
    "adamax": lambda groups: optim.Adamax(groups, lr=0.01),
    "nadam": lambda groups: optim.NAdam(groups, lr=0.01),
    "radam": lambda groups: optim.RAdam(groups, lr=0.01),
    "asgd": lambda groups: optim.ASGD(groups, lr=0.05),
    "adafactor": lambda groups: optim.Adafactor(groups, lr=0.05),
}
SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.8),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 5),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40, cycle_momentum=False),
    "function": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.2, total_iters=2), lr_scheduler.ConstantLR(optimizer, 0.5, 2)],
        milestones=[2],
    ),
}


def _modules(world: World, place: int) -> list[nn.Module]:
    """A block, or the whole model for a negative number."""
    if place < 0:
        return [world.model]
    blocks = blocks_of(world.model)
    return [blocks[place % len(blocks)]]


def _parameters(world: World, place: int) -> list[nn.Parameter]:
    return [parameter for module in _modules(world, place) for parameter in module.parameters()]


def _layers(world: World, place: int) -> list[nn.Linear]:
    """Those with a weight of their own. A weight that is computed would not stay initialised."""
    modules = (inner for module in _modules(world, place) for inner in module.modules())
    return [module for module in modules if isinstance(module, nn.Linear) and "weight" in module._parameters]


def _seed(world: World, seed: int) -> None:
    torch.manual_seed(seed)


def _initialise(name: str, world: World, place: int, **options: float) -> None:
    for layer in _layers(world, place):
        # Looked up at each call, as users write it. Strategies replace some of these functions.
        getattr(nn.init, name)(layer.weight, **options)


def _apply(world: World, place: int) -> None:
    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and "weight" in module._parameters:
            nn.init.kaiming_normal_(module.weight)
            nn.init.uniform_(module.bias, -0.1, 0.1) if module.bias is not None else None

    for module in _modules(world, place):
        module.apply(initialise)


def _reset(world: World, place: int) -> None:
    for layer in _layers(world, place):
        layer.reset_parameters()


@torch.no_grad()
def _draw_whole(world: World, place: int) -> None:
    for parameter in _parameters(world, place):
        parameter.copy_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))


@torch.no_grad()
def _jitter(world: World, place: int) -> None:
    torch.manual_seed(40 + place)
    _own_jitter(world, place)


@torch.no_grad()
def _own_jitter(world: World, place: int) -> None:
    for parameter in _parameters(world, place):
        parameter.add_(0.1 * torch.randn_like(parameter))


@torch.no_grad()
def _own_scale(world: World, place: int) -> None:
    for parameter in _parameters(world, place):
        parameter.mul_(1 + 0.1 * float(torch.rand(())))


@torch.no_grad()
def _halve(world: World, place: int) -> None:
    for parameter in _parameters(world, place):
        parameter.mul_(0.5)


@torch.no_grad()
def _clamp(world: World, place: int) -> None:
    for parameter in _parameters(world, place):
        parameter.clamp_(-0.2, 0.2)


@torch.no_grad()
def _normalise(world: World, place: int) -> None:
    for layer in _layers(world, place):
        layer.weight.mul_(1 / layer.weight.norm())


@torch.no_grad()
def _copy_block(world: World, place: int) -> None:
    """Copies the weight of one block's layer to that of the next block."""
    blocks = blocks_of(world.model)
    first, second = blocks[place % len(blocks)].layer, blocks[(place + 1) % len(blocks)].layer
    if "weight" in first._parameters and "weight" in second._parameters:
        second.weight.copy_(first.weight)


def _freeze(is_trained: bool, world: World, place: int) -> None:
    for module in _modules(world, max(place, 0)):
        module.requires_grad_(is_trained)


def _other_state(world: World, seed: int) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(100 + seed)
        return make_model(world.program).state_dict()


def _load(world: World, seed: int) -> None:
    world.model.load_state_dict(_other_state(world, seed))


def _load_block(world: World, place: int) -> None:
    state = _other_state(world, place)
    blocks = blocks_of(world.model)
    block = blocks[place % len(blocks)]
    name = next(name for name, module in world.model.named_modules() if module is block)
    block.load_state_dict({key[len(name) + 1 :]: value for key, value in state.items() if key.startswith(f"{name}.")})


def _draw(number: Callable[[], float], world: World, place: int) -> None:
    for block in blocks_of(world.model)[max(place, 0) :][:1]:
        block.gain = 0.5 + number()


@torch.no_grad()
def _fill_buffers(world: World, place: int) -> None:
    for name, buffer in world.model.named_buffers():
        if name.rpartition(".")[2] in ("calls", "mean", "shared"):
            buffer.add_(0.5)


def _gain(world: World, place: int) -> None:
    blocks = blocks_of(world.model)
    blocks[place % len(blocks)].gain *= 0.5


def _hook_parameter(world: World, place: int) -> None:
    for parameter in _parameters(world, max(place, 0)):
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _hook_block(world: World, place: int) -> None:
    for module in _modules(world, max(place, 0)):
        module.register_forward_hook(Scaling())


@torch.no_grad()
def _look(is_training: bool, world: World, seed: int) -> None:
    """Runs the model without gradients, as for a first look at its output."""
    world.model.train(is_training)
    world.model(inputs_of(GLOBAL_BATCH, 2000 + seed)[0])
    world.model.train()


def _tie(world: World, place: int) -> None:
    blocks = blocks_of(world.model)
    first, second = blocks[place % len(blocks)].layer, blocks[(place + 1) % len(blocks)].layer
    if "weight" in first._parameters and "weight" in second._parameters:
        second.weight = first.weight


def _rate(world: World, place: int) -> None:
    for optimizer in world.optimizers:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5


STEPS: dict[str, Callable[[World, int], None]] = {
    "seed": _seed,
    "xavier": partial(_initialise, "xavier_normal_"),
    "uniform": partial(_initialise, "uniform_"),
    "normal": partial(_initialise, "normal_"),
    "trunc_normal": partial(_initialise, "trunc_normal_", std=0.2),
    "orthogonal": partial(_initialise, "orthogonal_"),
    "sparse": partial(_initialise, "sparse_", sparsity=0.3),
    "eye": partial(_initialise, "eye_"),
    "apply": _apply,
    "reset": _reset,
    "draw_whole": _draw_whole,
    "jitter": _jitter,
    "own_jitter": _own_jitter,
    "own_scale": _own_scale,
    "halve": _halve,
    "clamp": _clamp,
    "normalise": _normalise,
    "copy_block": _copy_block,
    "freeze": partial(_freeze, False),
    "thaw": partial(_freeze, True),
    "load": _load,
    "load_block": _load_block,
    "draw": partial(_draw, lambda: float(torch.rand(()))),
    "draw_order": partial(_draw, lambda: float(torch.randperm(7)[0]) / 7),
    "draw_python": partial(_draw, random.random),
    "draw_numpy": partial(_draw, np.random.rand),
    "fill_buffers": _fill_buffers,
    "gain": _gain,
    "hook_parameter": _hook_parameter,
    "hook_block": _hook_block,
    "look": partial(_look, False),
    "look_training": partial(_look, True),
    "tie": _tie,
    "rate": _rate,
}
# Steps that change more than parameters, so that each copy of a model makes them.
OF_EACH_COPY = frozenset({"load", "load_block", "fill_buffers", "gain"})
