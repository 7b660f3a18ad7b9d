"""The clauses about a local cluster that does not answer, and the command that brings it back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gangline.client.attempts import explain
from gangline.errors import GanglineError, unavailable
from gangline.local.identity import Identity, identify
from gangline.local.layout import Layout
from gangline.local.outage import Space, describe_outage, say_shortage
from gangline.local.plan import ClusterPlan
from gangline.local.process_table import ProcessTable, ServiceEntry
from gangline.login import Login
from tests.support.held_lock import held_lock

ROOT = Path("/data/c")


class Refused(grpc.RpcError):
    """A connection to a port on which nothing listens."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "failed to connect to all addresses; last error: UNKNOWN: Connection refused (111)"

    def trailing_metadata(self) -> tuple[()]:
        return ()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "a b")
    layout.create()
    layout.plan.write_text(ClusterPlan(1, "auto", {}).to_json())
    return layout


@pytest.fixture
def locked(layout: Layout) -> Iterator[Layout]:
    """The data directory of a supervisor that lives."""
    with held_lock(layout):
        yield layout


def test_cluster_that_does_not_run_names_the_command_that_starts_it_as_it_was(layout: Layout) -> None:
    assert describe_outage(layout.root) == (
        f"the local cluster in {layout.root} does not run; start it with "
        f"`gangline up --agents 1 --slots auto --data-dir '{layout.root}'`"
    )
    layout.plan.write_text("{")
    assert f"`gangline up --data-dir '{layout.root}'`" in describe_outage(layout.root)


def test_directory_that_is_gone(tmp_path: Path) -> None:
    assert describe_outage(tmp_path / "c") == (
        f"the local cluster in {tmp_path}/c is gone with its directory; start a new one with `gangline up`"
    )


def test_services_that_do_not_run_are_named(locked: Layout) -> None:
    own = identify(os.getpid())
    assert own is not None
    entries = (
        ServiceEntry("etcd", "etcd", "running", own.pid, own.start_ticks),
        # The table of a supervisor that cannot write still has a process that has ended.
        ServiceEntry("gateway", "gateway", "running", own.pid, own.start_ticks - 1),
        ServiceEntry("agent-1", "agent", "restarting", restarts=3, last_exit="exited with 1"),
    )
    ProcessTable(Identity(1, 1), entries[:1]).write(locked.processes)
    assert describe_outage(locked.root) == ""
    ProcessTable(Identity(1, 1), entries).write(locked.processes)
    assert describe_outage(locked.root) == (
        "gateway (gone), agent-1 (restarting, exited with 1) do not run now; see `gangline status`"
    )


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Space(64 << 20, has_files=True), ""),
        (
            Space(63 << 20, has_files=True),
            "the file system of /data/c has 63 MiB left and etcd needs 64 MiB; free space there",
        ),
        (Space(4096, has_files=True), "the file system of /data/c is full; free space there"),
        (Space(1 << 40, has_files=False), "the file system of /data/c takes no more files; delete some there"),
    ],
)
def test_shortage_of_space(space: Space, words: str) -> None:
    assert say_shortage(space, ROOT) == words


def test_failed_call_to_a_local_cluster_says_why(layout: Layout) -> None:
    login = Login("127.0.0.1:9", "t", data_directory=str(layout.root))
    error = explain(Refused(), login, "the gateway at 127.0.0.1:9")
    reason = describe_outage(layout.root)
    assert (error.code, error.message) == (
        "rpc.unreachable",
        f"cannot reach the gateway at 127.0.0.1:9: nothing listens there; {reason}",
    )
    answer = unavailable("gateway.no_leader", "no scheduler leads")
    assert explain(Refused(), login, "it", answer).message == f"no scheduler leads; {reason}"
    wrong = GanglineError("experiment.unknown", "there is no experiment 1")
    assert explain(Refused(), login, "it", wrong) is wrong


def test_failed_call_to_a_local_cluster_that_runs_names_status(locked: Layout) -> None:
    local = Login("127.0.0.1:9", "t", data_directory=str(locked.root))
    message = "cannot reach the gateway: nothing listens there; "
    assert explain(Refused(), local, "the gateway").message == f"{message}see `gangline status`"
    other = explain(Refused(), Login("gpu1:9", "t"), "the gateway")
    assert other.message == f"{message}check the address and that the service runs"
