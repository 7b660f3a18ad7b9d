"""The same files without any cluster: alone, under torchrun, and behind our launcher's line."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gangline.pytorch import load_checkpoint
from tests.support.trial_source import LINEAR

_DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "model_def.py"
_SCRIPT = (
    LINEAR
    + """
if __name__ == "__main__":
    with pytorch.init(hparams={"global_batch_size": 8}) as context:
        pytorch.Trainer(LinearTrial(context), context).fit(
            max_length=pytorch.Batch(10), reporting_period=pytorch.Batch(1)
        )
"""
)
_ROOT = str(Path(__file__).parents[3])
_LAUNCHER = ("-m", "gangline.launch.torch_distributed")
_TWO = ("--standalone", "--nproc-per-node", "2")


def _run(directory: Path, *command: str, expect: int = 0) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GANGLINE_")}
    environment = {**kept, "PYTHONPATH": _ROOT, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr
    return done.stdout + done.stderr


def _losses(output: str) -> list[float]:
    return [float(text) for text in re.findall(r"training +batch +\d+ +loss ([\d.e-]+)", output)]


def test_torchrun_has_the_losses_of_one_process(tmp_path: Path, warm: Path) -> None:
    """The one process is cold. test_determined_code.py has a launcher whose ranks are cold."""
    (tmp_path / "train.py").write_text(_SCRIPT)
    alone = _losses(_run(tmp_path, sys.executable, "train.py"))
    assert len(alone) == 10
    assert _losses(_run(tmp_path, str(warm / "torchrun"), *_TWO, "train.py")) == pytest.approx(alone, abs=1e-5)
    launcher = (str(warm / "python3"), *_LAUNCHER, "--nproc-per-node", "2", "python3", "train.py")
    assert _losses(_run(tmp_path, *launcher)) == pytest.approx(alone, abs=1e-5)


def test_a_refusal_is_a_line_of_each_rank_without_a_traceback(tmp_path: Path, warm: Path) -> None:
    (tmp_path / "train.py").write_text(_SCRIPT.replace('"global_batch_size": 8', '"global_batch_size": 1'))
    output = _run(tmp_path, str(warm / "python3"), *_LAUNCHER, "--nproc-per-node", "2", "train.py", expect=1)
    assert re.search(r"^error: rank [01]: .*global_batch_size", output, re.MULTILINE), output
    assert re.fullmatch(r"error: rank [01] ended with exit code 1; .*", output.splitlines()[-1]), output
    assert "Traceback" not in output


def test_one_process_trains_twice_under_torchrun(tmp_path: Path, warm: Path) -> None:
    (tmp_path / "train.py").write_text(
        LINEAR
        + """
if __name__ == "__main__":
    for _ in range(2):
        with pytorch.init(hparams={"global_batch_size": 8}) as context:
            pytorch.Trainer(LinearTrial(context), context).fit(
                max_length=pytorch.Batch(3), reporting_period=pytorch.Batch(1)
            )
"""
    )
    losses = _losses(_run(tmp_path, str(warm / "torchrun"), *_TWO, "train.py"))
    assert len(losses) == 6
    assert losses[:3] == losses[3:]


def test_launcher_says_what_a_trial_class_needs(tmp_path: Path) -> None:
    output = _run(tmp_path, sys.executable, *_LAUNCHER, "--trial", "model_def:Trial", expect=2)
    assert output.startswith("error: model_def:Trial needs an experiment's configuration")


def test_digits_alone_reach_their_accuracy(tmp_path: Path, warm: Path) -> None:
    output = _run(tmp_path, str(warm / "python3"), str(_DIGITS))
    accuracies = [float(text) for text in re.findall(r"accuracy ([\d.]+)", output)]
    assert accuracies[-1] >= 0.95
    newest = max((tmp_path / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    state = load_checkpoint(newest)
    assert state["progress"]["epoch"] == 10
    assert all(torch.isfinite(tensor).all() for tensor in state["models_state_dict"][0].values())


_OWN_LAUNCHER = """
import sys
from pathlib import Path
from gangline.core import DistributedContext, distributed
from tests.support.gated_trial import wait_for
distributed.LEAVE_SECONDS = 1000.0
rank, port, ending = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
context = DistributedContext(
    rank=rank, size=2, local_rank=rank, local_size=2, cross_rank=0, cross_size=1, chief_ip="127.0.0.1", pub_port=port
)
context.allgather(None)
if rank == 0:
    print("over", flush=True)
    if ending == "raises":
        raise ValueError("the chief fails")
else:
    wait_for(Path("go").exists, "the chief's last line")
    context._transport._store.add("later", 1)
"""


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_the_chief_of_a_script_s_own_launcher_ends_after_the_others_unless_it_failed(
    tmp_path: Path, warm: Path, ending: str
) -> None:
    """The chief's process has the store. A script need not close its context."""
    (tmp_path / "work.py").write_text(_OWN_LAUNCHER)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": _ROOT, "CUDA_VISIBLE_DEVICES": ""}
    command = [str(warm / "python3"), "work.py"]
    chief, other = (
        subprocess.Popen(
            [*command, rank, port, ending],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    )
    assert chief.stdout is not None
    assert chief.stdout.readline() == "over\n"
    if ending == "raises":
        assert "the chief fails" in chief.communicate(timeout=100)[1]
    (tmp_path / "go").touch()
    errors = other.communicate(timeout=100)[1]
    # Without the chief there is no store, so the other rank fails.
    assert other.returncode == (1 if ending == "raises" else 0), errors
    assert chief.wait(100) == other.returncode
    chief.stdout.close()
