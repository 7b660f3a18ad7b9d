"""`gangline shell ...`: SSH to a process on slots, through a gateway."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gangline.cli.output.terminal import mention, say
from gangline.cli.shared import ExperimentId, Template, connect, new_group
from gangline.cli.task.command import (
    ConfigFile,
    Context,
    Detach,
    Name,
    Pool,
    Priority,
    Settings,
    Slots,
    Variables,
    add_list,
    check_kind,
    read_settings,
    start,
)
from gangline.cli.task.notebook import await_task
from gangline.domain.view import TaskAccess
from gangline.errors import invalid

app = new_group("Open shells on slots.")

Command = Annotated[
    list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Runs there in place of a shell, as with ssh.")
]


@app.command("start")
def start_shell(
    command: Command = None,
    *,
    context: Context = None,
    slots: Slots = None,
    pool: Pool = "",
    priority: Priority = None,
    name: Name = "",
    env: Variables = None,
    config_file: ConfigFile = None,
    config: Settings = None,
    template: Template = "",
    is_detached: Detach = False,
) -> None:
    """Start a shell on slots and open it. It runs until it is killed, so that it can be opened again.

    The agent has to have OpenSSH's server, and this machine its client.
    """
    from gangline.domain.state import TaskKind  # noqa: PLC0415 - after grpc's settings

    values = read_settings(config_file, config, slots=slots, pool=pool, priority=priority, name=name, env=env)
    with connect() as client:
        number = start(client, TaskKind.SHELL, values, context, template)
        if is_detached:
            say([str(number)])
            return
        access = await_task(client, number, "SHELL")
    _open(number, access, command or ())


@app.command("open")
def open_shell(number: ExperimentId, command: Command = None) -> None:
    """Open a shell that was started before, once it is ready."""
    with connect() as client:
        check_kind(client, number, "SHELL")
        access = await_task(client, number, "SHELL")
    _open(number, access, command or ())


@app.command("tunnel", hidden=True)
def tunnel(number: ExperimentId) -> None:
    """Connect standard input and output with the socket of a shell, for ssh."""
    with connect() as client:
        login = client.login
        from gangline.client.task_tunnel import carry  # noqa: PLC0415 - loads grpc

        carry(login, number, sys.stdin.fileno())


def _open(number: int, access: TaskAccess, command: list[str] | tuple[str, ...]) -> None:
    """Runs ssh, and exits with its exit status. Raises GanglineError `shell.no_ssh`."""
    ssh = shutil.which("ssh")
    if ssh is None:
        raise invalid("shell.no_ssh", "this machine has no ssh; install OpenSSH's client")
    with tempfile.TemporaryDirectory(prefix="gangline-shell-") as folder:
        key = Path(folder) / "key"
        key.touch(mode=0o600)
        key.write_text(access.private_key)
        proxy = shlex.join([sys.executable, "-m", "gangline.cli", "shell", "tunnel", str(number)])
        # The host's key is made anew for each shell. The gateway has authenticated the way to it.
        options = {
            "ProxyCommand": proxy.replace("%", "%%"),
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "IdentitiesOnly": "yes",
            "IdentityFile": str(key),
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        done = subprocess.run([ssh, *words, f"{access.user}@shell-{number}", *command], check=False)
    again, end = f"gangline shell open {number}", f"gangline shell kill {number}"
    mention(f"shell {number} goes on; open it with: {again}; end it with: {end}")
    if done.returncode:
        raise typer.Exit(done.returncode)


add_list(app, "SHELL")
