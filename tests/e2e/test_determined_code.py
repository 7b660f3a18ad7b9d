"""Code written for Determined on a real cluster: a trial submitted with its launcher's line, trained on two slots, its
metrics, TensorBoard files and checkpoint where ours are; and a script that starts its workers by itself."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from gangline.domain.state import ExitKind, Outcome
from gangline.pytorch import load_checkpoint
from tests.support.cluster import Cluster, running_cluster
from tests.support.determined_source import DISTRIBUTED, LAUNCHED, MNIST
from tests.support.event_file import read_scalars

_CONFIG = """
name: bars
entrypoint: python3 -m determined.launch.torch_distributed --trial model_def:BarsTrial
hyperparameters: {global_batch_size: 64, learning_rate: 0.01, hidden: 16}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {epochs: 2}}
resources: {slots_per_trial: 2}
min_validation_period: {epochs: 1}
scheduling_unit: 4
optimizations: {gradient_compression: true}
profiling: {enabled: true}
reproducibility: {experiment_seed: 7}
"""


def test_trial_of_determined_trains_on_two_slots(one_agent: Cluster, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "model_def.py").write_text(MNIST)
    (code / "exp.yaml").write_text(_CONFIG)
    done = one_agent.run("experiment", "create", "-f", code / "exp.yaml", code, "--json", seconds=180)
    view = json.loads(done.stdout)
    assert view["experiment"]["outcome"] == "COMPLETED", done.stdout
    number, latest = view["experiment"]["id"], view["trials"][0]["trial"]["latest_checkpoint_id"]
    lines = one_agent.run("experiment", "metrics", str(number), "--json").stdout.splitlines()
    points = [json.loads(line)["point"] for line in lines]
    assert {point["group"] for point in points} == {"training", "validation", "profiling"}
    accuracies = [point["metrics"]["accuracy"] for point in points if point["group"] == "validation"]
    assert accuracies[-1] > 0.8
    [checkpoint] = one_agent.folder.rglob(f"checkpoints/{latest}")
    assert load_checkpoint(checkpoint)["callbacks"] == {"epochs": {"seen": [0, 1]}}
    [folder] = one_agent.folder.rglob(f"tensorboard/{number}.1")
    assert 16 in read_scalars(folder)["training/loss"]


_COUNTING = {
    "name": "counting",
    "entrypoint": "python3 4_distributed.py launcher",
    "hyperparameters": {"increment_by": 3},
    "searcher": {"name": "single", "metric": "x", "max_length": 20},
    "resources": {"slots_per_trial": 2},
    "max_restarts": 0,
}


_TORCHRUN = (
    "torchrun --nnodes=$NNODES --node_rank=$NODE_RANK --nproc_per_node=1 --master_addr=$DET_CHIEF_IP "
    "--master_port=$MASTER_PORT 4_distributed.py"
)


def test_launcher_of_a_script_s_own_counts_over_two_machines(tmp_path: Path, warm_path: str) -> None:
    """And an error of one of its workers ends the trial by its name and kind. torchrun in a shell line counts as well,
    and a line without a slot runs beside. The programs of the first trial start cold."""
    breaking = LAUNCHED.replace("x = 0\n", "x = 0\n    assert distributed.rank == 0, 'odd'\n")
    killing = LAUNCHED.replace("x = 0\n", "x = 0\n    distributed.rank == 0 or os.kill(os.getpid(), 9)\n")
    killing = killing.replace("return max(", "return min(").replace("import sys\n", "import os\nimport sys\n")
    sources = {"sound": LAUNCHED, "breaking": breaking, "killing": killing}
    trials = {}
    warm = {"environment": {"environment_variables": [warm_path]}}
    torchrun = {**_COUNTING, **warm, "entrypoint": _TORCHRUN}
    line = {**_COUNTING, "entrypoint": "echo $DET_SLOT_IDS $DET_MASTER", "resources": {"slots_per_trial": 0}}
    with running_cluster(tmp_path / "cluster", agents=2, slots=1) as cluster, cluster.connect() as client:
        for name, source in sources.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "4_distributed.py").write_text(source)
            config = _COUNTING if name == "sound" else {**_COUNTING, **warm}
            created = client.create_experiment(yaml.safe_dump(config), tmp_path / name)
            trials[name] = client.wait_experiment(created.experiment.id, 120).trials[0].trial
        (tmp_path / "sound" / "4_distributed.py").write_text(DISTRIBUTED)
        counting = client.create_experiment(yaml.safe_dump(torchrun), tmp_path / "sound").experiment.id
        beside = client.create_experiment(yaml.safe_dump(line), tmp_path / "sound").experiment.id
        ended = {number: client.wait_experiment(number, 120) for number in (counting, beside)}
        entries = [*client.stream_metrics(trials["sound"].experiment_id), *client.stream_metrics(counting)]
        told = [entry.text for entry in client.stream_logs(beside)]
    outcomes = {view.experiment.outcome: view.trials[0].trial.last_failure for view in ended.values()}
    assert set(outcomes) == {Outcome.COMPLETED}, outcomes
    assert [text for text in told if text.startswith("[] http://127.0.0.1:")], told
    assert trials["sound"].outcome is Outcome.COMPLETED, trials["sound"].reason
    assert [entry.point.metrics["x"] for entry in entries] == [70, 140, 140] * 2
    failures = [trials[name].last_failure for name in ("breaking", "killing")]
    assert [(failure.rank, failure.kind, failure.message) for failure in failures if failure] == [
        (1, ExitKind.USER_ERROR, "AssertionError: odd"),
        (1, ExitKind.SIGNAL, "a process that it had started was ended by signal 9 (SIGKILL); exited with code 137"),
    ]
