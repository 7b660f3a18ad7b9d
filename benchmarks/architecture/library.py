"""Public libraries of models: which are installed, in which version, and how to install them. Imports them on request.

Gangline does not depend on any of them. They may be in a folder of their own beside the environment, whose torch they
must not replace.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("transformers", "timm", "torchvision", "diffusers", "peft")
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def add_folder(folder: str) -> None:
    """Makes the libraries of a folder known to this process and to the ranks that it starts. The environment's own
    packages go before those of the folder."""
    path = str(Path(folder).resolve())
    if path not in sys.path:
        sys.path.append(path)


def missing_libraries() -> list[str]:
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is None]


def describe_missing() -> str:
    """Returns one line with the libraries that are missing and the command that installs them; empty for none."""
    missing = missing_libraries()
    if not missing:
        return ""
    requirements = REQUIREMENTS.relative_to(Path(__file__).parents[2])
    return (
        f"not installed: {', '.join(missing)}; their rows are not run. Install them with `pip install --no-deps "
        f"--target FOLDER -r {requirements}`, and run `python -m benchmarks.architectures --libraries FOLDER`"
    )


def versions() -> dict[str, str]:
    """Returns the versions of torch and of the libraries that are installed."""
    found = {name: importlib.metadata.version(name) for name in LIBRARIES if name not in missing_libraries()}
    return {"torch": torch.__version__.partition("+")[0], **found}


def load(name: str) -> Any:
    """Returns a module of a library. No library loads anything from its hub."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", DIFFUSERS_VERBOSITY="error")
    _declare_operators()
    return importlib.import_module(name)


def load_all() -> None:
    for name in LIBRARIES:
        if importlib.util.find_spec(name) is not None:
            load(name)


def _declare_operators() -> None:
    """Declares the operators that torchvision describes when it is imported. Its wheel on PyPI has their kernels for a
    torch with CUDA only, and no model here needs them."""
    if "torchvision" in sys.modules or torch.cuda.is_available():
        return
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
