"""PURE: which earlier record fits the present trial, and the key of the one that it writes.

The family contains the values that must be equal: model, world, machines, backend. Values with a tolerance (batch size,
link) are compared here, so that a value at the edge of a class still matches its neighbour.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gangline.domain.fusion import FusionRecord, is_expired
from gangline.pytorch.fusion.cost import LinkCost

_BATCH_RATIO = 1.5
# How far apart two measurements of one link may be: all gradients in one exchange, and a small one, which a busy
# machine disturbs more.
_LARGE_RATIO = 2.0
_SMALL_RATIO = 4.0
_SMALL_BYTES = 64 * 1024
# Links that send all gradients within this part of a step count as equal: the exchange is then too short to matter.
_UNFELT_RATIO = 0.03
_HEX_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Situation:
    """The model, the ranks and the link for which buckets are tuned."""

    # element count, dtype and requires_grad of each parameter, in the model's order; neither names nor values
    parameters: tuple[tuple[int, str, bool], ...]
    world_size: int
    ranks_per_host: int
    accelerator: str
    fabric: str  # kinds and speeds of the ranks' interfaces
    backend: str
    torch_version: str
    flags: str  # as in FusionRecord
    batch_size: int
    link: LinkCost | None  # measured at the start by a few exchanges; None if that failed

    @property
    def family(self) -> str:
        minor = ".".join(self.torch_version.split(".")[:2])
        return _hash(
            self.parameters, self.world_size, self.ranks_per_host, self.accelerator, self.fabric, self.backend, minor
        )

    @property
    def key(self) -> str:
        link = (_class(self.link.alpha_seconds, 2), _class(self.link.bytes_per_second, 2)) if self.link else None
        return f"{self.family}-{_hash(self.flags, _class(self.batch_size, _BATCH_RATIO), link)}"

    @property
    def summary(self) -> str:
        """Returns a description for users who read the list of records."""
        count = sum(number for number, _, is_trained in self.parameters if is_trained)
        return f"{count / 1e6:.1f} M parameters, {self.world_size} ranks, {self.backend}, {self.accelerator}"


@dataclass(frozen=True, slots=True)
class Recall:
    """Records of earlier tunings that serve here."""

    exact: FusionRecord | None = None  # record to train with from the first step; None if there is none
    related: tuple[FusionRecord, ...] = ()  # records of the same family, which deserve a place in the race


def recall(situation: Situation, records: Sequence[FusionRecord], now: float) -> Recall:
    """Returns the newest record that fits. records: of this family, perhaps also others."""
    family = f"{situation.family}-"
    fresh = [record for record in records if record.key.startswith(family) and not is_expired(record, now)]
    fresh.sort(key=lambda record: (-record.created_at, record.key))
    exact = next((record for record in fresh if _fits(situation, record)), None)
    related = tuple(record for record in fresh if not record.is_default and record.flags == situation.flags)
    return Recall(exact, () if exact else related[:1])


def _fits(situation: Situation, record: FusionRecord) -> bool:
    link = situation.link
    if link is None or record.flags != situation.flags:
        return False
    is_like_batch = _is_near(record.batch_size, situation.batch_size, _BATCH_RATIO)
    return is_like_batch and _is_like_link(record, link_of(record), link)


def _is_like_link(record: FusionRecord, recorded: LinkCost, felt: LinkCost) -> bool:
    before, now = recorded.seconds(record.total_bytes), felt.seconds(record.total_bytes)
    if max(before, now) < _UNFELT_RATIO * record.default_step_seconds:
        return True
    is_like_small = _is_near(recorded.seconds(_SMALL_BYTES), felt.seconds(_SMALL_BYTES), _SMALL_RATIO)
    return is_like_small and _is_near(before, now, _LARGE_RATIO)


def link_of(record: FusionRecord) -> LinkCost:
    return LinkCost(record.alpha_seconds, record.bytes_per_second or math.inf)


def _is_near(first: float, second: float, ratio: float) -> bool:
    if first == second:
        return True
    return first > 0 and second > 0 and 1 / ratio <= first / second <= ratio


def _class(value: float, base: float) -> int | None:
    return round(math.log(value, base)) if value > 0 and math.isfinite(value) else None


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_HEX_DIGITS]
