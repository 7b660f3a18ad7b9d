"""PURE: limits on the size of an experiment's code. The client packs by these limits; gateways and trial runners refuse
an archive beyond them."""

from __future__ import annotations

MB = 1 << 20
MAX_MB = 95
MAX_FILES = 20_000
# Limit of a path inside the code folder. It is below the kernel's 4096, because the trial's own folder precedes the
# path.
MAX_PATH_BYTES = 1024
# Limit of one part of a path, that of Linux file systems.
MAX_PART_BYTES = 255
