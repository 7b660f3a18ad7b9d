"""PURE: experiments and templates as the gateway may show them: without the secrets of their configurations.

The mirror keeps them in this form, and the use cases read the leader's answers through it. So nothing that leaves a
gateway has a secret.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import Message

from gangline.domain.experiment import Experiment, Template
from gangline.domain.secret import mask_secrets
from gangline.protocol import wire

R = TypeVar("R", Experiment, Template)


def hide_secrets(record: R) -> R:
    """Returns the record with a masked configuration."""
    masked = mask_secrets(record.config_json)
    return record if masked == record.config_json else replace(record, config_json=masked)


def read_experiment(message: Message) -> Experiment:
    return hide_secrets(wire.from_proto(Experiment, message))
