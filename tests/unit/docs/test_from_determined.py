"""The first steps of docs/from-determined.md print what the page shows, for the files that it shows or describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangline.cli.main import run
from tests.support.source import ROOT

PAGE = (ROOT / "docs" / "from-determined.md").read_text()
LAB = {
    "const.yaml": """
name: mnist
entrypoint: python3 -m determined.launch.torch_distributed --trial model_def:MNist
hyperparameters: {global_batch_size: 64, lr: 0.01}
searcher: {name: single, metric: validation_loss, max_length: {batches: 500}}
resources: {slots_per_trial: 2}
""",
    "search.yaml": """
name: mnist search
entrypoint: model_def:MNist
records_per_epoch: 60000
hyperparameters: {global_batch_size: 64, lr: {type: log, base: 10, minval: -4, maxval: -1}}
searcher: {name: adaptive_asha, metric: validation_loss, max_trials: 16, max_length: {epochs: 2}}
""",
    "old.yaml": """name: mnist with Horovod
entrypoint: python3 -m determined.launch.horovod --trial model_def:MNist
hyperparameters: {global_batch_size: 64}
searcher: {name: random, metric: validation_loss, max_trials: 4, max_length: {batches: 500}}
""",
    "model_def.py": "from determined.pytorch import PyTorchTrial\n\n\nclass MNist(PyTorchTrial):\n    pass\n",
    "report.py": 'from determined.experimental import client\n\nmodel = client.get_model("mnist")\n',
}


def _blocks(kind: str, heading: str) -> list[str]:
    section = PAGE[PAGE.index(f"\n## {heading}\n") :]
    section = section[: section.index("\n## ", 4)]
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def test_the_check_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lab").mkdir()
    for name, text in LAB.items():
        (tmp_path / "lab" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert run(["migrate", "check", "lab"]) == 2
    assert [capsys.readouterr().out] == _blocks("text", "Check your experiments")


def test_the_cluster_file_ends_as_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [master] = _blocks("yaml", "Take over the cluster file")
    (tmp_path / "master.yaml").write_text(master)
    (tmp_path / "agent.yaml").write_text("master_host: head-1\nresource_pool: a100\n")
    monkeypatch.chdir(tmp_path)
    assert run(["migrate", "cluster", "master.yaml", "agent.yaml", "-o", "settings"]) == 0
    [shown] = _blocks("text", "Take over the cluster file")
    assert capsys.readouterr().out.endswith(f"\n\n{shown}")
