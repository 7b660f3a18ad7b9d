"""Checks and packs the contents of a request to create an experiment, and computes the digest by which two are the
same.

It sends nothing by itself; the session does. Equal files and an equal configuration give an equal digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gangline.client.packing import CodeArchive, pack_code


@dataclass(frozen=True, slots=True)
class Submission:
    """config_json: checked, with all defaults. warnings: of the configuration."""

    config_json: str
    archive: CodeArchive
    warnings: tuple[str, ...] = ()

    def digest(self, *scope: str) -> str:
        """Returns a digest that reveals none of its contents. scope: within which equal submissions count as the same,
        such as the cluster and the user's token."""
        parts = (*scope, self.config_json, self.archive.sha256)
        return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


def prepare_submission(config_text: str, code: Path) -> Submission:
    """Checks and packs. config_text: YAML. code: the folder of the trial. Raises GanglineError `config.*`, `code.*`."""
    from gangline.config import check_code, parse_config, parse_entrypoint  # noqa: PLC0415 - loads pydantic

    config, warnings = parse_config(config_text)
    archive = pack_code(code)
    check_code(code, parse_entrypoint(config.entrypoint))
    return Submission(config.model_dump_json(), archive, tuple(warnings))
