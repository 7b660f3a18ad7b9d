"""Trains on one rank, without exchange."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from torch import nn

from gangline.pytorch.parallel.strategy import Strategy


class SingleStrategy(Strategy):
    name: ClassVar[str] = "none"
    has_peers: ClassVar[bool] = False

    def prepare_model(self, model: nn.Module) -> nn.Module:
        return model

    def accumulate(self) -> AbstractContextManager[None]:
        return nullcontext()
