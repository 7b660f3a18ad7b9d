"""The start of Jupyter: which program, and with which options."""

from __future__ import annotations

import pytest

from gangline.launch.notebook import find_command, plan_options

ENVIRONMENT = {"DET_TASK_ID": "12.1", "GANGLINE_TASK_IDLE_SECONDS": ""}


@pytest.mark.parametrize(
    ("programs", "command"),
    [
        ([], []),
        (["jupyter"], ["/bin/jupyter", "lab"]),
        (["jupyter", "jupyter-lab", "jupyter-notebook"], ["/bin/jupyter", "lab"]),
        (["jupyter", "jupyter-notebook"], ["/bin/jupyter", "notebook"]),
    ],
)
def test_the_application_that_is_there(programs: list[str], command: list[str]) -> None:
    assert find_command(lambda name: f"/bin/{name}" if name in programs else None) == command


def test_it_listens_on_a_socket_of_its_account_below_its_path() -> None:
    options = plan_options("/x/task.sock", ENVIRONMENT, is_root=False)
    assert {"--ServerApp.sock=/x/task.sock", "--ServerApp.sock_mode=0600", "--ServerApp.base_url=/proxy/12/"} <= set(
        options
    )
    assert not any("port" in option or "ip=" in option for option in options)
    assert "--allow-root" not in options
    assert not any("timeout" in option for option in options)


def test_idle_kernels_and_then_the_server_end() -> None:
    options = plan_options("/x", {**ENVIRONMENT, "GANGLINE_TASK_IDLE_SECONDS": "30.0"}, is_root=True)
    assert options[-4:] == [
        "--allow-root",
        "--ServerApp.shutdown_no_activity_timeout=30",
        "--MappingKernelManager.cull_idle_timeout=30",
        "--MappingKernelManager.cull_interval=30",
    ]
