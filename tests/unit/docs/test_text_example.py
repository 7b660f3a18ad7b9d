"""The language model of examples/text learns, alone and without a cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import yaml

from tests.support import warm_python
from tests.support.source import ROOT
from tests.support.warm_program import WarmPair, folder

FOLDER = ROOT / "examples" / "text"
TRAIN_ALONE = """
import sys
from gangline import pytorch
sys.path.insert(0, sys.argv[1])
from text_model import TextTrial

class Told(TextTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        result = super().train_batch(batch, epoch_idx, batch_idx)
        print("loss", float(result["loss"]))
        return result

sizes = dict(layers=2, width=32, heads=2, length=32)
with pytorch.init(hparams={"global_batch_size": 16, "learning_rate": 0.003, **sizes}) as context:
    pytorch.Trainer(Told(context), context).fit(max_length=pytorch.Batch(30), checkpoint_policy="none")
"""


def test_it_learns(tmp_path: Path) -> None:
    python = warm_python.install_commands(tmp_path / "warm", WarmPair(folder()).ranks()) / "python3"
    command = [str(python), "-c", TRAIN_ALONE, str(FOLDER)]
    # Several threads wait for one another after each operation, which takes minutes on a loaded machine.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss ")]
    # The logarithm of 128 characters, and well below that of guessing by their frequency alone after 30 batches.
    assert 4.5 < losses[0] < 5.5
    assert losses[-1] < 3.6


def test_its_experiments_differ_in_their_strategy_alone() -> None:
    pipeline, auto = (yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) for name in ("pipeline", "auto"))
    assert (pipeline.pop("parallelism"), auto.pop("parallelism")) == ("pipeline", "auto")
    assert {**pipeline, "name": ""} == {**auto, "name": ""}
