"""The trial that docs/quickstart.md shows is a real one: with the experiment file beside it, it trains.

It runs alone here, without a cluster; the text is taken from the page as it stands.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from gangline.config import check_code, parse_config, parse_entrypoint
from tests.support import warm_python
from tests.support.source import ROOT
from tests.support.warm_program import WarmPair, folder

PAGE = (ROOT / "docs" / "quickstart.md").read_text()
# As the end of examples/digits/model_def.py, and it asks whether anything was learnt.
TRAIN_ALONE = """
import model_def
from gangline import pytorch

with pytorch.init(hparams={"global_batch_size": 64, "learning_rate": 0.05}) as context:
    trial = model_def.MyTrial(context)
    pytorch.Trainer(trial, context).fit(max_length=pytorch.Epoch(5))
inputs, targets = trial.build_validation_data_loader().get_data_loader().dataset.tensors
print("loss", float(((trial.model(inputs) - targets) ** 2).mean()))
"""


def _block(language: str) -> str:
    [text] = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert isinstance(text, str)
    return text


def test_its_trial_and_its_experiment_file_fit_one_another(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(_block("python"))
    config, warnings = parse_config(_block("yaml"))
    check_code(tmp_path, parse_entrypoint(config.entrypoint))
    assert warnings == []


def test_its_trial_learns(tmp_path: Path) -> None:
    (tmp_path / "model_def.py").write_text(_block("python"))
    python = warm_python.install_commands(tmp_path / "warm", WarmPair(folder()).ranks()) / "python3"
    command = [str(python), "-c", TRAIN_ALONE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.rpartition("loss ")[2]) < 0.5


def test_links_of_all_pages_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
