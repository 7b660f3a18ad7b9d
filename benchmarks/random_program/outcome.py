"""What a training has come to, under Gangline or alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Outcome:
    """The result of a program."""

    losses: list[float] = field(default_factory=list)  # loss of each batch, over all replicas
    validations: list[float] = field(default_factory=list)  # result of each validation
    state: dict[str, torch.Tensor] = field(default_factory=dict)  # state of the whole model
    rates: list[float] = field(default_factory=list)  # learning rates of the optimizers' groups at the end
