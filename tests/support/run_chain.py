"""A chain of units whose forward is a function, for tests that cut it in many ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WIDTH = 4


class RunChain(nn.Module):
    """A stem, three blocks and a head. run: its forward. beside: a module behind them."""

    def __init__(
        self,
        run: Callable[[Any, torch.Tensor], Any],
        block: Callable[[], nn.Module] = lambda: nn.Linear(WIDTH, WIDTH),
        beside: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)
        if beside is not None:
            self.beside = beside
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def run_plain(model: RunChain, x: torch.Tensor) -> Any:
    x = model.stem(x)
    for block in model.blocks:
        x = block(x)
    return model.head(x)
