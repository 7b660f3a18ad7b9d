"""A cluster put together service by service, for what `gangline up` does not build: two schedulers, hosts in network
namespaces.

Owns the command lines (those of `gangline up`, with what a test changes) and every process it starts. Without a
supervisor: what a test kills stays dead until the test starts it again. Services that need no command in front of them,
or one that only enters namespaces, are forks (warm_program.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from gangline.certificate.folder import CertificateFolder
from gangline.client import Client
from gangline.local.etcd_program import find_etcd_binary
from gangline.local.identity import stop
from gangline.local.layout import Layout
from gangline.local.plan import ClusterPlan
from gangline.local.port import HOST
from gangline.local.program import MARKER, Program, make_programs
from gangline.local.service import read_tail
from gangline.local.shutdown import find_cluster_processes
from tests.support import warm_program
from tests.support.forked_service import ForkedService
from tests.support.gated_trial import wait_for
from tests.support.namespace import held_namespaces
from tests.support.port import own_ports
from tests.support.tls import flags_of
from tests.support.warm_program import WarmPair

READY_SECONDS = 60.0


@dataclass
class Fleet:
    """Services of a cluster that a test starts one by one."""

    root: Path  # data directory
    num_agents: int = 2
    slots: int = 2
    host: str = HOST  # address under which services are reached, and on which alone they listen
    certificates: CertificateFolder | None = None  # of a cluster with TLS
    programs: dict[str, Program] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes] | ForkedService] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layout.create()
        plan = ClusterPlan(self.num_agents, str(self.slots))
        ports = own_ports(len(plan.port_names))
        plan = replace(plan, port_by_name=dict(zip(plan.port_names, ports, strict=True)))
        for program in make_programs(self.layout, plan, sys.executable, find_etcd_binary()):
            self.programs[program.name] = _moved(program, self.host) if program.kind != "etcd" else program
        self._tell_agents(self.programs["scheduler"].addresses["grpc"])
        if self.certificates is not None:
            for name, program in self.programs.items():
                for flag, value in flags_of(self.certificates, name if program.kind != "agent" else f"agent-{name}"):
                    if program.kind != "etcd":
                        self.set_flag(name, flag, value)

    @property
    def layout(self) -> Layout:
        return Layout(self.root)

    @property
    def etcd_address(self) -> str:
        return self.programs["etcd"].addresses["client"]

    def connect(self) -> Client:
        ca_file = str(self.certificates.ca_path) if self.certificates is not None else None
        return Client(self.programs["gateway"].addresses["grpc"], self.layout.read_admin_token(), ca_file=ca_file)

    def add_scheduler(self) -> None:
        """A second one, "scheduler-2", and agents that know of both."""
        first = self.programs["scheduler"]
        ports = own_ports(len(first.addresses))
        addresses = {kind: f"{self.host}:{port}" for kind, port in zip(first.addresses, ports, strict=True)}
        words = first.arguments
        for kind, address in addresses.items():
            words = _with(words, first.addresses[kind], address)
        words = _with(words, str(self.layout.ready("scheduler")), str(self.layout.ready("scheduler-2")))
        self.programs["scheduler-2"] = replace(first, name="scheduler-2", arguments=words, addresses=addresses)
        self._tell_agents(f"{first.addresses['grpc']},{addresses['grpc']}")

    def set_flag(self, name: str, flag: str, value: str) -> None:
        """Changes it or adds it, before the service starts."""
        words = list(self.programs[name].arguments)
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
        self.programs[name] = replace(self.programs[name], arguments=tuple(words))

    def start_control_plane(self) -> None:
        self.start("etcd")
        self.start(*(name for name, program in self.programs.items() if program.kind in ("scheduler", "gateway")))

    def start(self, *names: str, inside: Sequence[str] = (), prefix: Sequence[str] = ()) -> None:
        """Returns once they serve. inside: a command such as ip netns exec, whose network and mounts they shall have.
        prefix: a command that runs the program and changes more than these; then no service is a fork."""
        for name in names:
            self.spawn(name, inside, prefix)
        for name in names:
            self.wait_ready(name)

    def spawn(self, name: str, inside: Sequence[str] = (), prefix: Sequence[str] = ()) -> None:
        program, log = self.programs[name], self.layout.log(name)
        for left in (self.layout.ready(name), *program.sockets):
            left.unlink(missing_ok=True)
        environment = {**os.environ, MARKER: str(self.root), **dict(program.environment)}
        if not prefix and program.kind != "etcd":
            pair = WarmPair(warm_program.folder())
            with held_namespaces(inside) if inside else nullcontext() as place:
                self.processes[name] = pair.start(program.arguments, environment, self.root, log, place)
            return
        with log.open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [*inside, *prefix, *program.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.root,
                env=environment,
                start_new_session=True,
            )

    def wait_ready(self, name: str) -> None:
        process = self.processes[name]

        def is_ready() -> bool:
            assert process.poll() is None, f"{name} exited with {process.returncode}: {self.log(name)}"
            return self.programs[name].kind == "etcd" or self.layout.ready(name).exists()

        wait_for(is_ready, f"{name} serving", READY_SECONDS)

    def log(self, name: str) -> str:
        """The end of it."""
        return read_tail(self.layout.log(name), 4000)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """With SIGKILL it is gone on return; other signals are only sent."""
        self.processes[name].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[name].wait(10)

    def _tell_agents(self, schedulers: str) -> None:
        for name, program in list(self.programs.items()):
            if program.kind == "agent":
                self.set_flag(name, "--scheduler-addresses", schedulers)

    def close(self) -> None:
        """Ends everything that was started for the data directory."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        stop(find_cluster_processes(self.layout), 10)
        for process in self.processes.values():
            process.wait(10)


def _moved(program: Program, host: str) -> Program:
    """The same on another address of this machine; etcd stays where it was."""
    if host == HOST:
        return program
    words = program.arguments
    for address in program.addresses.values():
        words = _with(words, address, address.replace(HOST, host))
    words = tuple(host if word == HOST else word for word in words)
    if program.kind in ("scheduler", "gateway"):
        # The networks of a test are in namespaces of this machine.
        words = (*words, "--allow-plaintext")
    addresses = {kind: address.replace(HOST, host) for kind, address in program.addresses.items()}
    return replace(program, arguments=words, addresses=addresses)


def _with(words: Sequence[str], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if word == old else word for word in words)
