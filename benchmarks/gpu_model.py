"""The two models of the GPU benchmark in their published sizes, with torch alone: GPT-2 small and ResNet-50.

Sizes are arguments, so that a test can make small ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from benchmarks.transformer import Block

# GPT-2's 50,257 words, rounded up to a multiple of 64, as usual in its training for the sake of matrix units.
GPT2_WORDS = 50_304
IMAGE_CLASSES = 1000


class Gpt(nn.Module):
    """Builds a decoder with learned positions; the words' embedding is also the output's matrix."""

    def __init__(
        self, words: int = GPT2_WORDS, length: int = 1024, width: int = 768, layers: int = 12, heads: int = 12
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, approximate="tanh") for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Returns the scores of each next word. text: batch, length."""
        x = self.words(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


class Bottleneck(nn.Module):
    """Applies 1 x 1, 3 x 3 with the stride, 1 x 1 to four times the width; a projection where shapes differ."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.path(x) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """Builds a residual network. depths: blocks of each stage; 3, 4, 6, 3 at a width of 64 is ResNet-50."""

    def __init__(self, depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = IMAGE_CLASSES) -> None:
        super().__init__()
        stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
        channels = width
        for stage, depth in enumerate(depths):
            inner = width * 2**stage
            for block in range(depth):
                layers.append(Bottleneck(channels, inner, stride=2 if stage > 0 and block == 0 else 1))
                channels = 4 * inner
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(images)
        return out
