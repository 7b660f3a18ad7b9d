"""Starts Jupyter as the program of a notebook: on the socket of its trial runner, below its path at the gateway.

The kernel lets only this account connect to the socket, and the gateway only the notebook's owner and administrators.
So Jupyter asks for no token of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping

from gangline.domain.task_environment import TASK_ID, TASK_IDLE_SECONDS, TASK_SOCKET
from gangline.unix_socket import LONGEST_ADDRESS_BYTES

NO_JUPYTER = (
    "error: this environment has no jupyter; install it where environment.python points, or else into the agent's "
    "Python: pip install jupyterlab"
)


def find_command(which: Callable[[str], str | None]) -> list[str]:
    """Returns Jupyter's program and the application; empty where there is none. which: finds a program on the path."""
    jupyter = which("jupyter")
    if jupyter is None:
        return []
    has_only_notebook = which("jupyter-notebook") is not None and which("jupyter-lab") is None
    return [jupyter, "notebook" if has_only_notebook else "lab"]


def plan_options(socket_path: str, environment: Mapping[str, str], *, is_root: bool) -> list[str]:
    """Returns Jupyter's options. socket_path: at most as long as the kernel takes."""
    experiment_id = environment[TASK_ID].partition(".")[0]
    options = [
        "--no-browser",
        f"--ServerApp.sock={socket_path}",
        "--ServerApp.sock_mode=0600",
        f"--ServerApp.base_url=/proxy/{experiment_id}/",
        "--ServerApp.allow_remote_access=True",
        "--IdentityProvider.token=",
        "--PasswordIdentityProvider.hashed_password=",
    ]
    if is_root:
        options.append("--allow-root")
    if idle := environment.get(TASK_IDLE_SECONDS):
        seconds = max(1, round(float(idle)))
        options += [
            f"--ServerApp.shutdown_no_activity_timeout={seconds}",
            f"--MappingKernelManager.cull_idle_timeout={seconds}",
            f"--MappingKernelManager.cull_interval={min(60, seconds)}",
        ]
    return options


def main() -> None:
    command = find_command(shutil.which)
    if not command:
        print(NO_JUPYTER, file=sys.stderr)
        sys.exit(127)
    folder, name = os.path.split(os.environ[TASK_SOCKET])
    # Jupyter writes connection files with the keys of its kernels there.
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": os.path.join(folder, "jupyter")}  # noqa: PTH118
    path = os.environ[TASK_SOCKET]
    if len(os.fsencode(path)) > LONGEST_ADDRESS_BYTES:
        handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        os.set_inheritable(handle, True)
        path = f"/proc/self/fd/{handle}/{name}"
    options = plan_options(path, os.environ, is_root=os.geteuid() == 0)
    sys.stdout.flush()
    os.execve(command[0], [*command, *options], environment)  # noqa: S606 - it takes this process's place


if __name__ == "__main__":
    main()
