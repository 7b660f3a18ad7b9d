"""Tensor fusion tuned in real ranks: nothing that is learned changes, what was found is recalled, and all ranks agree
whatever disturbs them.

How long a step takes is given to the tuner where the outcome matters, so that it finds the same buckets on every
machine; buckets, exchanges and training are real.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.fused_trial import FUSED, SCRIPTED, fused_config
from tests.support.rank import RunningTrial, Trial, run_trial, start_trial
from tests.support.wait import until

_ROOT = str(Path(__file__).parents[3])
_STEPS = 60
_SECONDS = 140.0
_TUNED = {"auto_tune_tensor_fusion": True}
_SCRIPT = (
    SCRIPTED
    + """
hparams = {"steps": int(sys.argv[1]), "straggles": False}
configuration = {"optimizations": {"auto_tune_tensor_fusion": True}}
with pytorch.init(hparams=hparams, exp_conf=configuration, enable_tensorboard_logging=False) as context:
    pytorch.Trainer(FusedTrial(context), context).fit(max_length=pytorch.Batch(hparams["steps"]))
"""
)


def _trial(optimizations: Mapping[str, object], steps: int = _STEPS, code: str = SCRIPTED, **more: object) -> Trial:
    hparams = {"steps": steps, "straggles": more.pop("straggles", False)}
    return Trial({"model_def.py": code}, fused_config(steps, optimizations), hparams, 2, **more)  # type: ignore[arg-type]  # by name


def _buckets(output: str, step: int) -> str:
    """The bytes of each, as torch made them."""
    return str(re.findall(rf"step {step} buckets (.+)", output)[-1])


def _digest(output: str) -> str:
    return str(re.findall(r"digest (\w+)", output)[-1])


def _fusion_lines(output: str) -> list[str]:
    return re.findall(r"fusion: .*$", output, re.MULTILINE)


def _outputs(running: RunningTrial) -> list[str]:
    return [running.output(rank) for rank in range(2)]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> RunningTrial:
    """A trial that was tuned, and has ended."""
    ended, codes = run_trial(tmp_path_factory.mktemp("fusion") / "tuned", _trial(_TUNED))
    assert codes == [0, 0], _outputs(ended)
    return ended


def test_tuned_trial_learns_the_same_bit_for_bit(tuned: RunningTrial, tmp_path: Path) -> None:
    plain, codes = run_trial(tmp_path, _trial({}))
    assert codes == [0, 0], _outputs(plain)
    assert [_digest(output) for output in _outputs(tuned)] == [_digest(output) for output in _outputs(plain)]
    default = {_buckets(output, step) for output in _outputs(plain) for step in (3, _STEPS - 1)}
    assert {_buckets(output, 3) for output in _outputs(tuned)} == default
    (last,) = {_buckets(output, _STEPS - 1) for output in _outputs(tuned)}
    assert {last} != default
    assert _fusion_lines(plain.output(0)) == []
    (line,) = _fusion_lines(tuned.output(0))
    assert re.fullmatch(r"fusion: .*, 2.00x default, \d+ steps", line)
    assert _fusion_lines(tuned.output(1)) == []
    assert [*tuned.runner.metric("fusion", "gain_ratio").values()][-1] == pytest.approx(2.0)


def test_next_trial_has_the_buckets_from_its_first_step(tuned: RunningTrial, tmp_path: Path) -> None:
    records = tuned.runner.of(0, "fusion_record")
    assert len(records) == 1
    again, codes = run_trial(tmp_path, _trial(_TUNED, steps=20, fusion=records))
    assert codes == [0, 0], _outputs(again)
    buckets = {_buckets(output, step) for output in _outputs(again) for step in (3, 19)}
    assert buckets == {_buckets(tuned.output(0), _STEPS - 1)}
    (line,) = _fusion_lines(again.output(0))
    assert re.fullmatch(r"fusion: .*, 2.00x default, recalled from trial 7.1, which took \d+ steps", line)
    assert again.runner.of(0, "fusion_record") == []
    # Being told what was recalled is no step.
    assert again.runner.of(0, "first_step")[0].at > 0


def test_explicit_cap_turns_tuning_off(tmp_path: Path) -> None:
    fixed, codes = run_trial(tmp_path, _trial({**_TUNED, "tensor_fusion_threshold": 1}, steps=5))
    assert codes == [0, 0], _outputs(fixed)
    expected = "fusion: not tuned: optimizations.tensor_fusion_threshold fixes the buckets at 1 MiB"
    assert _fusion_lines(fixed.output(0)) == [expected]
    assert fixed.runner.of(0, "fusion_query") == []


async def test_straggler_and_a_pause_in_mid_tuning_end_with_one_partition(tmp_path: Path) -> None:
    """With times as they are: which buckets win is not foreseen, but all ranks have the same."""
    with start_trial(tmp_path, _trial(_TUNED, code=FUSED, straggles=True)) as running:

        def newest_step(rank: int) -> int:
            return max(map(int, re.findall(r"step (\d+) begins", running.output(rank))), default=-1)

        running.runner.wait_for(lambda: len(running.runner.of(1, "hello")) == 1, "rank 1 says hello")
        await until(lambda: newest_step(1) >= 8, "rank 1 tunes", _SECONDS)
        pid = running.runner.of(1, "hello")[0].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            # Rank 0 begins the step in which rank 1 stands, or the one after it, and can get no further.
            await until(lambda: newest_step(0) >= newest_step(1), "rank 0 waits", _SECONDS)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert running.wait() == [0, 0], _outputs(running)
        assert len({_buckets(output, _STEPS - 1) for output in _outputs(running)}) == 1
        assert len({_digest(output) for output in _outputs(running)}) == 1
        assert len(_fusion_lines(running.output(0))) == 1
        assert len(running.runner.of(0, "fusion_record")) == 1


def test_under_torchrun_the_record_lies_in_a_folder(tmp_path: Path, warm: Path) -> None:
    tuned = _torchrun(warm, tmp_path, steps=_STEPS)
    (path,) = (tmp_path / "memory").iterdir()
    assert json.loads(path.read_text())["key"] == path.stem
    again = _torchrun(warm, tmp_path, steps=5)
    assert _buckets(again, 3) == _buckets(tuned, _STEPS - 1)
    (line,) = _fusion_lines(again)
    assert "2.00x default, recalled from an earlier trial" in line


def _torchrun(warm: Path, directory: Path, steps: int) -> str:
    (directory / "train.py").write_text(_SCRIPT)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GANGLINE_")}
    environment = {**kept, "PYTHONPATH": _ROOT, "GANGLINE_FUSION_DIR": str(directory / "memory")}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [str(warm / "torchrun"), "--standalone", "--nproc-per-node", "2", "train.py", str(steps)],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout
