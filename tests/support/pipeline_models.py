"""Models for tests of pipelines: chains of units out of the ordinary, and ones that a pipeline refuses."""

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


class _CountingBlock(Block):
    """Uses and changes a counter in a buffer, as a warm-up does."""

    def __init__(self) -> None:
        super().__init__(WIDTH)
        self.register_buffer("count", torch.zeros(()))
        self.count: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
        return super().forward(x) / (1 + self.count.clone())


class Counting(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_CountingBlock() for _ in range(4))


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


class Deciding(Chain):
    """Whose later blocks depend on the first one's output by a decision, and by a factor without a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.blocks[0](self.stem(x))
        for block in self.blocks[1:]:
            x = block(x)
        # The same on the whole batch as on each microbatch.
        if first.abs().mean() > 0:
            x = 2 * x
        out: torch.Tensor = self.head(x * (first > 0))
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


class Changing(Chain):
    """A chain that changes outputs of its blocks in place, behind the last unit of a part and on later parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](self.stem(x))
        first.mul_(1.5)
        x = 1.0 * first
        for block in self.blocks[1:]:
            functional.leaky_relu_(x, 0.5)
            x = block(x)
            first += 0.125
        out: torch.Tensor = self.head(x + first)
        return out


class Sharing(Chain):
    """Which has one activation for all layers, and changes its own input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x *= 2
        x = self.activation(self.stem(x))
        for block in self.blocks:
            x = self.activation(block(x))
        out: torch.Tensor = self.head(x)
        return out


class Disordered(nn.Module):
    """Whose modules are defined in another order than that in which they run: a norm behind every layer is the first
    one, and what makes the first layer's input is the last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 3)
        self.positions = Positions()
        self.stem = nn.Linear(6, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x) + self.positions(WIDTH)
        for block in self.blocks:
            x = self.norm(block(x))
        out: torch.Tensor = self.head(x)
        return out


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.25))

    def forward(self, count: int) -> torch.Tensor:
        return torch.arange(count) * self.get_buffer("scale")


class Remembering(Chain):
    """Whose blocks keep a memory, a number of calls, a list and a generator in attributes, and compute with them."""

    def __init__(self) -> None:
        super().__init__()
        for place in range(4):
            self.blocks[place] = _RememberingBlock(WIDTH, place)


class _RememberingBlock(Block):
    def __init__(self, width: int, number: int) -> None:
        super().__init__(width)
        self.memory: torch.Tensor | None = None
        self.calls = 0
        self.means: list[float] = []
        self.generator = torch.Generator().manual_seed(number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = super().forward(x) + (0 if self.memory is None else self.memory)
        self.memory = y.detach().mean(0)
        self.means.append(float(self.memory.mean()))
        noise = torch.rand((), generator=self.generator)
        return y * (1 + 1 / self.calls + noise) + sum(self.means[-3:])


class Scoring(Chain):
    """Whose blocks keep a loss of their own, which is 0 before they run."""

    def __init__(self) -> None:
        super().__init__()
        for place in range(4):
            self.blocks[place] = _ScoringBlock(WIDTH)


class _ScoringBlock(Block):
    score: torch.Tensor | float = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.score = y.square().mean()
        return y


class ReturningScores(Chain):
    """Whose blocks return a loss of their own, and which returns the sum."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]  # two values
        x = self.stem(x)
        total = torch.zeros((), dtype=x.dtype)
        for block in self.blocks:
            x, score = block(x)
            total = total + score
        return self.head(x), total

    def __init__(self) -> None:
        super().__init__()
        for place in range(4):
            self.blocks[place] = _ReturningBlock(WIDTH)


class _ReturningBlock(Block):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]  # two values
        y = super().forward(x)
        return y, y.square().mean()


class Noisy(Chain):
    """Which adds noise before its second block, and subtracts it behind that block, which returns its input."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1] = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](self.stem(x))
        noise = torch.randn_like(x)
        x = self.blocks[1](x + noise) - noise
        for block in self.blocks[2:]:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Again(Chain):
    """Which runs the last block of the first of two parts once more behind a block of the second part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in (*self.blocks[:3], self.blocks[1], self.blocks[3]):
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Leaving(Chain):
    """Which leaves out all blocks but one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks[:1]:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Exiting(Chain):
    """Which leaves out the last block where the output of the one before it has a mean above 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place == 2 and x.mean() > 0:
                break
        out: torch.Tensor = self.head(x)
        return out


class LeavingLater(Leaving):
    """Which does so from its third microbatch on only."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) if self.calls > 2 else Chain.forward(self, x)


class Dropping(Chain):
    """Which leaves out blocks at random, with other random numbers on each stage (LayerDrop)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if float(torch.rand(())) < 0.2:
                x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Backwards(Chain):
    """Which runs its blocks in the reverse order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in reversed(self.blocks):
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Outside(Tied):
    """Which uses weights of its embeddings outside of these modules: one before the blocks, one for the output."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 11)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.transformer["tokens"](tokens) + self.transformer["positions"].weight
        for layer in self.transformer["layers"]:  # type: ignore[attr-defined]  # torch types modules loosely
            x, _ = layer(x, torch.zeros(5, 5, dtype=torch.bool))
        return {"logits": x @ self.transformer["tokens"].weight.T}


class Breaking(Chain):
    """Whose last block fails in its third microbatch. call: of the block, in training or in validation."""

    call = 3
    in_training = True

    def __init__(self) -> None:
        super().__init__()
        self.blocks[3] = _BreakingBlock(WIDTH, self.call, self.in_training)


class BreakingAtOnce(Breaking):
    call = 1


class BreakingInValidation(Breaking):
    call = 2
    in_training = False


class _BreakingBlock(Block):
    def __init__(self, width: int, call: int, in_training: bool) -> None:
        super().__init__(width)
        self.call = call
        self.in_training = in_training
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training is self.in_training
        if self.calls == self.call:
            raise ArithmeticError(f"call {self.call} breaks")
        return super().forward(x)


class BreakingWeight(Chain):
    """Whose last block fails when the gradient of its weight is computed for the third microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[3] = _BreakingWeightBlock(WIDTH)


class _BreakingWeightBlock(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.factor = nn.Parameter(torch.ones(1))
        self.factor.register_hook(self._on_gradient)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor

    def _on_gradient(self, gradient: torch.Tensor) -> None:
        self.passes += 1
        if self.passes == 3:
            raise ArithmeticError("the third gradient breaks")
