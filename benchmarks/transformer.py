"""The transformer of several benchmarks, with torch alone. Sizes are arguments."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Causal attention and a feed-forward net, each behind a norm. approximate: of the activation, as torch's GELU
    takes it."""

    def __init__(self, width: int, heads: int, approximate: str = "none") -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies attention and a feed-forward net. x: batch, length, width."""
        parts = self.mix(self.first_norm(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        out: torch.Tensor = x + self.feed(self.second_norm(x))
        return out


class Transformer(nn.Module):
    """Learned positions, blocks, and a head of its own. words: of the vocabulary. length: of every text."""

    def __init__(self, *, words: int, length: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the scores of each next word. tokens: batch, length."""
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out
