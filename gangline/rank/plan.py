"""`python -m gangline.rank.plan`: reads a request as JSON on standard input, and writes the plan as JSON.

Started by `gangline plan`, in a process of its own, because it loads torch and the user's code. What the user's code
prints goes to standard error. The result is {"plan": ...} or {"error": {"code": ..., "message": ...}}.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from gangline import alias
from gangline.config import parse_config
from gangline.config.hyperparameter import Const, ranges_of, sample
from gangline.domain.entrypoint import TrialClass, parse_entrypoint
from gangline.errors import GanglineError, invalid
from gangline.launch import child


def main() -> None:
    """Answers one request. The user's code cannot write into the answer, whose descriptor is not standard output."""
    request = json.loads(sys.stdin.read())
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        try:
            result: dict[str, Any] = {"plan": _plan(request)}
        except GanglineError as error:
            result = {"error": {"code": error.code, "message": error.message}}
        answer.write(json.dumps(result))


def _plan(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the plan. Raises GanglineError `config.*`, `entrypoint.*`, `plan.*` and `parallelism.*`."""
    config, _ = parse_config(request["config"], overrides=request["overrides"])
    entrypoint = parse_entrypoint(config.entrypoint)
    if not isinstance(entrypoint, TrialClass):
        raise invalid(
            "plan.no_trial",
            "a plan needs a trial class as entrypoint, such as model_def:MyTrial; a script builds its model itself",
        )
    folder = str(Path(request["folder"]).resolve())
    os.chdir(Path(folder) / config.environment.working_directory)
    alias.install()
    child.put_code_first(folder)
    # Loaded after the checks above, as torch takes seconds.
    from gangline.pytorch.plan.decision import recomputations_of, work_of  # noqa: PLC0415
    from gangline.pytorch.plan.measure import measure_kinds  # noqa: PLC0415
    from gangline.pytorch.plan.report import make_plan  # noqa: PLC0415
    from gangline.pytorch.plan.step_time import GIB, Place  # noqa: PLC0415

    trial_class = _load(entrypoint)
    generator = random.Random(config.reproducibility.experiment_seed or 0)  # noqa: S311 - a search's draw, no secret
    hparams = sample(config.hyperparameters, generator)
    slots = config.resources.slots_per_trial
    section = config.parallelism
    values = json.loads(config.model_dump_json())
    kinds = recomputations_of(section)
    measured = measure_kinds(trial_class, hparams, values, slots, kinds=kinds)
    memory, batch = request["slot_memory_gib"], hparams.get("global_batch_size")
    place = Place(
        slots,
        min(slots, request["slots_per_machine"] or slots),
        None if memory is None else memory * GIB,
        request["tflops"] * 1e12,
        request["link_gb"] * 1e9,
        request["machine_link_gb"] * 1e9,
    )
    first = measured[0]
    work = work_of(section, config.optimizations, batch, first.num_models, refused=first.refused)
    plan = make_plan(measured, work, place, section)
    if any(not isinstance(value, Const) for _, value in ranges_of(config.hyperparameters)):
        plan["notes"].append("the configuration is a search; this plan is for one draw of its hyperparameters")
    return {"trial": config.entrypoint, "hyperparameters": hparams, **plan}


def _load(entrypoint: TrialClass) -> Any:
    from gangline.launch.failure import describe  # noqa: PLC0415
    from gangline.rank.entrypoint import load_trial  # noqa: PLC0415

    try:
        return load_trial(entrypoint.module, entrypoint.name)
    except GanglineError:
        raise
    except Exception as error:
        message = describe(error.__cause__ if isinstance(error.__cause__, Exception) else error).message
        raise invalid(
            "plan.import",
            f"cannot import {entrypoint.module}: {message}; run the command in the trial's environment",
        ) from error


if __name__ == "__main__":
    main()
