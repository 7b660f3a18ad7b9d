"""Counts what Gangline has of Determined: fields of experiment files, calls of the HTTP API, names of the Python API.

The lists in scripts/determined are facts about Determined 0.38.1: names only. `python -m scripts.count_determined`
writes the table into docs/from-determined.md; with --check it only compares, and with --list it prints every entry.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from gangline.alias.surface import NAMES_BY_OPTIONAL_MODULE, TARGET_BY_MODULE
from gangline.config import parse_config
from gangline.errors import GanglineError
from gangline.migrate.check import Finding, Verdict, check_experiment, is_there
from services.gateway.determined.determined_app import list_calls

ROOT = Path(__file__).parent.parent
LISTS = ROOT / "scripts" / "determined"
PAGE = ROOT / "docs" / "from-determined.md"
BEGIN, END = "<!-- counted by scripts/count_determined.py -->", "<!-- end -->"
_BASE = {
    "name": "n",
    "entrypoint": "model_def:T",
    "hyperparameters": {"global_batch_size": 8},
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 8}},
}


class Has(StrEnum):
    """never: it belongs to software that Gangline replaces or does not use, so it will not be built."""

    HAD = "had"
    NO_EFFECT = "accepted without effect"
    REFUSED = "refused, with the way out"
    NEVER = "never"


_BY_VERDICT = {Verdict.RUNS: Has.HAD, Verdict.WARNING: Has.NO_EFFECT, Verdict.CHANGE: Has.REFUSED}
# What belongs to other software: Kubernetes, Slurm, PBS, Pachyderm, Kerberos, Horovod, TensorFlow, DeepSpeed, and to
# Determined's own harness, master and enterprise edition. By the beginning of the entry.
NEVER_FIELDS = (
    "data_layer", "debug", "environment.pod_spec", "environment.image.gpu", "integrations.pachyderm", "internal",
    "optimizations.grad_updates_size_file", "optimizations.tensor_fusion_cycle_time", "pbs", "records_per_epoch",
    "resources.agent_label", "resources.native_parallel", "resources.slots", "searcher.budget",
    "searcher.train_stragglers", "security", "slurm", "checkpoint_storage.user", "tensorboard_storage.user",
)  # fmt: skip
NEVER_CALLS = (
    "/api/v1/allocations", "/api/v1/config-policies", "/api/v1/experiments/by-external-id",
    "/api/v1/experiments/{}/searcher", "/api/v1/groups", "/api/v1/master", "/api/v1/permissions", "/api/v1/roles",
    "/api/v1/resource-pools/{}/workspace-bindings", "/api/v1/runs", "/api/v1/tokens", "/api/v1/trial-source-info",
    "/api/v1/trials/{}/early_exit", "/api/v1/trials/{}/metrics", "/api/v1/trials/{}/progress",
    "/api/v1/trials/{}/runner", "/api/v1/trials/{}/start", "/api/v1/webhooks", "/api/v1/workspaces/{}/list-namespace",
    "/api/v1/workspaces/{}/namespace", "/api/v1/workspaces/{}/set-resource-quota", "/oauth2", "/task-logs",
)  # fmt: skip
NEVER_NAMES = (
    "determined.EnvContext", "determined.ResourcesInfo", "determined.RendezvousInfo", "determined.TrialController",
    "determined.horovod", "determined.keras", "determined.launch.deepspeed", "determined.launch.horovod",
    "determined.launch.tensorflow", "determined.pytorch.deepspeed",
    "determined.tensorboard.metric_writers.tensorflow", "determined.core.ExperimentalCoreContext",
    "determined.core.DummyExperimentalCoreContext",
)  # fmt: skip


def judge_fields() -> dict[str, Has]:
    """Judges each field by what the parser says to a file that has it."""
    documents: Mapping[str, Any] = yaml.safe_load((LISTS / "fields.yaml").read_text())
    return {field: _settle(field, _judge_document(document), NEVER_FIELDS) for field, document in documents.items()}


def _judge_document(document: Mapping[str, Any]) -> Has:
    try:
        _, warnings = parse_config(yaml.safe_dump({**_BASE, **document}))
    except GanglineError:
        return Has.REFUSED
    return Has.NO_EFFECT if any("has no effect" in warning for warning in warnings) else Has.HAD


def judge_calls() -> dict[str, Has]:
    """Judges each call, as GET /api/v1/me, by the tables of routes."""
    ours = {(method, _bare(path)) for method, path in list_calls()}
    found = {}
    for line in (LISTS / "calls.txt").read_text().splitlines():
        method, path = line.split()
        found[line] = _settle(
            _bare(path), Has.HAD if (method, _bare(path)) in ours else Has.REFUSED, NEVER_CALLS
        )  # fmt: skip
    return found


def judge_names() -> dict[str, Has]:
    """Judges each module's name, and each public method of its classes, by what the alias offers."""
    names = (LISTS / "names.txt").read_text().split()
    return {name: _settle(name, Has.HAD if _has_name(name) else Has.REFUSED, NEVER_NAMES) for name in names}


def _has_name(name: str) -> bool:
    module = max((each for each in TARGET_BY_MODULE if name == each or name.startswith(f"{each}.")), key=len)
    rest = name.removeprefix(module).strip(".").split(".")
    if module in NAMES_BY_OPTIONAL_MODULE:
        return ".".join(rest) in NAMES_BY_OPTIONAL_MODULE[module]
    if len(rest) < 2:
        return is_there(name)
    owner = getattr(importlib.import_module(TARGET_BY_MODULE[module]), rest[0], None) if is_there(name) else None
    # A field of a record without a default is an annotation of its class alone.
    annotated = {each for base in getattr(owner, "__mro__", ()) for each in vars(base).get("__annotations__", {})}
    return owner is not None and (hasattr(owner, rest[1]) or rest[1] in annotated)


def _settle(entry: str, has: Has, never: Iterable[str]) -> Has:
    return Has.NEVER if has is not Has.HAD and any(entry.startswith(each) for each in never) else has


def _bare(path: str) -> str:
    """Returns the path without the names of its parameters."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def judge_forms() -> dict[str, Has]:
    """Judges each form of an experiment file as `gangline migrate check` does."""
    return {form: _BY_VERDICT[finding.verdict] for form, finding in check_forms().items()}


def check_forms() -> dict[str, Finding]:
    documents: Mapping[str, Any] = yaml.safe_load((LISTS / "forms.yaml").read_text())
    findings = {
        form: check_experiment(form, yaml.safe_dump({**_BASE, **document})) for form, document in documents.items()
    }
    return {form: finding for form, finding in findings.items() if finding is not None}


def judge_all() -> dict[str, dict[str, Has]]:
    return {
        "forms of its experiment files": judge_forms(),
        "fields of the experiment file": judge_fields(),
        "calls of its client and its trials": judge_calls(),
        "names and methods of its Python API": judge_names(),
    }


def make_table(judged: Mapping[str, Mapping[str, Has]]) -> str:
    lines = [f"| of Determined 0.38.1 | {' | '.join(Has)} | in all |", "|---" * (len(Has) + 2) + "|"]
    for what, found in judged.items():
        counts = Counter(found.values())
        lines.append(f"| {what} | {' | '.join(str(counts[has]) for has in Has)} | {len(found)} |")
    return "\n".join(lines)


def replace_table(page: str, table: str) -> str:
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    judged = judge_all()
    if "--list" in arguments:
        sys.stdout.writelines(f"{has}: {entry}\n" for found in judged.values() for entry, has in found.items())
        return 0
    page = PAGE.read_text()
    wanted = replace_table(page, make_table(judged))
    if page == wanted:
        return 0
    if "--check" in arguments:
        sys.stderr.write("docs/from-determined.md counts something else; run: python -m scripts.count_determined\n")
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
