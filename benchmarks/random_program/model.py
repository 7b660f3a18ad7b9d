"""Random models of blocks in several forms, and the state that a model keeps beside its blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.random_program.block import BLOCKS, WIDTH, Generator, share
from benchmarks.random_program.program import Program

FORMS = ("sequential", "list", "skip", "lists", "nested", "mapping", "inline")
OWN = ("counter", "attribute", "late", "memory", "generator", "noise", "table")


def make_model(program: Program) -> nn.Module:
    """Returns the program's model in double precision. Draws from torch's generator."""
    blocks = [BLOCKS[kind]() for kind in program.blocks]
    share(blocks)
    stem, head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(stem, *blocks, head) if program.form == "sequential" else Net(program, stem, blocks, head)
    return model.double()


def blocks_of(model: nn.Module) -> list[Any]:
    return list(model)[1:-1] if isinstance(model, nn.Sequential) else model.all_blocks()  # type: ignore[operator]  # torch types modules loosely


class Body(nn.Module):
    def __init__(self, blocks: list[Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Net(nn.Module):
    """A stem, blocks and a head."""

    def __init__(self, program: Program, stem: nn.Module, blocks: list[Any], head: nn.Module) -> None:
        super().__init__()
        self.form, self.own = program.form, program.own
        self.stem = stem
        if self.form == "lists":
            self.first = nn.ModuleList(blocks[: len(blocks) // 2])
            self.second = nn.ModuleList(blocks[len(blocks) // 2 :])
        elif self.form == "nested":
            self.body = Body(blocks)
        elif self.form == "inline":
            self.blocks: Any = nn.Sequential(*blocks)
        else:
            self.blocks = nn.ModuleList(blocks)
        self.head = head
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("late", torch.zeros(()))
        self.calls: torch.Tensor
        self.late: torch.Tensor
        self.number = 0
        self.memory: torch.Tensor | None = None
        self.generator = Generator(3)
        if "table" in self.own:
            self.table = nn.Parameter(torch.zeros(WIDTH))

    def all_blocks(self) -> list[Any]:
        if self.form == "lists":
            return [*self.first, *self.second]
        return list(self.body.layers if self.form == "nested" else self.blocks)

    def forward(self, x: torch.Tensor) -> Any:
        x = self._before(self.stem(x))
        noise = torch.rand(WIDTH) if "noise" in self.own and self.training else None
        first = x
        if self.form == "nested":
            x = self.body(x)
        elif self.form == "inline":
            x = self.blocks(x)
        else:
            for place, block in enumerate(self.all_blocks()):
                x = block(x)
                if self.form == "skip" and place == 2:
                    x = x + 0.5 * first
        if noise is not None:
            x = x * (0.5 + noise)
        out = self.head(self._behind(x))
        return {"output": out} if self.form == "mapping" else out

    def _before(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and "counter" in self.own:
            self.calls += 1
        if self.training and "attribute" in self.own:
            self.number += 1
        if self.training and "generator" in self.own:
            x = x * (0.5 + torch.rand(WIDTH, generator=self.generator.inner))
        x = x + self.table if "table" in self.own else x
        return x / (1 + 0.5 * self.calls + 0.5 * self.number)

    def _behind(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and "late" in self.own:
            self.late += 1
        if "memory" in self.own:
            x = x if self.memory is None else x + 0.5 * self.memory
            self.memory = x.detach().mean(0) if self.training else self.memory
        return x / (1 + 0.5 * self.late)
