"""Describes the machine of a measurement: the first line that every benchmark prints."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil
import torch


def describe_machine() -> str:
    """Returns one line: processor, cores, memory, kernel, Python, torch, load."""
    memory_gib = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0]
    return (
        f"machine: {_processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.cuda.device_count()} GPUs, load {load:.2f}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
