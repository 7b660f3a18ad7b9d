"""Mixed precision of one module, for trials that ask for it by `context.autocast_forward_pass`.

`optimizations.mixed_precision` covers whole batches instead; `gangline.pytorch.trial.update` owns that.
"""

from __future__ import annotations

from copy import copy
from functools import wraps
from typing import Any

import torch
from torch import nn


def autocast_forward(module: nn.Module, device: torch.device) -> nn.Module:
    """Replaces the module's forward by one under torch.autocast, with results in float32. Returns the same module."""
    forward = module.forward

    @wraps(forward)
    def run(*arguments: Any, **options: Any) -> Any:
        with torch.autocast(device.type):
            result = forward(*arguments, **options)
        return _widen(result)

    # On the instance, so that its class, its names and its state stay as they are.
    module.forward = run
    return module


def _widen(value: Any) -> Any:
    """Returns the same nest of mappings, lists and tuples with its tensors of half precision as float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    if isinstance(value, dict):
        # A copy keeps a class of its own, such as the outputs of transformers.
        wide = copy(value)
        for key, entry in value.items():
            wide[key] = _widen(entry)
        return wide
    if isinstance(value, list | tuple):
        entries = [_widen(entry) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    return value
