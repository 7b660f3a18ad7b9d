"""Each rank's own record of its steps: one line of JSON for every step, as soon as it is done."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Footprint:
    """folder: of all ranks; it is there already. A later process of the same rank goes on in the same file."""

    def __init__(self, folder: str, rank: int) -> None:
        self._file = os.open(Path(folder, f"rank_{rank}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def leave(self, batches: int) -> None:
        """After the optimizer step of this batch. batches: how many are done, over all attempts."""
        line = json.dumps({"pid": os.getpid(), "batches": batches, "at": time.time()})
        os.write(self._file, f"{line}\n".encode())
