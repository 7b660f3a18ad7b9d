"""Checksums of tensors that any change of a value changes. Used for comparisons between ranks."""

from __future__ import annotations

import torch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def sum_of_bits(values: torch.Tensor) -> torch.Tensor:
    """Returns the sum of the values' bit patterns as integers. A sum of the values themselves would miss changes that
    add up to zero."""
    if values.is_complex():
        values = torch.view_as_real(values)
    integer_type = _INTEGERS[values.element_size()]
    # In the integer's own type, which may overflow: a wider one takes seventy times as long.
    return values.view(integer_type).sum(dtype=integer_type)
