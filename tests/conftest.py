"""How long hypothesis may take, and which examples it tries; how tests show what services log in their process; what
garbage collections leave out; where a test run has its warm processes; in which order workers run files; and that no
test leaves another working directory behind."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings

from tests.support import examples, file_order, warm_program

# A shell that starts the tests in the background has SIGINT ignored, and what tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast an example runs says how busy the machine is, and nothing of the code. The build machine tries the same
# examples each time, so that a change breaks it and not chance; everywhere else new ones are tried.
settings.register_profile(
    "gangline",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=examples.are_fixed(),
    max_examples=examples.examples(examples.USUAL),
)
settings.load_profile("gangline")
# For `make mutants`: the first example that fails is enough, and a second run with the same seed has the same result.
settings.register_profile(
    "mutants",
    settings.get_profile("gangline"),
    phases=(Phase.explicit, Phase.generate),
    derandomize=True,
    database=None,
)

# By default structlog renders the local variables of every frame of an exception, which takes a second or more.
_plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _plain])


# A fork, such as a worker of torch's data loader, would collect what earlier tests of its process have left. For a
# channel of grpc.aio it would wait, at a full core and for ever, for a thread that only the parent has.
os.register_at_fork(after_in_child=gc.freeze)

_WARM_FOLDER = "warm_folder"
_WORKING_DIRECTORY = Path.cwd()


def pytest_configure(config: pytest.Config) -> None:
    """The process that hands out the tests, or runs them all, owns the folder."""
    told = getattr(config, "workerinput", {}).get(_WARM_FOLDER)
    if told is None:
        folder = warm_program.WarmFolder()
        config.add_cleanup(folder.close)
        told = folder.path
    warm_program.use_folder(told)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[_WARM_FOLDER] = warm_program.folder()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: file_order.place_of(item.nodeid, file_order.known_seconds()))


def pytest_collection_finish() -> None:
    """What all tests and the modules that they import consist of stays to the end. Garbage collections need not visit
    its millions of objects each time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_working_directory() -> Iterator[None]:
    """Fails the test that leaves its process in another directory, or whose fixtures do. Otherwise a test that runs
    later in the same process would fail."""
    yield
    left_in = Path.cwd()
    if left_in != _WORKING_DIRECTORY:
        os.chdir(_WORKING_DIRECTORY)
        pytest.fail(f"the test or a fixture of it changes the working directory to {left_in}, and not back")
