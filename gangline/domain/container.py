"""PURE: the parts of a configuration that describe a trial's container: image, mounts, sizes and capabilities.

The configuration's check refuses wrong ones at submit. A trial runner checks again, because a configuration of an
earlier version was never checked, and each value becomes an argument of the program that runs containers.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

# Determined's size of /dev/shm. Data loaders hand batches to the rank in it.
DEFAULT_SHM_BYTES = 4 << 30
PROPAGATIONS = ("private", "rprivate", "shared", "rshared", "slave", "rslave")
# The keys of an image by the kind of slot. Earlier versions of Determined had `gpu`.
IMAGE_KINDS = ("cpu", "cuda", "rocm", "gpu")
# The first character is no hyphen, with which an option would begin.
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-/:@]*")
# Places in which podman looks with its own rights, in place of a registry: folders, archives and other stores of the
# machine.
_LOCAL = re.compile(r"(dir|oci|oci-archive|docker-archive|docker-daemon|containers-storage|ostree|sif|tarball):")
# The images that Determined published. They have an older Python, and Determined's harness in place of Gangline.
_OF_DETERMINED = re.compile(r"(docker\.io/)?determinedai/")
_CAPABILITY = re.compile(r"[A-Za-z_]+")
_SIZE = re.compile(r"([0-9]*\.?[0-9]+) ?([kmgtp]?)i?b?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


def names_container(named: Any) -> bool:
    """Whether `environment.image` asks for a container. An image that Determined published asks for none: Gangline
    cannot run in it, so a trial that names it runs in the agents' Python."""
    if isinstance(named, dict):
        return any(names_container(image) for image in named.values())
    return bool(named) and not (isinstance(named, str) and _OF_DETERMINED.match(named))


def image_of(named: Any, *, is_gpu: bool) -> str:
    """Returns the image for a kind of slot; empty if none is named for it. named: a name, or names by kind."""
    if isinstance(named, dict):
        named = (named.get("cuda") or named.get("gpu")) if is_gpu else named.get("cpu")
    return named if isinstance(named, str) else ""


def find_bad_image(named: Any) -> str:
    """Returns what is wrong with `environment.image`; empty if nothing is."""
    if isinstance(named, dict):
        for kind, image in named.items():
            if kind not in IMAGE_KINDS:
                return f"expected the kinds of slots {', '.join(IMAGE_KINDS[:3])}, found {kind!r}"
            if image is not None and (problem := find_bad_image(image)):
                return f"{kind}: {problem}"
        return ""
    if not isinstance(named, str) or not _IMAGE.fullmatch(named):
        return f"expected the name of an image, as registry/name:tag, or one for each kind of slot, found {named!r}"
    if local := _LOCAL.match(named):
        return f"expected an image of a registry; {named!r} names a place on the agents, by {local[0]!r}"
    return ""


def find_bad_mount(host_path: str, container_path: str, propagation: str) -> str:
    """Returns what is wrong with one of the `bind_mounts`; empty if nothing is."""
    for name, path in (("host_path", host_path), ("container_path", container_path)):
        odd = next((letter for letter in path if letter in ',"' or not letter.isprintable()), "")
        if not path or odd:
            return f"{name}: expected a path without commas, quotation marks and control characters, found {path!r}"
    if not host_path.startswith("/"):
        return f"host_path: expected an absolute path on the agents, found {host_path!r}"
    if propagation not in PROPAGATIONS:
        return f"propagation: expected one of {', '.join(PROPAGATIONS)}, found {propagation!r}"
    return ""


def find_bad_capability(names: Any) -> str:
    """Returns what is wrong with a list of capabilities; empty if nothing is."""
    odd = next((name for name in names if not isinstance(name, str) or not _CAPABILITY.fullmatch(name)), None)
    return "" if odd is None else f"expected names of capabilities, as CAP_SYS_PTRACE, found {odd!r}"


def is_docker(program: str) -> bool:
    """Whether the program is docker; every other one is taken to understand the arguments of podman."""
    return "docker" in posixpath.basename(program)


def parse_memory_size(size: int | str) -> int:
    """Returns the bytes of a size such as 4GiB, 64m or 1.5 gb; the units are powers of 1024. Raises ValueError."""
    if isinstance(size, int):
        return size
    match = _SIZE.fullmatch(size)
    if match is None:
        raise ValueError(f"{size!r} is no size")
    return int(float(match[1]) * (1 << _EXPONENTS[match[2].lower()]))
