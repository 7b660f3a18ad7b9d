"""Two clusters that most tests of a worker share, as starting one takes half a minute of a core. Tests that stop or
change services for good, count what there is, or need settings have a cluster of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def _cluster_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("one"), agents=1, slots=2) as running:
        yield running


@pytest.fixture(scope="session")
def _cluster_of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("two"), agents=2, slots=2) as running:
        yield running


@pytest.fixture(scope="module")
def one_agent(_cluster_of_one: Cluster) -> Iterator[Cluster]:
    """A cluster of one agent with two slots, on which nothing runs."""
    yield _cluster_of_one
    _end_what_is_left(_cluster_of_one)


@pytest.fixture(scope="module")
def two_agents(_cluster_of_two: Cluster) -> Iterator[Cluster]:
    """A cluster of two agents with two slots each, on which nothing runs."""
    yield _cluster_of_two
    _end_what_is_left(_cluster_of_two)


def _end_what_is_left(cluster: Cluster) -> None:
    """Ends what a failed test has left, so that it fails alone."""
    with cluster.connect() as client:
        for experiment in client.list_experiments(archived=None):
            if experiment.outcome is None:
                client.kill_experiment(experiment.id)
                client.wait_experiment(experiment.id, 60)
