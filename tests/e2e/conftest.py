"""Two clusters that files of tests share, and the variable with which programs of an experiment start warm. Tests that
stop or change services for good, count what there is, or need settings have a cluster of their own.

A start and an end take about a second of a processor, and so does a minute of an idle cluster. A cluster therefore ends
when the next file of its worker begins with a test that does not use it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.support import warm_program, warm_python
from tests.support.cluster import Cluster, running_cluster


class _SharedClusters:
    """The clusters of this worker that run, by the name of their fixture."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Cluster, AbstractContextManager[Cluster]]] = {}

    def start(self, name: str, factory: pytest.TempPathFactory, agents: int) -> Cluster:
        """Returns the cluster that runs, else a new one with two slots on each agent."""
        if name not in self._running:
            context = running_cluster(factory.mktemp(name[:3]), agents=agents, slots=2)
            self._running[name] = (context.__enter__(), context)
        return self._running[name][0]

    def end_all_but(self, names: list[str]) -> None:
        for name in [name for name in self._running if name not in names]:
            _, context = self._running.pop(name)
            context.__exit__(None, None, None)


_shared = _SharedClusters()


@pytest.fixture(scope="session")
def _all_ended() -> Iterator[None]:
    """Ends what runs after a session that was interrupted."""
    yield
    _shared.end_all_but([])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Any:
    """The fixtures of a file keep its clusters, also while one of its tests uses none."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        _shared.end_all_but(getattr(nextitem, "fixturenames", []))
    return result


@pytest.fixture(scope="module")
def one_agent(_all_ended: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one agent with two slots, on which nothing runs."""
    cluster = _shared.start("one_agent", tmp_path_factory, agents=1)
    yield cluster
    _end_what_is_left(cluster)


@pytest.fixture(scope="module")
def two_agents(_all_ended: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two agents with two slots each, on which nothing runs."""
    cluster = _shared.start("two_agents", tmp_path_factory, agents=2)
    yield cluster
    _end_what_is_left(cluster)


@pytest.fixture(scope="session")
def warm_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The environment variable of an experiment whose python3 and torchrun shall start warm."""
    ranks = warm_program.WarmPair(warm_program.folder()).ranks()
    return f"PATH={warm_python.install_commands(tmp_path_factory.mktemp('warm'), ranks)}:{os.environ['PATH']}"


def _end_what_is_left(cluster: Cluster) -> None:
    """Ends what a failed test has left, so that it fails alone."""
    with cluster.connect() as client:
        for experiment in client.list_experiments(archived=None):
            if experiment.outcome is None:
                client.kill_experiment(experiment.id)
                client.wait_experiment(experiment.id, 60)
