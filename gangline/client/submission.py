"""Checks and packs the contents of a request to create an experiment, and computes the digest by which two are the
same.

It sends nothing by itself; the session does. Equal files and an equal configuration give an equal digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gangline.client.record import OnProgress, ignore_progress
from gangline.client.transfer.packing import CodeArchive, pack_code, pack_nothing
from gangline.domain.experiment import Experiment, Inheritance
from gangline.domain.state import TaskKind
from gangline.errors import invalid
from gangline.text_file import read_text

if TYPE_CHECKING:
    from gangline.config import ExperimentConfig


NO_OVERRIDES: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Submission:
    """A configuration and its code, ready to be sent."""

    config_json: str  # checked, with all defaults
    archive: CodeArchive
    warnings: tuple[str, ...] = ()  # warnings about the configuration
    template: str = ""  # name of the template that the configuration includes; empty for none
    is_paused: bool = False

    def digest(self, *scope: str) -> str:
        """Returns a digest that reveals none of its contents. scope: within which equal submissions count as the same,
        such as the cluster and the user's token."""
        parts = (*scope, self.config_json, self.archive.sha256, *(["paused"] if self.is_paused else []))
        return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ForkedExperiment:
    """An experiment with changes."""

    config_json: str
    archive: CodeArchive | None  # None for the code that the experiment has
    warnings: tuple[str, ...]


def prepare_fork(
    source: Experiment,
    overrides: Mapping[str, Any],
    code: Path | None = None,
    on_progress: OnProgress = ignore_progress,
) -> ForkedExperiment:
    """Checks and packs an experiment with changes. overrides: values by dotted keys. code: another folder. Raises
    GanglineError `config.*`, `code.*`."""
    from gangline.config import fork_config  # noqa: PLC0415 - loads pydantic, which readers do not need

    config, warnings = fork_config(source.config_json, overrides)
    archive = None if code is None else _pack(config, code, on_progress)
    return ForkedExperiment(config.model_dump_json(), archive, tuple(warnings))


def parse_with_seed(
    config_text: str,
    seed: int | None,
    inherited: Inheritance | None = None,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> tuple[ExperimentConfig, list[str]]:
    """Checks a configuration, and returns it with its warnings. inherited, overrides: as for `prepare_submission`.

    seed: the experiment's, where the configuration leaves it open; None leaves it open here too. Raises GanglineError
    `config.*`; `config.seed` where the configuration has another seed.
    """
    from gangline.config import parse_config  # noqa: PLC0415 - loads pydantic, which readers do not need

    config, warnings = parse_config(config_text, inherited or Inheritance(), overrides)
    own = config.reproducibility.experiment_seed
    if seed is None or own == seed:
        return config, warnings
    if own is not None:
        raise invalid(
            "config.seed",
            f"the seed is {seed}, but the configuration sets reproducibility.experiment_seed to {own}; "
            "leave one of them out",
        )
    reproducibility = config.reproducibility.model_copy(update={"experiment_seed": seed})
    return config.model_copy(update={"reproducibility": reproducibility}), warnings


def prepare_submission(
    config_text: str,
    code: Path,
    on_progress: OnProgress = ignore_progress,
    *,
    seed: int | None = None,
    inherited: Inheritance | None = None,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    is_paused: bool = False,
) -> Submission:
    """Checks and packs. config_text: YAML. code: the folder of the trial. seed: as for `parse_with_seed`. inherited:
    what `Client.inherit` has returned for this configuration; None for an experiment of the default project without a
    template. overrides: values by dotted keys, such as {"searcher.max_length.batches": 200}, which win over the text.
    is_paused: nothing starts before the experiment is activated.

    Raises GanglineError `config.*`, `code.*`.
    """
    config, warnings = parse_with_seed(config_text, seed, inherited, overrides)
    archive = _pack(config, code, on_progress)
    template = inherited.template if inherited is not None else ""
    return Submission(config.model_dump_json(), archive, tuple(warnings), template, is_paused)


def _pack(config: ExperimentConfig, code: Path, on_progress: OnProgress) -> CodeArchive:
    """Packs a folder and checks that it has the entrypoint. Raises GanglineError `code.*`."""
    from gangline.config import check_code, parse_entrypoint  # noqa: PLC0415 - loads pydantic

    archive = pack_code(code, on_progress)
    check_code(code, parse_entrypoint(config.entrypoint), config.environment)
    return archive


def plan_task_text(kind: TaskKind, command: Mapping[str, Any]) -> str:
    """Returns the text of a task's configuration. command: as Determined configures a command. Raises GanglineError
    `task.*`, `config.not_plain`."""
    from gangline.config.task import plan_task  # noqa: PLC0415 - loads pydantic

    return _dump(plan_task(kind, command))


def prepare_task(
    text: str, code: Path | None, on_progress: OnProgress = ignore_progress, *, inherited: Inheritance | None = None
) -> Submission:
    """Checks and packs a task. text: of `plan_task_text`. code: a folder; None for no files. Raises GanglineError
    `config.*`, `code.*`."""
    config, warnings = parse_with_seed(text, None, inherited)
    archive = pack_nothing() if code is None else pack_code(code, on_progress)
    template = inherited.template if inherited is not None else ""
    return Submission(config.model_dump_json(), archive, tuple(warnings), template)


def read_config(config: str | Path | Mapping[str, Any], code: str | Path | None) -> tuple[str, Path]:
    """Returns the text of a configuration in any of its forms, and the code folder. config: a file, its text or a
    mapping. code: None takes the folder of the file. Raises GanglineError `code.no_folder`, `config.not_plain`."""
    if isinstance(config, str) and _is_file_name(config):
        config = Path(config)
    if isinstance(config, Path):
        return read_text(config), config.resolve().parent if code is None else Path(code)
    if code is None:
        raise invalid("code.no_folder", "the code folder is missing; give the folder that holds the trial")
    return config if isinstance(config, str) else _dump(config), Path(code)


def _is_file_name(text: str) -> bool:
    """Returns whether a text is the name of a file. One line that ends so is no configuration."""
    return "\n" not in text and text.strip().lower().endswith((".yaml", ".yml", ".json"))


def _dump(config: Mapping[str, Any]) -> str:
    """Returns the settings as JSON, which is YAML too. Raises GanglineError `config.not_plain`."""
    try:
        return json.dumps(config, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as failure:
        raise invalid(
            "config.not_plain",
            f"the configuration has a value that YAML has not ({failure}); use texts, numbers, lists and dictionaries",
        ) from failure
