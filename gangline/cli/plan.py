"""`gangline plan`: shows how a trial would be spread over its slots, without a cluster.

The trial's code runs in a child process, because this package loads neither torch nor the training library.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.output.terminal import table_lines
from gangline.cli.output.text import count
from gangline.cli.shared import Json, Overrides, naming_file, show
from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.text_file import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_GIB = 1024.0**3
_PROGRAM = "gangline.rank.plan"


def plan(
    config: Annotated[Path, typer.Argument(help="The experiment's YAML file.")],
    code: Annotated[Path | None, typer.Argument(help="The folder of its code; default: that of the YAML.")] = None,
    *,
    slots: Annotated[
        int | None, typer.Option(help="Sets resources.slots_per_trial; default: as in the file.", min=1)
    ] = None,
    slots_per_machine: Annotated[int | None, typer.Option(help="Default: all slots are in one machine.", min=1)] = None,
    slot_memory: Annotated[
        float | None, typer.Option(metavar="GIB", help="Memory of a slot; needed for a choice.", min=0.001)
    ] = None,
    tflops: Annotated[float, typer.Option(help="10^12 operations a second of a slot, assumed.", min=0.001)] = 10.0,
    link: Annotated[float, typer.Option(help="GB a second between slots of a machine, assumed.", min=0.001)] = 16.0,
    machine_link: Annotated[float, typer.Option(help="GB a second between machines, assumed.", min=0.001)] = 1.25,
    overrides: Overrides = None,
    is_json: Json = False,
) -> None:
    """Show a pipeline's stages, and memory and time of every strategy, with the fastest that fits.

    Starts no rank and asks no cluster. The trial is built in this machine's Python. Exits with 2 where nothing fits, or
    where the strategy that the file names cannot run.
    """
    if importlib.util.find_spec("torch") is None:
        advice = "type: pip install gangline[train] (docs/install.md says from where)"
        raise GanglineError("plan.not_installed", f"a plan needs torch; {advice}")
    from gangline.config import parse_config, parse_overrides  # noqa: PLC0415 - loads pydantic
    from gangline.config.code_check import check_code  # noqa: PLC0415 - with the above
    from gangline.domain.entrypoint import parse_entrypoint  # noqa: PLC0415 - with the above

    text, folder = read_text(config), code or config.parent
    changes: dict[str, Any] = dict(parse_overrides(overrides or ()))
    if slots is not None:
        changes["resources.slots_per_trial"] = slots
    with naming_file(config):
        checked, _ = parse_config(text, overrides=changes)
    if checked.resources.slots_per_trial < 1:
        raise invalid("plan.slots", "resources.slots_per_trial is 0; a plan needs slots, see --slots")
    check_code(folder, parse_entrypoint(checked.entrypoint), checked.environment)
    request = {
        "config": text,
        "overrides": changes,
        "folder": str(folder),
        "slots_per_machine": slots_per_machine,
        "slot_memory_gib": slot_memory,
        "tflops": tflops,
        "link_gb": link,
        "machine_link_gb": machine_link,
    }
    found = _ask(request)
    show(found, is_json, lambda: _lines(found))
    if found["problem"] is not None:
        raise invalid("plan.impossible", found["problem"])


def _ask(request: Mapping[str, Any]) -> dict[str, Any]:
    # -P keeps Python from taking a folder named gangline in the working directory for this package.
    command = [sys.executable, "-P", "-m", _PROGRAM]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = next(reversed(done.stderr.strip().splitlines()), "it printed nothing")
        raise GanglineError(
            "plan.child", f"the trial's code ended the process with code {done.returncode}: {last}", ErrorKind.INTERNAL
        ) from None
    if "error" in answer:
        raise invalid(answer["error"]["code"], answer["error"]["message"])
    return dict(answer["plan"])


def _lines(found: Mapping[str, Any]) -> list[str]:
    size, place = found["size"], found["place"]
    kept = size["stored"] + size["gradient"] + size["optimizer"]
    lines = [
        f"{found['trial']}: {found['model']} with {size['parameters']:,} parameters, {kept:.1f} bytes for each with "
        f"{found['optimizer']}",
        f"largest block {size['largest_block']:,} parameters; activations {_mib(size['activation_bytes'])} MiB a "
        f"record; {size['forward_flops'] / 1e9:.3g} GFLOP a record forward; global batch "
        f"{found['global_batch_size'] or 'not set'}",
        f"{place['slots']} slots on {place['machines']} machine(s); assumed: {place['slot_flops'] / 1e12:g} TFLOP/s a "
        f"slot, {place['inside_rate'] / 1e9:g} GB/s inside a machine, {place['across_rate'] / 1e9:g} GB/s between",
        *(f"note: {note}" for note in found["notes"]),
        "",
        *_pipeline_lines(found["pipeline"]),
        "",
    ]
    rows = [_candidate(row, row["name"] == found["choice"]) for row in found["candidates"]]
    columns = (
        *(Column("STRATEGY"), Column("MIB A SLOT"), Column("PARAMETERS", 3), Column("GRADIENTS", 3)),
        *(Column("OPTIMIZER", 3), Column("TRANSIENT", 3), Column("ACTIVATIONS", 3), Column("MS A STEP", 4)),
        Column("RESULT"),
    )
    lines += table_lines(columns, rows)
    if found["choice"] is not None:
        usable = place["usable_bytes"] / _GIB
        lines.append(f"choice: {found['choice']}, the fastest that fits in {usable:.2f} GiB (10 % + 0.5 GiB stay free)")
    elif found["problem"] is None:
        lines.append("choice: none is made, as the memory of the slots is not known; add --slot-memory GIB")
    return lines


def _candidate(row: Mapping[str, Any], is_chosen: bool) -> tuple[str, ...]:
    result = "chosen" if is_chosen else row["refusal"]
    if not row["bytes"]:
        return (row["name"], *["-"] * 7, result)
    kinds = ("total", "parameters", "gradients", "optimizer", "transient", "activations")
    return (row["name"], *(_mib(row["bytes"][kind]) for kind in kinds), _ms(row["step_seconds"]), result)


def _pipeline_lines(pipeline: Mapping[str, Any]) -> list[str]:
    if "refusal" in pipeline:
        return [f"pipeline: {pipeline['refusal']}"]
    divided = " with zero2" if pipeline["has_divided_replicas"] else ""
    microbatches = "1 microbatch" if pipeline["microbatches"] == 1 else f"{pipeline['microbatches']} microbatches"
    heading = (
        f"pipeline: {pipeline['stages']} stages, {count(pipeline['replicas'], 'replica')}{divided}, "
        f"{pipeline['schedule']}, {microbatches}; bubble {pipeline['bubble']:.1%}; "
        f"largest / mean {pipeline['largest_to_mean']:.2f}"
    )
    parts, slots = pipeline["parts"], pipeline["slots"]
    carries = any(part["carried_bytes"] for part in parts)
    rows = [
        (number, _span(part["modules"]), f"{part['parameters']:,}", *([_mib(part["carried_bytes"])] * carries))
        for number, part in enumerate(parts)
    ]
    columns = [Column("PART"), Column("MODULES", 1, least=16), Column("PARAMETERS")]
    # Outputs of units that go on to the next part besides that of its last unit.
    columns += [Column("CARRIED ON, MIB A RECORD")] * carries
    lines = [heading, *table_lines(columns, rows)]
    sizes = [(number, _mib(slot["bytes"]["total"]), _ms(slot["step_seconds"])) for number, slot in enumerate(slots)]
    return [*lines, *table_lines((Column("STAGE"), Column("MIB A SLOT"), Column("MS A STEP")), sizes)]


def _span(modules: list[str]) -> str:
    return modules[0] if len(modules) == 1 else f"{modules[0]} to {modules[-1]}"


def _mib(count: float) -> str:
    return f"{count / 1024**2:,.2f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g}"
