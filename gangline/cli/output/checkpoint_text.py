"""PURE: the lines of `gangline checkpoint describe`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gangline.cli.output.text import count, format_bytes
from gangline.domain.experiment import Checkpoint

# Files and metadata beyond these are counted, not listed; --json has all of them.
MOST_FILES = 20
MOST_CHARACTERS = 100


def checkpoint_lines(checkpoint: Checkpoint) -> Iterator[str]:
    origin = f"imported as {checkpoint.imported_as}" if checkpoint.imported_as else f"trial {checkpoint.trial_id}"
    yield f"checkpoint {checkpoint.id}: {origin}, batch {checkpoint.batches_completed}, {checkpoint.state}"
    yield checkpoint.url
    for key, value in sorted(json.loads(checkpoint.metadata_json or "{}").items()):
        text = json.dumps(value)
        yield f"  {key}: {text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + ' ...'}"
    files = sorted(checkpoint.file_bytes.items())
    for path, num_bytes in files[:MOST_FILES]:
        yield f"  {format_bytes(num_bytes):>8}  {path}"
    if len(files) > MOST_FILES:
        yield f"  and {count(len(files) - MOST_FILES, 'more file')}; all of them with --json"
