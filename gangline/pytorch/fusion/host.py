"""Describes how a rank's machine reaches the other ranks: the kind and speed of its interface, its device."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

_INTERFACE_KEYS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def describe_interface() -> str:
    """Returns text like "ethernet 10000 Mbit", which is equal on equal machines. Empty when no interface is named."""
    name = next((os.environ[key] for key in _INTERFACE_KEYS if os.environ.get(key)), "")
    if not name:
        return ""
    folder = Path("/sys/class/net") / name
    interface_type = (
        "loopback" if name.startswith("lo") else "infiniband" if _read(folder / "type") == "32" else "ethernet"
    )
    speed = _read(folder / "speed")
    return f"{interface_type} {speed} Mbit" if speed.isdigit() else interface_type


def describe_accelerator(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def backend_of(device: torch.device) -> str:
    """Returns the backend that exchanges this device's tensors, with its version where it has one of its own."""
    backend = str(dist.get_backend_config()) if dist.is_initialized() else "gloo"
    if device.type == "cuda" and "nccl" in backend:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return f"nccl {'.'.join(str(part) for part in version)}"
    return "gloo"


def has_room_for(num_bytes: int, device: torch.device) -> bool:
    """Returns whether the device has this many bytes left; always true for the CPU, whose memory is not checked."""
    if device.type != "cuda":
        return True
    free = torch.cuda.mem_get_info(device)[0]
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) >= num_bytes


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
