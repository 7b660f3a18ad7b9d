"""A small language model that predicts the next character of the help texts that Python brings along.

Nothing in this file depends on how the model is spread: `parallelism` in the experiment file decides.
"""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gangline import pytorch

CHARACTERS = 128


class Block(nn.Module):
    """One layer of a transformer, in which a character sees those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.in_attention = nn.Linear(width, 3 * width)
        self.out_attention = nn.Linear(width, width)
        self.norm_inner = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.in_attention(self.norm_attention(x)).chunk(3, dim=-1)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out_attention(seen.transpose(1, 2).flatten(2))
        out: torch.Tensor = x + self.inner(self.norm_inner(x))
        return out


class TextModel(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """characters: (records, length), codes. Returns (records, length, 128), scores of the next character."""
        x = self.tokens(characters) + self.positions(torch.arange(characters.shape[1], device=characters.device))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


class TextTrial(pytorch.PyTorchTrial):
    """Hyperparameters: global_batch_size, learning_rate, layers, width, heads, length (characters of a record)."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        sizes = {name: context.get_hparam(name) for name in ("layers", "width", "heads", "length")}
        self.model = context.wrap_model(TextModel(**sizes))
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return self._loader(is_validation=False)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return self._loader(is_validation=True)

    def _loader(self, *, is_validation: bool) -> pytorch.DataLoader:
        records = load_text(self.context.get_hparam("length") + 1)
        # Every tenth record is for validation: the same ones on every rank and in every run.
        chosen = (torch.arange(len(records)) % 10 == 0) == is_validation
        return pytorch.DataLoader(
            TensorDataset(records[chosen]),
            batch_size=self.context.get_per_slot_batch_size(),
            shuffle=not is_validation,
            drop_last=not is_validation,
        )

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        loss = self._loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        return {"validation_loss": self._loss(batch)}

    def _loss(self, batch: Any) -> torch.Tensor:
        (records,) = batch
        scores = self.model(records[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1), records[:, 1:].flatten())


def load_text(length: int) -> torch.Tensor:
    """Returns codes of characters, (records, length). What is no ASCII is a question mark."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return codes[: len(codes) // length * length].reshape(-1, length)
