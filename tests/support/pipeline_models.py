"""Models for tests of pipelines: chains of units, plain and out of the ordinary."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.support.points_trial import Block

WIDTH = 8


class Chain(nn.Module):
    """Four blocks between a stem and a head, with a parameter of the model itself and code between the units."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, WIDTH)
        self.offset = nn.Parameter(torch.zeros(WIDTH))
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x += self.offset
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(functional.relu(x)) + self.offset[:3]
        return out


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, int]:
        y = self.norm(x)
        return x + self.inner(y, y, y, attn_mask=mask, need_weights=False)[0], 1


class Tied(nn.Module):
    """A small language model: nested lists, a tied embedding, a mask as a further argument, outputs in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "tokens": nn.Embedding(11, WIDTH),
                "positions": nn.Embedding(5, WIDTH),
                "layers": nn.ModuleList(_Attention() for _ in range(3)),
                "norm": nn.LayerNorm(WIDTH),
            }
        )
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.transformer["tokens"].weight  # type: ignore[assignment]  # torch types modules loosely

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        positions = torch.arange(tokens.shape[1])
        x = self.transformer["tokens"](tokens) + self.transformer["positions"](positions)
        mask = positions[None, :] > positions[:, None]
        for layer in self.transformer["layers"]:  # type: ignore[attr-defined]  # torch types modules loosely
            x, _ = layer(x, mask)
        return {"logits": self.head(self.transformer["norm"](x))}


class Recurrent(nn.Module):
    """LSTM layers, whose outputs are nested tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(6, 6, batch_first=True) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None, :].expand(-1, 3, -1)
        for layer in self.layers:
            x, _ = layer(x)
        out: torch.Tensor = self.head(x[:, -1])
        return out


def make_norm() -> nn.Module:
    """Batch normalisation and in-place activations in one list."""
    return nn.Sequential(
        nn.Linear(6, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(inplace=True),
        nn.Linear(WIDTH, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.ReLU(inplace=True),
        nn.Linear(WIDTH, 3),
    )


class Skipping(Chain):
    """Whose last block's output is added to the first one's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.blocks[0](self.stem(x))
        for block in self.blocks[1:]:
            x = block(x)
        out: torch.Tensor = self.head(x + first)
        return out


class Reentrant(Chain):
    """Which recomputes each block in a reentrant checkpoint."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        out: torch.Tensor = self.head(x)
        return out


class Paired(Chain):
    """Which recomputes two blocks in each checkpoint."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for first in (0, 2):
            pair = nn.Sequential(*self.blocks[first : first + 2])
            x = checkpoint(pair, x, use_reentrant=False)
        out: torch.Tensor = self.head(x)
        return out


class Late(Chain):
    """Whose head's input is masked by the first block's output, once is_late."""

    is_late = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.blocks[0](self.stem(x))
        for block in self.blocks[1:]:
            x = block(x)
        out: torch.Tensor = self.head(x * (first > 0) if self.is_late else x)
        return out


class Backwards(Chain):
    """Which runs its blocks in the reverse order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in reversed(self.blocks):
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out
