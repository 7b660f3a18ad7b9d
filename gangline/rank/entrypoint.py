"""Runs the experiment's entrypoint, a trial class or a script, in a rank, and reports its end to the trial runner.

`run` is called in the freshly forked rank, whose working directory and sys.path[0] are the folder of the user's code.
The caller leaves the process with the returned code. Other commands replace the rank's process, so this module never
runs for them.
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gangline import alias
from gangline.cluster_info import ClusterInfo, get_cluster_info
from gangline.core.beat import START, open_beat
from gangline.core.link import Link, connect
from gangline.domain.entrypoint import Entrypoint, Module, Script, TrialClass, parse_entrypoint
from gangline.domain.failure import CHILD, describe_signal, signal_passed_on
from gangline.domain.state import ExitKind
from gangline.errors import invalid
from gangline.launch import child
from gangline.launch.failure import Failure, describe, import_failure

EXIT_FAILED = 1


def run() -> int:
    """Runs this rank's entrypoint to its end. Returns the exit code of the process."""
    cluster = get_cluster_info()
    if cluster is None:
        sys.stderr.write("error: gangline.rank.entrypoint runs in a rank that a trial runner started\n")
        return EXIT_FAILED
    _prepare(cluster)
    entrypoint = parse_entrypoint(cluster.trial.settled.entrypoint)
    link = connect()
    code = _run_guarded(lambda: _run(entrypoint, cluster), link)
    link.flush()
    _leave_process_group()
    return code


def _prepare(cluster: ClusterInfo) -> None:
    """Sets up the logging, the aliases and the import path of this rank, and logs the cluster's warnings on rank 0."""
    _log_until_configured()
    alias.install()
    if cluster.code_directory not in sys.path:
        child.put_code_first(cluster.code_directory)
    if cluster.rank == 0:
        for warning in cluster.warnings:
            logging.getLogger("gangline").warning("%s", warning)


def _log_until_configured() -> None:
    """Prints log records from INFO on as long as the user's code configures no handler of its own. So its
    logging.basicConfig works as in a plain python3."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.lastResort = handler
    logging.getLogger().setLevel(logging.INFO)


def _run(entrypoint: Entrypoint, cluster: ClusterInfo) -> None:
    match entrypoint:
        case TrialClass(module=module, name=name):
            run_trial(module, name, cluster)
        case Script(path=path, arguments=arguments):
            run_script(_find_script(path, cluster), arguments)
        case Module(name=name, arguments=arguments):
            run_module(name, arguments)


def run_trial(module: str, name: str, cluster: ClusterInfo) -> None:
    """Trains module:name as the experiment's configuration requires, from the latest checkpoint if there is one."""
    open_beat(cluster, batches=0).start(START)
    trial_class = load_trial(module, name)
    from gangline import pytorch  # noqa: PLC0415  a script need not pay for it

    with pytorch.init(trial_class=trial_class) as context:
        trainer = pytorch.Trainer(trial_class(context), context)
        trainer.fit(latest_checkpoint=cluster.latest_checkpoint)


def load_trial(module: str, name: str) -> Any:
    """Imports a trial class. Raises GanglineError `entrypoint.*` where it is missing or no trial. Exceptions of the
    module itself are raised as _ImportFailed."""
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            raise invalid(
                "entrypoint.no_module",
                f"entrypoint {module}:{name}: no module {error.name} in {Path.cwd()}, which holds {_python_files()}",
            ) from None
        raise _ImportFailed(module, error) from error
    except Exception as error:
        raise _ImportFailed(module, error) from error
    trial_class = getattr(loaded, name, None)
    if trial_class is None:
        raise invalid("entrypoint.no_class", f"entrypoint {module}:{name}: {loaded.__file__} defines no {name}")
    return _check_trial(trial_class, f"{module}:{name}")


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Runs a script in this process, as `python3 path arguments` would."""
    if not Path(path).is_file():
        raise invalid("entrypoint.no_file", f"entrypoint: there is no file {path} in {Path.cwd()}")
    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    runpy.run_path(path, run_name="__main__")


def _find_script(path: str, cluster: ClusterInfo) -> str:
    """Returns the script of the working directory, else that of the code's folder."""
    of_code = Path(cluster.code_directory) / path
    return path if Path(path).is_file() or not of_code.is_file() else str(of_code)


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Runs a module in this process, as `python3 -m name arguments` would."""
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_guarded(work: Callable[[], None], link: Link) -> int:
    """Calls the user's code and reports to the runner how it ended."""
    try:
        work()
    except SystemExit as error:
        return _on_system_exit(error, link)
    except _ImportFailed as error:
        sys.last_value = error.error
        return _fail(import_failure(error.error, error.module), link)
    except BaseException as error:  # noqa: BLE001  whatever ends the user's code is reported, interrupts too
        # Exit handlers find it there, as in a plain python3.
        sys.last_value = error
        return _fail(describe(error), link)
    link.send_finished()
    return 0


def _on_system_exit(error: SystemExit, link: Link) -> int:
    if error.code is None or error.code == 0:
        link.send_finished()
        return 0
    failure = describe(error)
    if isinstance(error.code, int) and (number := signal_passed_on(error.code)):
        return _fail(Failure(ExitKind.SIGNAL, describe_signal(number, CHILD), failure.traceback), link, error.code)
    if isinstance(error.code, int):
        # The code may pass on the exit of a worker of the script's own launcher. The runner has more evidence, so it
        # classifies the failure.
        return _fail(Failure(None, f"the code called sys.exit({error.code})", failure.traceback), link, error.code)
    lines = str(error.code).splitlines() or [f"the code called sys.exit({error.code!r})"]
    return _fail(Failure(failure.kind, lines[0], failure.traceback), link)


def _fail(failure: Failure, link: Link, code: int = EXIT_FAILED) -> int:
    sys.stdout.flush()
    sys.stderr.write(failure.traceback)
    sys.stderr.flush()
    link.send_failure(failure.kind, failure.message, failure.traceback, failure.error_code)
    # The kernel keeps the low byte of an exit code. A failure whose low byte is 0 would read as success.
    return code & 0xFF or EXIT_FAILED


def _check_trial(trial_class: Any, where: str) -> Any:
    from gangline.pytorch import PyTorchTrial  # noqa: PLC0415  a script need not pay for it

    if not (isinstance(trial_class, type) and issubclass(trial_class, PyTorchTrial)):
        what = (
            f"the class {trial_class.__name__}" if isinstance(trial_class, type) else f"a {type(trial_class).__name__}"
        )
        raise invalid(
            "entrypoint.no_trial", f"entrypoint {where} is {what}, which is no trial; inherit from PyTorchTrial"
        )
    return trial_class


def _python_files() -> str:
    return ", ".join(sorted(path.name for path in Path.cwd().glob("*.py"))[:6]) or "no Python file"


def _leave_process_group() -> None:
    """Closes the process groups that the user's script left open; does nothing when the script did not use
    torch.distributed."""
    if "torch.distributed" in sys.modules:
        from gangline.core.process_group import close_group  # noqa: PLC0415  a script need not pay for it

        close_group()


def main() -> None:
    """`python -m gangline.rank.entrypoint`: a rank in a Python of its own, where a fork of a warm process would have
    other packages. Started by the nursery, in the folder in which the user's code runs."""
    child.prepare_output()
    faulthandler.enable()
    child.set_name(f"gangline-rank{os.environ.get('RANK', '')}")
    child.put_code_first(str(Path.cwd()))
    child.leave_like_a_program(run())


class _ImportFailed(Exception):
    """The user's module raised an exception when it was imported."""

    def __init__(self, module: str, error: Exception) -> None:
        super().__init__(module)
        self.module = module
        self.error = error


if __name__ == "__main__":
    main()
