"""Scripts as entrypoints: with the Core API, with the trainer, as a module, as any other command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gangline.cluster_info import CheckpointInfo
from tests.support.rank import RunningTrial, Trial, run_trial, start_trial
from tests.support.trial_source import LINEAR

_CORE = (Path(__file__).parents[3] / "examples" / "core_loop" / "train.py").read_text()


def _trial(entrypoint: Any, code: dict[str, str], size: int = 1, latest: CheckpointInfo | None = None) -> Trial:
    return Trial(code, {"entrypoint": entrypoint}, {"global_batch_size": 8}, size, latest)


def _slopes(running: RunningTrial) -> dict[int, float]:
    return running.runner.metric("training", "slope")


def test_core_script_reports_and_saves(tmp_path: Path) -> None:
    running, codes = run_trial(tmp_path, _trial("python3 train.py", {"train.py": _CORE}, 2))
    assert codes == [0, 0]
    assert list(_slopes(running)) == [50, 100, 150, 200]
    assert _slopes(running)[200] == pytest.approx(3.0, abs=0.1)
    newest = running.checkpoints()[-1]
    assert (newest.trial_id, newest.experiment_id, newest.batches_completed) == ("7.1", 7, 200)
    assert json.loads(Path(newest.url, "slope.json").read_text())["steps"] == 200
    assert running.runner.of(0, "finished")[0].batches_completed == 200
    assert not running.runner.of(0, "stopping")


def test_core_script_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole, _ = run_trial(tmp_path / "whole", _trial("python3 train.py", {"train.py": _CORE}, 2))
    checkpoint = whole.checkpoints()[1]
    latest = CheckpointInfo(checkpoint.id, checkpoint.url, 100)
    trial = _trial("python3 train.py", {"train.py": _CORE}, 2, latest)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "storage").symlink_to(tmp_path / "whole" / "storage")
    again, codes = run_trial(tmp_path / "again", trial)
    assert codes == [0, 0]
    assert _slopes(again) == {steps: slope for steps, slope in _slopes(whole).items() if steps > 100}


def test_core_script_stops_when_it_is_preempted(tmp_path: Path) -> None:
    endless = _CORE.replace("STEPS = 200", "STEPS = 100_000_000")
    with start_trial(tmp_path, _trial("python3 -u train.py", {"train.py": endless}, 2)) as running:
        running.runner.wait_for(lambda: bool(_slopes(running)), "the first report")
        running.runner.preempt("drain")
        assert running.wait() == [0, 0]
        finished = running.runner.of(0, "finished")[0]
    assert running.runner.of(0, "stopping")
    assert running.checkpoints()[-1].batches_completed == finished.batches_completed


def test_script_with_the_trainer_takes_what_the_experiment_says(tmp_path: Path) -> None:
    script = (
        LINEAR
        + """
if __name__ == "__main__":
    import sys
    print("arguments", sys.argv)
    with pytorch.init(hparams={"global_batch_size": 99, "optimizer": "adamw"}) as context:
        print("hparams", context.get_hparams())
        pytorch.Trainer(LinearTrial(context), context).fit(max_length=pytorch.Batch(4))
"""
    )
    running, codes = run_trial(tmp_path, _trial("python3 -m model_def --deep 3", {"model_def.py": script}, 2))
    assert codes == [0, 0]
    assert "arguments ['" in running.output(0)
    assert "'--deep', '3']" in running.output(0)
    assert "hparams {'global_batch_size': 8, 'optimizer': 'adamw'}" in running.output(0)
    assert running.checkpoints()[-1].batches_completed == 4
    assert running.runner.of(1, "finished")[0].batches_completed == 4


def test_launcher_in_front_of_a_script_changes_nothing(tmp_path: Path) -> None:
    line = "python3 -m determined.launch.torch_distributed python3 train.py"
    running, codes = run_trial(tmp_path, _trial(line, {"train.py": _CORE}, 2))
    assert codes == [0, 0]
    assert 200 in _slopes(running)


def test_command_replaces_the_rank_and_still_reaches_the_runner(tmp_path: Path) -> None:
    command = f"cd . && {sys.executable} -c 'import train; train.main()' && exit 5"
    running, codes = run_trial(tmp_path, _trial(command, {"train.py": _CORE}))
    assert codes == [5]
    assert _slopes(running)[200] == pytest.approx(3.0, abs=0.1)


def test_command_that_does_not_exist(tmp_path: Path) -> None:
    running, codes = run_trial(tmp_path, _trial(["no-such-program", "--now"], {}))
    assert codes == [127]
    assert "error: entrypoint 'no-such-program' cannot be run: No such file or directory" in running.output(0)


def test_logging_is_as_the_script_configures_it(tmp_path: Path) -> None:
    plain = "import logging\nlogging.getLogger('mine').info('as it comes')\n"
    own = "logging.basicConfig(level=logging.DEBUG, format='own %(message)s')\nlogging.debug('down to this')\n"
    running, codes = run_trial(tmp_path, _trial("python3 train.py", {"train.py": plain + own}))
    assert codes == [0]
    lines = running.output(0).splitlines()
    assert [line for line in lines if "as it comes" in line or "down to" in line] == [
        "INFO mine: as it comes",
        "own down to this",
    ]


def test_an_alert_is_a_line_of_the_log(tmp_path: Path) -> None:
    script = """
from determined import core
with core.init() as context:
    context.alert(title="loss", description="rises", level="warn")
    try:
        context.alert("x", level="loud")
    except Exception as error:
        print(error)
"""
    running, codes = run_trial(tmp_path, _trial("python3 train.py", {"train.py": script}))
    assert codes == [0]
    assert "WARNING gangline: alert: loss: rises" in running.output(0)
    assert "level is 'loud'; give one of debug, info, warn, warning, error" in running.output(0)
