"""Records each rank's steps: one line of JSON for every step, as soon as it is done."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Footprint:
    """Writes the record of one rank. folder: common to all ranks; it must exist. A later process of the same rank
    appends to the same file."""

    def __init__(self, folder: str, rank: int) -> None:
        self._file = os.open(Path(folder, f"rank_{rank}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def leave(self, batches: int) -> None:
        """Writes the line of a step; called after its optimizer step. batches: how many are done, over all attempts."""
        line = json.dumps({"pid": os.getpid(), "batches": batches, "at": time.time()})
        os.write(self._file, f"{line}\n".encode())
