"""PURE: how large the code of an experiment may be. The client packs by these limits; gateways and trial runners refuse
an archive beyond them."""

from __future__ import annotations

MB = 1 << 20
MAX_MB = 95
MAX_FILES = 20_000
# Of a path inside the code folder. Below the kernel's 4096, because the trial's own folder comes in front of it.
MAX_PATH_BYTES = 1024
# Of one part of a path: what Linux file systems take.
MAX_PART_BYTES = 255
