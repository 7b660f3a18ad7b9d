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

from gangline.cli.option_record import spread
from gangline.cli.output.terminal import mention
from gangline.cli.shared import ExperimentId, connect, new_group
from gangline.cli.task.command import NewTask, add_commands, check_kind
from gangline.cli.task.notebook import await_task
from gangline.domain.view import TaskAccess
from gangline.errors import invalid

app = new_group("Open shells on slots.")

Command = Annotated[
    list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Runs there in place of a shell, as with ssh.")
]


@app.command("start")
@spread(options=NewTask)
def start_shell(command: Command = None, *, options: NewTask) -> None:
    """Start a shell on slots and open it. It runs until it is killed, so that it can be opened again.

    The agent has to have OpenSSH's server, and this machine its client.
    """
    values = options.read_settings()
    with connect() as client:
        number = options.start(client, "SHELL", values)
        if options.is_detached:
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


add_commands(app, "SHELL")
