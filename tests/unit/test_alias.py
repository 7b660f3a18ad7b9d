"""`import determined` where it is not installed finds Gangline; where it is, it finds Determined."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline.alias.finder import SHIM
from gangline.cluster_info import ENVIRONMENT_KEY, ClusterInfo, TrialInfo
from tests.support import warm_python
from tests.support.source import ROOT
from tests.support.warm_program import WarmPair
from tests.support.warm_program import folder as warm_folder

_INSTALL = "from gangline import alias; alias.install()\n"


def _python(
    code: str, tmp_path: Path, *more_path: str, arguments: tuple[str, ...] = (), program: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which finds Gangline and the given folders. program: a Python."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GANGLINE_")}
    environment = {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), *more_path])}
    command = [program, *(arguments or ("-c", code))]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


def _installed(folder: Path) -> str:
    """A stand-in for an installed Determined."""
    package = folder / "site" / "determined"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("who = 'the real one'\n")
    (package / "keras.py").write_text("who = 'real keras'\n")
    return str(package.parent)


_KNOWN = """
import determined as det, determined.pytorch
from determined import core, pytorch
from determined.pytorch import DataLoader, PyTorchTrial, samplers
from determined.pytorch import *
from determined.tensorboard.metric_writers.pytorch import TorchWriter
import gangline.core, gangline.pytorch as ours

assert PyTorchTrial is ours.PyTorchTrial is det.pytorch.PyTorchTrial
assert det.core.init is core.init is gangline.core.init
assert det.get_cluster_info() is None and det.LOG_FORMAT and det.InvalidHP
assert samplers.RepeatSampler and Epoch(1) == pytorch.Epoch(1)
assert not hasattr(det, "keras") and "get_cluster_info" in dir(det)
"""


def test_names_of_determined_are_found(told: _Told) -> None:
    assert told.failures["known"] == ""


def test_nothing_is_loaded_before_it_is_asked_for(tmp_path: Path) -> None:
    code = "import sys, determined\nassert 'torch' not in sys.modules and 'gangline.core' not in sys.modules\n"
    done = _python(_INSTALL + code, tmp_path)
    assert done.returncode == 0, done.stderr


_LACKING = {
    "from determined.experimental.client import get_model": "determined.experimental.client.get_model",
    "from determined.experimental import Determined; Determined.list_users": "Determined.list_users",
    "from determined.experimental.client import Checkpoint; Checkpoint.add_metadata": "Checkpoint.add_metadata",
    "from determined.pytorch import ClipGradsL2Norm": "determined.pytorch.ClipGradsL2Norm",
    "import determined as det; det.core.DeepSpeedContext": "determined.core.DeepSpeedContext",
    "import determined as det; det.core.init().train.report_metadata()": "TrainContext.report_metadata",
    "import determined as det; det.core.init().experimental": "Context.experimental",
    "from determined import core; core.DistributedContext.from_horovod": "DistributedContext.from_horovod",
    "from determined import pytorch; pytorch.PyTorchTrialContext.from_config": "PyTorchTrialContext.from_config",
    "from determined import pytorch\nwith pytorch.init() as context: context.profiler": "PyTorchTrialContext.profiler",
}
_WAYS_OUT = {
    "import determined.keras": "determined.keras is not part of Gangline; Gangline trains with PyTorch alone",
    "from determined import keras": "determined.keras is not part of Gangline; Gangline trains with PyTorch alone",
    "from determined.pytorch import deepspeed": "determined.pytorch.deepspeed is not part of Gangline; `parallelism: z",
    "import determined.pytorch.lightning": "determined.pytorch.lightning is not part of Gangline; use lightning.T",
    "import determined.horovod": "determined.horovod is not part of Gangline; ranks exchange gradients",
}


def test_what_is_lacking_is_named_with_the_page_of_differences(told: _Told) -> None:
    page = "docs/from-determined.md says what is, and what to use instead"
    expected = [f"{name} is not part of Gangline; {page}" for name in _LACKING.values()]
    assert told.errors[: len(_LACKING)] == expected


def test_other_frameworks_are_named_with_their_ways_out(told: _Told) -> None:
    lines = told.errors[len(_LACKING) :]
    assert [line[: len(words)] for line, words in zip(lines, _WAYS_OUT.values(), strict=True)] == [*_WAYS_OUT.values()]


_CORE_V2 = """
import logging
from determined.experimental import core_v2

logging.basicConfig(format="%(message)s")
assert core_v2.train is None
core_v2.init(config=core_v2.Config(name="mine", checkpoint_storage="kept"), client=None)
core_v2.train.report_training_metrics(steps_completed=1, metrics={"loss": 0.5})
with core_v2.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
    (path / "weights").write_text("w")
assert core_v2.distributed.rank == 0 and core_v2.info is None and not core_v2.preempt.should_preempt()
core_v2.close()
core_v2.close()
assert core_v2.train is None and core_v2.checkpoint is None
with core_v2.init_context(defaults=core_v2.DefaultConfig()) as context:
    context.train.report_validation_metrics(steps_completed=2, metrics={"loss": 0.25})
"""


def test_core_v2_trains_alone_and_says_that_nothing_is_recorded(tmp_path: Path) -> None:
    done = _python(_INSTALL + _CORE_V2, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["training", "batch", "1", "loss", "0.5"],
        ["validation", "batch", "2", "loss", "0.25"],
    ]
    assert done.stderr.count("to record them run it by: gangline experiment create") == 2
    assert [path.read_text() for path in tmp_path.glob("kept/checkpoints/*/weights")] == ["w"]


_FURTHER = """
import math
import determined as det
from determined import core, pytorch

assert det.TrialContext is pytorch.PyTorchTrialContext
config = det.ExperimentConfig({"entrypoint": "x", "searcher": {"metric": "loss"}, "resources": {"slots_per_trial": 4}})
assert (config.get_searcher_metric(), config.slots_per_trial(), config.scheduling_unit()) == ("loss", 4, 100)
try:
    raise det.errors.InvalidExperimentException("no data")
except det.errors.InvalidExperimentException as error:
    assert str(error) == "no data"
assert det.util.json_encode({"a": [math.nan, (1, True)], "b": b"t"}) == '{"a": ["NaN", [1, true]], "b": "t"}'
assert det.util.merge_dicts({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {"a": {"b": 3, "c": 2}, "d": 4}
assert core.DummyDistributedContext().allgather(1) == [1]
core.DummyTrainContext().report_training_metrics(1, {"loss": 1.0})
assert not core.DummyPreemptContext(core.DummyDistributedContext()).should_preempt()
for operation in core.DummySearcherContext(core.DistributedContext()).operations():
    assert operation.length == 1
    operation.report_completed(1.0)
core.DummyProfilerContext().off()
with core.DummyCheckpointContext(core.DummyDistributedContext(), "kept").store_path({}) as (path, _):
    (path / "w").write_text("w")
context = pytorch.CheckpointLoadContext(hparams={"width": 3}, exp_conf={"data": {"url": "u"}})
assert (context.get_hparam("width"), context.get_data_config()) == (3, {"url": "u"})
sampler = pytorch.adapt_batch_sampler([[0], [1], [2], [3], [4]], skip=1, num_replicas=2, rank=1)
assert list(sampler) == [[3]]
assert pytorch.experimental.torch_batch_process and pytorch.experimental.TorchBatchProcessor
assert list(pytorch.samplers.ReproducibleShuffleSampler(range(5), 777)) == [0, 4, 1, 2, 3]
"""


def test_further_names_of_determined(told: _Told) -> None:
    assert told.failures["further"] == ""
    assert list(told.folder.glob("kept/checkpoints/*/w"))


_TELLING = """
import json, sys, traceback
codes, programs = json.loads(sys.argv[1])
failures, errors = {}, []
for code in codes:
    try:
        exec(code)
    except (ImportError, AttributeError) as error:
        errors.append(str(error))
for name, code in programs.items():
    try:
        exec(code, {})
        failures[name] = ""
    except BaseException:
        failures[name] = traceback.format_exc()
print(json.dumps([failures, errors]))
"""


@dataclass(frozen=True)
class _Told:
    """errors: of _LACKING and _WAYS_OUT. failures: the traceback of each program, empty where it ran. folder: where
    they ran."""

    errors: list[str]
    failures: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> _Told:
    """One process for all of them, forked from one that has torch. Programs that name modules as attributes come before
    the one that imports them."""
    folder = tmp_path_factory.mktemp("told")
    warm = warm_python.install_commands(tmp_path_factory.mktemp("warm"), WarmPair(warm_folder()).ranks())
    asked = json.dumps([[*_LACKING, *_WAYS_OUT], {"further": _FURTHER, "known": _KNOWN}])
    done = _python("", folder, arguments=("-c", _INSTALL + _TELLING, asked), program=str(warm / "python3"))
    assert done.returncode == 0, done.stderr
    failures, errors = json.loads(done.stdout.splitlines()[-1])
    return _Told(errors, failures, folder)


def test_sdk_has_the_names_and_loads_grpc_only_where_it_is_used(tmp_path: Path) -> None:
    code = """
import sys
import determined.experimental
assert "grpc" not in sys.modules
from determined.experimental import Determined, client
from determined.experimental.client import Checkpoint, Experiment, OrderBy, Trial, create_experiment, login
assert client.ExperimentState.COMPLETED.name == "COMPLETED" and Determined is client.Determined
assert set(client.__all__) <= set(dir(client))
"""
    done = _python(_INSTALL + code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_installed_determined_comes_first(tmp_path: Path) -> None:
    code = "import determined, determined.keras; print(determined.who, determined.keras.who)"
    done = _python(_INSTALL + code, tmp_path, _installed(tmp_path))
    assert done.stdout == "the real one real keras\n", done.stderr
    missing = _python(_INSTALL + "import determined.core", tmp_path, str(tmp_path / "site"))
    assert "No module named 'determined.core'" in missing.stderr


def test_child_processes_find_the_alias_and_an_installed_one_before_it(tmp_path: Path) -> None:
    code = "import determined; print(determined.__version__ if hasattr(determined, 'core') else determined.who)"
    assert _python(code, tmp_path, SHIM).stdout == "0.38.1\n"
    assert _python(code, tmp_path, SHIM, _installed(tmp_path)).stdout == "the real one\n"
    inherited = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    assert _python(_INSTALL + inherited, tmp_path).stdout == "0.38.1\n"


def test_in_a_trial_an_installed_determined_is_hidden_and_named(tmp_path: Path) -> None:
    info = ClusterInfo("c", "7.1.1", 1, "a1", 0, 1, ["a1/0"], "", "/code", TrialInfo("7.1", 7, 1, {}, {}))
    trial = f"import os; os.environ[{ENVIRONMENT_KEY!r}] = {info.to_json()!r}\n"
    code = "import determined; print(determined.__version__)\n"
    done = _python(trial + _INSTALL + code, tmp_path, _installed(tmp_path))
    assert done.stdout == "0.38.1\n", done.stderr
    text = f"determined in {tmp_path}/site/determined/__init__.py is not used: in a trial, `import determined` gives"
    assert done.stderr.count(text) == 1
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    assert _python(trial + _INSTALL + child, tmp_path, str(tmp_path / "site")).stdout == "0.38.1\n"


def test_an_interpreter_without_gangline_finds_an_installed_one_behind_the_shim(tmp_path: Path) -> None:
    code = "import determined; print(determined.who)"
    environment = {"PYTHONPATH": os.pathsep.join([SHIM, _installed(tmp_path)])}
    # -S: without site-packages, so without Gangline.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "the real one\n", done.stderr
    environment = {"PYTHONPATH": SHIM}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'determined'"


def test_in_a_trial_an_interpreter_without_gangline_is_an_error(tmp_path: Path) -> None:
    """An installed Determined would train without this cluster, and no metric would arrive."""
    environment = {"PYTHONPATH": os.pathsep.join([SHIM, _installed(tmp_path)]), ENVIRONMENT_KEY: "{}"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import determined"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: in a trial, `import determined` gives Gangline, and {sys.executable} has none; install it "
        f"there: {sys.executable} -m pip install gangline (docs/install.md says from where)"
    )


_OFF_CLUSTER = ROOT / "gangline" / "alias" / "off_cluster"
_SITE = "import site, sys; site.addsitedir(sys.argv[1]); sys.path.append(sys.argv[2])\n"


def _site(tmp_path: Path, *marks: str) -> tuple[str, str]:
    """A folder of packages with what a wheel installs, and one with the packages of the extra."""
    site, extra = tmp_path / "wheel", tmp_path / "extra"
    shutil.copytree(_OFF_CLUSTER, site)
    for mark in marks:
        package = extra / mark
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
    return str(site), str(extra)


@pytest.mark.parametrize(
    ("marks", "installed", "told"),
    [
        (("requests", "ruamel", "ruamel/yaml"), False, "0.38.1"),
        (("requests", "ruamel", "ruamel/yaml"), True, "the real one"),
        (("requests",), False, "no module"),
        ((), True, "the real one"),
    ],
    ids=["with the extra", "beside an installed one", "without the extra", "an installed one alone"],
)
def test_off_the_cluster_the_extra_brings_the_alias(
    tmp_path: Path, marks: tuple[str, ...], installed: bool, told: str
) -> None:
    folders = _site(tmp_path, *marks)
    own = _installed(tmp_path) if installed else str(tmp_path)
    # The packages of the test's own environment must not count.
    hidden = "sys.meta_path.insert(0, type('Hidden', (), {'find_spec': staticmethod(hide)})())\n"
    hide = (
        "def hide(name, path=None, target=None):\n"
        "    if name.split('.')[0] in ('requests', 'ruamel'):\n"
        "        from importlib.machinery import PathFinder\n"
        "        found = PathFinder.find_spec(name, path or [sys.argv[2]])\n"
        "        if found is None: raise ModuleNotFoundError(name)\n"
        "        return found\n"
    )
    code = f"{_SITE}{hide}{hidden}assert 'gangline' not in sys.modules\n"
    code += "try:\n    import determined\nexcept ModuleNotFoundError:\n    sys.exit(print('no module'))\n"
    code += "print(determined.__version__ if hasattr(determined, 'core') else determined.who)"
    done = _python("", tmp_path, own, arguments=("-c", code, *folders))
    assert done.stdout == f"{told}\n", done.stderr


def test_the_wheel_installs_the_alias_of_the_extra() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    names = {"_gangline_determined.py", "gangline_determined.pth"}
    assert wheel["force-include"] == {f"gangline/alias/off_cluster/{name}": name for name in names}
    assert {path.name for path in _OFF_CLUSTER.iterdir() if path.is_file()} == names


def test_launchers_run_under_the_old_name(tmp_path: Path) -> None:
    words = ("-m", "determined.launch.wrap_rank", "3", "--", sys.executable, "-c", "import determined; print('hello')")
    done = _python("", tmp_path, SHIM, arguments=words)
    assert (done.stdout, done.returncode) == ("[rank=3] hello\n", 0), done.stderr
    trial = ("-m", "determined.launch.torch_distributed", "--trial", "model_def:Trial")
    done = _python("", tmp_path, SHIM, arguments=trial)
    assert done.stderr.startswith("error: model_def:Trial needs an experiment's configuration")


def test_a_worker_runs_in_its_slot_alone(tmp_path: Path) -> None:
    trial = TrialInfo("7.1", 7, 0, {}, {})
    info = ClusterInfo("c", "7.1.1", 1, "a1", 0, 1, ["a1/0", "a1/1"], "/s", "/c", trial, rank=1, world_size=2)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), ENVIRONMENT_KEY: info.to_json()}
    result_by_rank = {}
    for rank in range(3):
        words = ["-m", "gangline.launch.wrap_rank", str(rank), sys.executable, "-c", "print('hello')"]
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        result_by_rank[rank] = (done.returncode, done.stdout, done.stderr)
    refused = (
        "error: wrap_rank 2: the trial has the ranks 0 to 1, one for each slot; start no more workers, or ask for "
    )
    assert result_by_rank == {0: (0, "", ""), 1: (0, "hello\n", ""), 2: (2, "", refused + "more slots_per_trial\n")}


def test_wrapped_command_keeps_its_exit_code_and_its_streams(tmp_path: Path) -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    words = ("-m", "gangline.launch.wrap_rank", "WORKER", sys.executable, "-c", program)
    kept = os.environ.get("WORKER")
    os.environ["WORKER"] = "2"
    try:
        done = _python("", tmp_path, arguments=words)
    finally:
        os.environ.pop("WORKER") if kept is None else os.environ.update(WORKER=kept)
    assert (done.stdout, done.stderr, done.returncode) == ("[rank=2] out\n", "[rank=2] err\n", 7)
    absent = _python("", tmp_path, arguments=("-m", "gangline.launch.wrap_rank", "ABSENT", "true"))
    assert absent.stderr == (
        "error: wrap_rank ABSENT: expected a number or a variable that holds one; there is no such variable\n"
    )
