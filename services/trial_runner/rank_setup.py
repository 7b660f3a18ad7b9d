"""Settles what the ranks of this machine start with: interpreter, folder, variables and command.

Runs the startup hook on the way, if the code has one. The runner calls `prepare` once, after the gang is linked. From
the start of the hook the attempt counts as running.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gangline.alias.finder import SHIM
from gangline.domain.entrypoint import Command, parse_entrypoint
from gangline.domain.peer_name import GATEWAY, PeerName
from gangline.domain.settled.record import Settled
from gangline.domain.state import TaskKind
from gangline.domain.storage.output import OUTPUT_KEY
from gangline.domain.task_environment import TASK_IDLE_SECONDS, TASK_KEYS, TASK_PYTHON, TASK_SOCKET
from gangline.errors import invalid
from gangline.launch.private_environment import has_packages
from gangline.v1 import runner_pb2
from services.common.access.user_rights import is_file_of, is_folder_of, rights_of
from services.common.state_folder import SharedFolder
from services.trial_runner.gang.gang_plan import (
    GatewayTls,
    Network,
    Place,
    find_program,
    rank_environment,
    settled_of,
    threads_per_rank,
    without_settings,
)
from services.trial_runner.ranks.confinement import Confinement
from services.trial_runner.ranks.container import Container
from services.trial_runner.ranks.interpreter import (
    STEP_SECONDS,
    Interpreter,
    Run,
    contained_interpreter,
    find_interpreter,
    make_private,
)
from services.trial_runner.ranks.log_pump import LogPump
from services.trial_runner.ranks.nursery_client import NurseryClient
from services.trial_runner.ranks.startup_hook import HOOK_NAME, EnvironmentChange, run_hook
from services.trial_runner.ranks.step import run_step


@dataclass(frozen=True, slots=True)
class RankStart:
    """What the ranks start with."""

    environments: dict[int, dict[str, str]]  # environment variables by rank
    directory: str  # folder in which the ranks start
    num_threads: int  # threads of each rank
    program: list[str]  # replaces the process of each rank; empty for a fork of the warm process
    network: Network


@dataclass(frozen=True, slots=True)
class RankSetup:
    """Prepares the start of one machine's ranks."""

    spec: runner_pb2.RunnerSpec
    place: Place
    folder: SharedFolder
    socket_path: str
    beat_paths: dict[int, Path]  # by rank
    confinement: Confinement
    # Called before any program of the user's may start: an interpreter that the user has chosen, or the startup hook.
    on_begin: Callable[[], None]
    container: Container | None = None

    async def prepare(
        self, network: Network, nursery: NurseryClient, pump: LogPump, on_hook: Callable[[int], None]
    ) -> RankStart:
        """Raises HookFailed, and GanglineError `environment.*`. on_hook: called with the pid of the startup hook."""
        settled = settled_of(self.spec)
        self._check_notebook(settled)
        self._confine(nursery)
        directory = self._find_directory(settled.environment.working_directory)
        is_command = isinstance(parse_entrypoint(settled.entrypoint), Command)
        named = settled.environment.python
        if self.container is not None:
            interpreter = contained_interpreter(self.container, needs_library=not is_command)
        else:
            agent_id, user, run = self.place.agent_id, self.confinement.user, self._step_of(nursery)
            interpreter = await find_interpreter(named, agent_id, user, run, needs_library=not is_command)
        start = await self._plan(network, interpreter, directory)
        # Only after `_confine` may the ranks' user read its code.
        if is_file_of(self.confinement.user, HOOK_NAME, self.folder.code_path):
            start = await self._run_hook(start, interpreter, nursery, pump, on_hook, is_command=is_command)
        if is_command:
            return replace(start, environments={rank: _with_alias(each) for rank, each in start.environments.items()})
        if not start.program and not interpreter.is_agents:
            return replace(start, program=interpreter.rank_command())
        return start

    async def _run_hook(
        self,
        start: RankStart,
        interpreter: Interpreter,
        nursery: NurseryClient,
        pump: LogPump,
        on_hook: Callable[[int], None],
        *,
        is_command: bool,
    ) -> RankStart:
        """Returns the start with the variables and packages of the startup hook.

        On the machine, the hook gets a virtual environment of its own. A container is the attempt's own already.
        """
        network = start.network
        private = self.folder.packages_path
        own = {}
        if self.container is None:
            is_own = interpreter.is_agents
            private.mkdir(mode=0o700)
            if not is_own:
                self.confinement.give(private)
            interpreter = await make_private(interpreter, private, self._step_of(nursery))
            if is_own:
                self.confinement.give(private)
            start = await self._plan(network, interpreter, Path(start.directory))
            own = {"VIRTUAL_ENV": str(private)}
        self.confinement.give_file(self.folder.hook_listing_path)
        self.on_begin()
        change = await run_hook(
            nursery,
            pump,
            environment=start.environments[self.place.first_rank] | own,
            directory=self.folder.code_path,
            listing=self.folder.hook_listing_path,
            limit_seconds=settled_of(self.spec).hang_detection.start_seconds,
            on_up=on_hook,
        )
        # The packages of a container are not looked through: any hook may have changed them.
        is_fresh = self.container is not None or not interpreter.is_agents
        is_fresh = is_fresh or self._has_packages(private) or change.needs_fresh_process
        return _changed(start, change, interpreter.rank_command() if is_fresh and not is_command else [])

    def _step_of(self, nursery: NurseryClient) -> Run:
        """Returns the function that runs a command as the ranks' user, before the ranks."""
        environment = without_settings(self.confinement.settle(os.environ))

        async def run(command: Sequence[str]) -> tuple[str, str]:
            self.on_begin()
            return await run_step(nursery, command, environment, str(self.folder.code_path), STEP_SECONDS)

        return run

    def _has_packages(self, private: Path) -> bool:
        with rights_of(self.confinement.user):
            try:
                return has_packages(private)
            except (OSError, StopIteration):
                # The hook has changed its environment beyond recognition, so no rank is forked without it.
                return True

    def _confine(self, nursery: NurseryClient) -> None:
        """Gives the ranks what belongs to their user, and has the nursery confine every process that it starts."""
        self.confinement.make_groups(self.place.ranks)
        self.confinement.give_beats(self.beat_paths)
        self.folder.output_path.mkdir(mode=0o700, exist_ok=True)
        for folder in (self.folder.code_path, self.folder.output_path, self.folder.ranks_path):
            self.confinement.give(folder)
        nursery.confinement = self.confinement

    def _check_notebook(self, settled: Settled) -> None:
        """Raises GanglineError `environment.shared_notebook` where programs of other owners could open a notebook.

        Only the account that Jupyter runs as may connect to its socket. A token would be no boundary within an account.
        """
        if settled.task_kind is not TaskKind.NOTEBOOK or not self.spec.has_other_users:
            return
        rules = self.confinement.rules
        if rules.shares_user(self.spec.owner) and not rules.shared_notebooks:
            raise invalid(
                "environment.shared_notebook",
                f"a notebook on {self.place.agent_id} could be opened by the trials of other users, because they run "
                f"as the same account; let the agent run as root with rank_uids, give {self.spec.owner} a user of its "
                f"own in rank_users, or set shared_notebooks = true there",
            )

    def _find_directory(self, named: str) -> Path:
        """Returns the folder in which the ranks start."""
        directory = self.folder.code_path / named
        is_in_image = self.container is not None and Path(named).is_absolute()
        if not is_in_image and not is_folder_of(self.confinement.user, named or ".", self.folder.code_path):
            place = self.place.agent_id if Path(named).is_absolute() else "the code"
            text = f"environment.working_directory: there is no folder {named} in {place}"
            raise invalid("environment.no_directory", text)
        return directory

    def _find_gateway_tls(self) -> GatewayTls | None:
        named = self.folder.state.load_tls()
        if named is None:
            return None
        # An image has no file of the host.
        ca_file = named[0].ca_file if self.container is None else ""
        return GatewayTls(str(PeerName(GATEWAY, named[1])), ca_file)

    async def _plan(self, network: Network, interpreter: Interpreter, directory: Path) -> RankStart:
        num_threads = threads_per_rank(self.spec, self.place, len(os.sched_getaffinity(0)))
        base, programs_directory = await self._search_base(interpreter)
        gateway_tls = self._find_gateway_tls()
        environments = {
            rank: rank_environment(
                self.spec,
                self.place,
                network,
                rank,
                base=base,
                code_directory=str(self.folder.code_path),
                programs_directory=programs_directory,
                socket_path=self.socket_path,
                beat_path=str(self.beat_paths[rank]),
                num_threads=num_threads,
                gateway_tls=gateway_tls,
            )
            for rank in self.place.ranks
        }
        own = {OUTPUT_KEY: str(self.folder.output_path.absolute()), **self._task_variables()}
        environments = {rank: environment | own for rank, environment in environments.items()}
        return RankStart(environments, str(directory), num_threads, find_program(self.spec), network)

    async def _search_base(self, interpreter: Interpreter) -> tuple[dict[str, str], str]:
        """Returns the variables that the ranks inherit, and the folder that comes first in PATH. On the machine, PATH
        has only folders that the ranks' user may enter. The folders of a container are those of its image."""
        programs_directory = _programs_directory(interpreter)
        if self.container is not None:
            return dict(self.container.environment), programs_directory
        base = self.confinement.settle(os.environ)
        path = await self.confinement.keep_enterable(base.get("PATH", os.defpath))
        base["PATH"] = path or os.defpath
        return base, await self.confinement.keep_enterable(programs_directory)

    def _task_variables(self) -> dict[str, str]:
        """Returns the variables of gangline/domain/task_environment.py; none for a training."""
        task = settled_of(self.spec).task
        if task is None:
            return {}
        return {
            TASK_PYTHON: sys.executable,
            TASK_SOCKET: str(self.folder.task_socket_path.absolute()),
            TASK_KEYS: str(self.folder.task_key_path.absolute()),
            TASK_IDLE_SECONDS: str(task.idle_seconds or ""),
        }


def _programs_directory(interpreter: Interpreter) -> str:
    """Returns the folder that comes first in PATH; empty for an interpreter that PATH itself finds."""
    return str(interpreter.programs_directory) if interpreter.path.is_absolute() else ""


def _with_alias(environment: dict[str, str]) -> dict[str, str]:
    """Returns the environment of a command, in whose Python processes `import determined` finds Gangline. Ranks that
    Python runs install the alias themselves."""
    entries = [entry for entry in (SHIM, environment.get("PYTHONPATH", "")) if entry]
    return environment | {"PYTHONPATH": os.pathsep.join(entries)}


def _changed(start: RankStart, change: EnvironmentChange, command: list[str]) -> RankStart:
    """Returns the start with the variables of the hook. command: of ranks that cannot be forked any more."""
    environments = {rank: change.apply(environment) for rank, environment in start.environments.items()}
    threads = change.changed.get("OMP_NUM_THREADS", "")
    num_threads = int(threads) if threads.isdigit() and int(threads) else start.num_threads
    return RankStart(environments, start.directory, num_threads, start.program or command, start.network)
