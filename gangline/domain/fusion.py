"""PURE: the result of tuning tensor fusion, kept for later trials that are alike.

The scheduler stores the record, ranks write and read it, users list and forget it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

# A record is kept for 30 days.
LIFETIME_SECONDS = 30 * 86400.0
_OWNER_DIGITS = 16
_KEY_LETTERS = frozenset("0123456789abcdef-")


@dataclass(frozen=True, slots=True)
class FusionRecord:
    """The result of one tuning."""

    # "<family>-<variant>", both in hexadecimal. A family has the same model, world and backend; its variants differ in
    # flags, batch size and link. The scheduler keeps it with a third part, which stands for the owner of the trial.
    key: str
    summary: str = ""  # one line about the result
    # caps of the buckets, in the order in which they are sent; empty if the default is best
    bucket_bytes: tuple[int, ...] = ()
    default_step_seconds: float = 0.0  # step time with the default
    tuned_step_seconds: float = 0.0  # step time with these buckets
    num_pairs: int = 0  # pairs of steps behind the two times; 0 if no race was needed
    steps: int = 0  # steps that the tuning took
    alpha_seconds: float = 0.0  # time of an empty exchange
    bytes_per_second: float = 0.0  # 0 for a link whose times did not grow with the size of the exchange
    batch_size: int = 0  # records of one batch of one rank; 0 if unknown
    flags: str = ""  # other settings that change the exchange, such as "aggregation_frequency=2"
    total_bytes: int = 0  # bytes of all gradients
    trial_id: str = ""  # trial that tuned; empty off the cluster
    created_at: float = 0.0

    @property
    def is_default(self) -> bool:
        """Returns whether the default was found to be best."""
        return not self.bucket_bytes

    @property
    def gain_ratio(self) -> float:
        """Returns the default's step time divided by the tuned one's."""
        return self.default_step_seconds / self.tuned_step_seconds if self.tuned_step_seconds > 0 else 1.0


def family_of(key: str) -> str:
    return key.partition("-")[0]


def owned_key(key: str, owner: str) -> str:
    """Returns the key under which the scheduler keeps the records of this user's trials; empty for a key that no rank
    may write. So a trial reaches the records of its own user alone."""
    is_plain = is_fusion_key(key) and key.count("-") == 1
    return f"{key}-{hashlib.sha256(owner.encode()).hexdigest()[:_OWNER_DIGITS]}" if is_plain else ""


def plain_key(key: str) -> str:
    """Returns the key without the part for its owner. Records of earlier versions have none."""
    return "-".join(key.split("-")[:2])


def recall(records: Iterable[FusionRecord], family: str, owner: str) -> list[FusionRecord]:
    """Returns the records of a family for a trial of this user, with the keys that ranks know. Of equal keys the user's
    own record counts, and without one the newest of all users: the trial compares it with the default before it relies
    on it."""
    chosen: dict[str, FusionRecord] = {}
    ordered = sorted(
        (record for record in records if family_of(record.key) == family),
        key=lambda record: (record.key == owned_key(plain_key(record.key), owner), record.created_at),
    )
    for record in ordered:
        chosen[plain_key(record.key)] = replace(record, key=plain_key(record.key))
    return list(chosen.values())


def is_fusion_key(text: str) -> bool:
    """Returns whether the text may be part of a key of the state. Its letters have no meaning in a path or a range of
    keys."""
    return 0 < len(text) <= 64 and set(text) <= _KEY_LETTERS


def is_expired(record: FusionRecord, now: float) -> bool:
    return record.created_at + LIFETIME_SECONDS <= now
