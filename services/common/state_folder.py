"""The files on an agent's disk that the agent and its trial runners share: their names, writers, modes and locks.

| in <state-dir>   | written by | holds                                                                 |
|------------------|------------|-----------------------------------------------------------------------|
| agent.lock       | agent      | flock'ed by the agent while it lives; its pid                         |
| allocations/<id> | both       | one folder for each allocation                                        |
| ended/<id>       | agent      | the newest folders of forgotten allocations                           |
| gateways.json    | agent      | the addresses of the gateways, as the leader last named them          |
| tls.json         | agent      | the paths of the files of TLS, and the cluster's name; absent without |
| code/            | runner     | verified archives of code, which the runners share                    |
| homes/<uid>      | runner     | the homes of accounts for owners                                      |
| spool/           | runner     | the records that no gateway has taken yet (trial_runner/delivery/)    |

| in allocations/<id> | written by | mode | holds                                                          |
|---------------------|------------|------|----------------------------------------------------------------|
| record.json         | agent      | 0600 | the journal's record, replaced atomically; the runner reads    |
|                     |            |      | the order to stop in it                                        |
| spec.json           | agent      | 0600 | RunnerSpec as proto JSON, with the allocation's token          |
| runner.log          | agent      | 0600 | the output of the runner                                       |
| alive               | agent      | 0600 | flock'ed from before the fork of the runner until it ends      |
| lock                | runner     | 0600 | flock'ed by the runner while it lives; `gangline down` finds   |
|                     |            |      | runners by it                                                  |
| metrics.address     | runner     | 0600 | "host:port" of the runner's /metrics, which the agent checks   |
| exit.json           | runner     | 0600 | AllocationStatus as proto JSON, written atomically as the last |
|                     |            |      | step; in shared memory if this disk refuses it                 |
| outcome.json        | runner     | 0600 | how the ranks have ended, for the agent of a runner that dies  |
|                     |            |      | before it writes exit.json                                     |
| nursery.pid         | runner     | 0600 | the process with which the ranks die; it leads a process group |
| ranks.pid           | runner     | 0600 | the ranks; each leads a process group                          |
| container.json      | runner     | 0600 | program and name of the ranks' container, until it is removed  |
| registry/           | runner     | 0700 | the login at the registry of the container's image             |
| code/               | runner     |      | the experiment's code, in which the ranks run                  |
| gangline-output/    | runner     | 0700 | the output folder of the ranks                                 |
| passwd              | runner     | 0644 | the accounts that the ranks see, if theirs is one for an owner |
| authorized_keys     | runner     | 0644 | the key with which the owner of a shell opens it               |
| rank<n>.beat        | runner     |      | the progress of each rank; the rank writes it too              |
| ranks/              | runner     | 0700 | its socket to the ranks, and their temporary folders; removed  |
|                     |            |      | when the runner ends                                           |

Where the table has no mode, the umask decides. This module owns how each shared file is opened, locked, written and
read. It decides nothing. Agent and trial runner call it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import structlog
from google.protobuf import json_format
from google.protobuf.message import Message

from gangline.domain.peer_name import PeerName
from gangline.domain.storage.output import FOLDER_NAME
from gangline.errors import invalid
from gangline.launch import beat_file
from gangline.protocol.dialer import Dialer, TlsFiles, TlsTarget
from gangline.v1 import agent_pb2, runner_pb2
from services.common.disk import sync_folder, write_atomic
from services.common.disk_fault import has_spare, read_spare, remove_spare, write_spare
from services.common.foreign_file import read_foreign

# The longest address is an IPv6 one with its port.
_MAX_ADDRESS_BYTES = 64
M = TypeVar("M", bound=Message)
log = structlog.get_logger(__name__)


def take_flock(path: Path) -> int:
    """Makes the file if needed. Returns a descriptor that holds its flock, not inherited on exec.

    Raises BlockingIOError if another process holds the flock, and OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The state directory of one agent."""

    path: Path

    @property
    def lock_path(self) -> Path:
        return self.path / "agent.lock"

    @property
    def allocations(self) -> Path:
        return self.path / "allocations"

    @property
    def ended(self) -> Path:
        return self.path / "ended"

    @property
    def code_archives(self) -> Path:
        return self.path / "code"

    @property
    def homes(self) -> Path:
        """The homes of accounts for owners, by their numbers."""
        return self.path / "homes"

    @property
    def spools(self) -> Path:
        return self.path / "spool"

    @property
    def _gateways_path(self) -> Path:
        return self.path / "gateways.json"

    def write_gateways(self, addresses: Sequence[str]) -> None:
        """Writes where the gateways are; called by the agent. Raises OSError."""
        write_atomic(self._gateways_path, json.dumps(list(addresses)), mode=0o600, is_durable=False)

    def load_gateways(self) -> list[str]:
        """Returns where the gateways were when the agent last heard of any; empty if it never did."""
        try:
            addresses = json.loads(self._gateways_path.read_text())
        except (OSError, ValueError):
            return []
        return [str(address) for address in addresses] if isinstance(addresses, list) else []

    @property
    def _tls_path(self) -> Path:
        return self.path / "tls.json"

    def write_tls(self, files: TlsFiles | None, cluster: str) -> None:
        """Writes with which files the runners connect; called by the agent. files: None without TLS. Raises OSError."""
        if files is None:
            self._tls_path.unlink(missing_ok=True)
            return
        write_atomic(self._tls_path, json.dumps({**asdict(files), "cluster": cluster}), mode=0o600, is_durable=True)

    def load_tls(self) -> tuple[TlsFiles, str] | None:
        """Returns the files and the cluster's name; None without TLS. Raises GanglineError `tls.unreadable_file`."""
        return _load_tls(self._tls_path)

    def dialer(self, role: str) -> Dialer:
        """Returns what opens channels to the services of a role. A runner that lives while an agent turns TLS on or off
        connects in the new way from then on."""
        return _dialer(self._tls_path, role)

    @property
    def drainer_lock_path(self) -> Path:
        return self.spools / ".drainer.lock"

    def has_drainer(self) -> bool:
        """Returns whether a drainer runs, by its flock. Raises OSError."""
        return _is_locked(self.drainer_lock_path)

    @property
    def drain_token_path(self) -> Path:
        return self.path / "drain.token"

    def save_drain_token(self, token: str) -> None:
        """Writes the token under which the drainer delivers records of ended attempts. Only the agent's user may read
        it."""
        write_atomic(self.drain_token_path, token, mode=0o600)

    def load_drain_token(self) -> str:
        """Returns the token; empty if an agent of an earlier version has written none."""
        try:
            return self.drain_token_path.read_text().strip()
        except OSError:
            return ""

    def has_agent(self) -> bool:
        """Returns whether the agent lives, by the pid in agent.lock.

        The flock itself is not tried, because holding it for a moment could keep an agent from starting.
        """
        try:
            pid = int(self.lock_path.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return False
        return Path(f"/proc/{pid}").exists()


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """The folder of one allocation."""

    path: Path

    @property
    def allocation_id(self) -> str:
        return self.path.name

    @property
    def state(self) -> StateFolder:
        return StateFolder(self.path.parent.parent)

    @property
    def record_path(self) -> Path:
        return self.path / "record.json"

    @property
    def spec_path(self) -> Path:
        return self.path / "spec.json"

    @property
    def exit_path(self) -> Path:
        return self.path / "exit.json"

    @property
    def outcome_path(self) -> Path:
        return self.path / "outcome.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.address"

    @property
    def nursery_path(self) -> Path:
        return self.path / "nursery.pid"

    @property
    def rank_pids_path(self) -> Path:
        return self.path / "ranks.pid"

    @property
    def log_path(self) -> Path:
        return self.path / "runner.log"

    @property
    def ranks_path(self) -> Path:
        return self.path / "ranks"

    @property
    def task_socket_path(self) -> Path:
        """The socket of a shell or a notebook, in the folder of its account."""
        return self.ranks_path / "task.sock"

    @property
    def task_key_path(self) -> Path:
        return self.path / "authorized_keys"

    @property
    def code_path(self) -> Path:
        return self.path / "code"

    @property
    def output_path(self) -> Path:
        """The output folder of the ranks. Its files come into the storage when the ranks have ended."""
        return self.path / FOLDER_NAME

    @property
    def forgotten_path(self) -> Path:
        """The place of this folder once the agent has forgotten the allocation."""
        return self.state.ended / self.allocation_id

    @property
    def packages_path(self) -> Path:
        """The virtual environment into which a startup hook installs packages."""
        return self.path / "python"

    @property
    def hook_listing_path(self) -> Path:
        """The variables of a startup hook at its end."""
        return self.path / "hook.environ"

    @property
    def accounts_path(self) -> Path:
        """The list of accounts that ranks of an account for an owner see."""
        return self.path / "passwd"

    @property
    def container_path(self) -> Path:
        return self.path / "container.json"

    @property
    def registry_path(self) -> Path:
        return self.path / "registry"

    @property
    def alive_path(self) -> Path:
        return self.path / "alive"

    @property
    def lock_path(self) -> Path:
        return self.path / "lock"

    def beat_path(self, rank: int) -> Path:
        return self.path / beat_file.file_name(rank)

    def write_spec(self, spec: runner_pb2.RunnerSpec) -> None:
        """Writes spec.json; called by the agent. A power cut may lose it."""
        _write_message(self.spec_path, spec, is_durable=False)

    def read_spec(self) -> runner_pb2.RunnerSpec:
        """Returns the content of spec.json. Raises OSError if it cannot be read, and ValueError if it is no spec."""
        return _parse(self.spec_path.read_text(), runner_pb2.RunnerSpec())

    def write_record(self, text: str, *, is_durable: bool) -> None:
        """Writes record.json; called by the agent. is_durable: the record also survives a power cut."""
        write_atomic(self.record_path, text, mode=0o600, is_durable=is_durable)
        if is_durable:
            sync_folder(self.path.parent)

    def read_stop(self) -> dict[str, object]:
        """Returns the fields of the order to stop in the agent's record: kind, reason, deadline_at. Returns no fields
        if there is no order, or if the record cannot be read."""
        try:
            record = json.loads(self.record_path.read_text())
        except (OSError, ValueError):
            return {}
        stop = record.get("stop") if isinstance(record, dict) else None
        return stop if isinstance(stop, dict) else {}

    def write_exit(self, status: agent_pb2.AllocationStatus) -> None:
        """Writes exit.json as a whole or not at all, and returns only once it is on the disk; called by the runner.

        If the disk refuses it, it is written to the place that `load_exit` reads next (`disk_fault.spare_path`). Raises
        OSError if neither place takes it.
        """
        _write_report(self.exit_path, status)

    def load_exit(self) -> agent_pb2.AllocationStatus | None:
        """Returns the runner's report; None if it left none. Raises ValueError if it cannot be read."""
        return _load_report(self.exit_path)

    def write_outcome(self, status: agent_pb2.AllocationStatus) -> None:
        """Writes outcome.json, as `write_exit` writes exit.json. It says how the ranks have ended while the runner
        still has work to do, and counts only if no exit.json follows."""
        _write_report(self.outcome_path, status)

    def load_outcome(self) -> agent_pb2.AllocationStatus | None:
        """Returns what `write_outcome` wrote; None if there is none. Raises ValueError if it cannot be read."""
        return _load_report(self.outcome_path)

    def remove_spares(self) -> None:
        """Removes the reports that are in shared memory because the disk refused them."""
        for path in (self.exit_path, self.outcome_path):
            remove_spare(path)

    @property
    def has_exit(self) -> bool:
        """Whether the runner has left its report, here or in shared memory beside a disk that refused it."""
        return self.exit_path.exists() or has_spare(self.exit_path)

    def write_metrics_address(self, address: str) -> None:
        """Writes where the runner serves its metrics. Raises OSError."""
        write_atomic(self.metrics_path, address, mode=0o600, is_durable=False)

    def load_metrics_address(self) -> str:
        """Returns the address; empty if there is none. A rank with the runner's account may have written it."""
        try:
            return read_foreign(self.metrics_path, _MAX_ADDRESS_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def write_nursery_pid(self, pid: int) -> None:
        """Writes the pid by which the agent finds the nursery, and with it the store, when the runner is gone."""
        _write_pids(self.nursery_path, [pid])

    def write_rank_pids(self, pids: Iterable[int]) -> None:
        """Writes the pids of the ranks. By them the agent finds the processes that the ranks have started, when runner
        and nursery are gone."""
        _write_pids(self.rank_pids_path, pids)

    def write_container(self, program: Sequence[str], name: str) -> None:
        """Writes the name by which the agent removes the container of a runner that died. Raises OSError."""
        text = json.dumps({"program": list(program), "name": name})
        write_atomic(self.container_path, text, mode=0o600, is_durable=False)

    def load_container(self) -> tuple[list[str], str] | None:
        """Returns program and name of a container that may be left; None if there is none."""
        try:
            fields = json.loads(self.container_path.read_text())
            return [str(part) for part in fields["program"]], str(fields["name"])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def forget_container(self) -> None:
        self.container_path.unlink(missing_ok=True)

    def open_log(self) -> int:
        """Returns a descriptor of runner.log, which the agent hands to the runner as its output."""
        return os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def take_lock(self) -> int:
        """Returns a descriptor that holds the runner's lock until this process ends. Raises the errors of
        `take_flock`."""
        return take_flock(self.lock_path)

    def hold_alive(self) -> int:
        """Returns a descriptor of the flock'ed file `alive`.

        The runner inherits it. Otherwise a restarted agent could take the runner for absent in the moment between the
        fork and the runner's own lock. Raises BlockingIOError if a runner of this allocation lives.
        """
        return take_flock(self.alive_path)

    def is_locked(self) -> bool:
        """Whether a runner of this allocation lives.

        `alive` is tested first. A test of the runner's own lock while a runner starts could make that runner believe
        that another one holds it.
        """
        return _is_locked(self.alive_path) or _is_locked(self.lock_path)


@lru_cache(maxsize=8)
def _dialer(path: Path, role: str) -> Dialer:
    """Returns one for each role. To read and check the files again takes as long as a handshake."""
    return Dialer(partial(_find_target, path, role))


def _find_target(path: Path, role: str) -> TlsTarget | None:
    named = _load_tls(path)
    return None if named is None else TlsTarget(named[0], str(PeerName(role, named[1])))


def _load_tls(path: Path) -> tuple[TlsFiles, str] | None:
    try:
        content = json.loads(path.read_text())
        cluster = str(content.pop("cluster"))
        return TlsFiles(**content), cluster
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as failure:
        raise invalid("tls.unreadable_file", f"cannot use {path}: {failure}; restart the agent") from failure


def _format(message: Message) -> str:
    return json_format.MessageToJson(message, indent=None)


def _write_message(path: Path, message: Message, *, is_durable: bool) -> None:
    write_atomic(path, _format(message), mode=0o600, is_durable=is_durable)


def _write_report(path: Path, status: agent_pb2.AllocationStatus) -> None:
    try:
        _write_message(path, status, is_durable=True)
    except OSError as error:
        log.error("cannot write the report; leaving it in shared memory", path=str(path), error=str(error))
        write_spare(path, _format(status))


def _load_report(path: Path) -> agent_pb2.AllocationStatus | None:
    try:
        text = _read_if_there(path)
        if text is None:
            text = read_spare(path)
    except OSError as error:
        raise ValueError(str(error)) from error
    if text is None:
        return None
    status = _parse(text, agent_pb2.AllocationStatus())
    if not status.HasField("exit"):
        raise ValueError("it names no exit")
    return status


def _write_pids(path: Path, pids: Iterable[int]) -> None:
    write_atomic(path, "".join(f"{pid}\n" for pid in pids), mode=0o600, is_durable=False)


def _read_if_there(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _parse(text: str, message: M) -> M:
    try:
        return json_format.Parse(text, message, ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise ValueError(f"no {type(message).__name__} in JSON: {error}") from error


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
