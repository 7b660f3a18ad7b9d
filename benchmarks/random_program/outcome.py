"""What a training has come to, under Gangline or alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Outcome:
    """losses: of each batch, over all replicas. validations: of each one. state: the whole model's. rates: learning
    rates of the optimizers' groups at the end."""

    losses: list[float] = field(default_factory=list)
    validations: list[float] = field(default_factory=list)
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
