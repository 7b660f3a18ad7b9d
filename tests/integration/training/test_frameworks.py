"""The callbacks for other trainers off the cluster, and models of transformers in parts, with the real libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.frameworks import install_frameworks
from tests.support.source import ROOT
from tests.support.transformers_parts import MODELS

# One process, because importing the libraries takes most of the time.
_SCRIPT = """
import json, sys
sys.path.append(sys.argv[1])
import transformers
from gangline.domain.settled.reading import settle_values
from gangline.errors import GanglineError
from gangline.transformers import DetCallback, _set_length

def length(searcher, **arguments):
    args = transformers.TrainingArguments("out", use_cpu=True, report_to=[], **arguments)
    try:
        unit = _set_length(args, settle_values({"searcher": searcher}).searcher.operation_length)
    except GanglineError as error:
        return error.code + ": " + error.message
    return [unit.value if unit else None, args.max_steps, args.num_train_epochs]

answers = {
    "steps": length({"max_length": {"batches": 7}}),
    "equal": length({"max_length": 7}, max_steps=7),
    "epochs": length({"max_length": {"epochs": 2}}),
    "time": length({"time_metric": "epochs", "max_time": 5}),
    "own": length({"time_metric": "tokens", "max_time": 5}, max_steps=9),
    "other": length({"max_length": {"batches": 7}}, max_steps=9),
    "mixed": length({"max_length": {"epochs": 7}}, max_steps=9),
    "records": length({"max_length": {"records": 7}}),
}
print("ANSWERS", json.dumps(answers))

from tests.support import transformers_work
transformers_work.main()
"""


def test_off_the_cluster(tmp_path: Path) -> None:
    folder = install_frameworks()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FRAMEWORKS": str(folder), "STEPS": "3"}
    command = [sys.executable, "-c", "from gangline import alias; alias.install()\n" + _SCRIPT, str(folder)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    answers = json.loads(next(line for line in lines if line.startswith("ANSWERS")).removeprefix("ANSWERS"))
    assert answers["steps"] == answers["equal"] == ["BATCHES", 7, 3.0]
    assert answers["epochs"] == ["EPOCHS", -1, 2.0]
    assert answers["time"] == ["EPOCHS", -1, 5.0]
    assert answers["own"] == [None, 9, 3.0]
    assert answers["other"].startswith("transformers.length: max_steps is 9, and the experiment trains 7 batches;")
    assert answers["mixed"].startswith("transformers.length: max_steps is 9, and the experiment trains 7 epochs;")
    assert "counts no records" in answers["records"]
    # Metrics are printed, and the last checkpoint is in the working directory.
    assert any(line.startswith("training   batch       3") and "loss" in line for line in lines)
    # Two eval sets are one validation.
    (validation,) = (line for line in lines if line.startswith("validation "))
    assert validation.startswith("validation batch       3")
    assert {"eval_a_loss", "eval_b_loss"} <= set(validation.split())
    assert "BEST checkpoint-3 True" in lines
    saved = [json.loads(path.read_text()) for path in tmp_path.glob("checkpoints/*/metadata.json")]
    assert [metadata["steps_completed"] for metadata in saved] == [3]
    assert len([*tmp_path.glob("checkpoints/*/checkpoint-3/my_data.json")]) == 1


def test_parts_of_models_of_transformers_train_as_the_whole_ones() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(install_frameworks())))}
    command = [sys.executable, "-m", "tests.support.transformers_parts"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [word for name in MODELS for word in ("SAME", name)]
