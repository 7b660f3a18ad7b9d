"""Serves a shell: runs OpenSSH's server for each connection to the socket of its trial runner.

sshd runs in its inetd mode, with the connection as its input and output, so it listens nowhere. It runs as the account
of the task and lets in this account alone, with the key of the shell's owner, which the runner writes to a file.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from gangline import unix_socket
from gangline.domain.task_environment import TASK_KEYS, TASK_SOCKET

NO_SSHD = "error: this agent has no sshd; install OpenSSH's server on it (on Debian: apt-get install openssh-server)"
# Where Debian keeps it, outside of the path of most accounts.
_SSHD = "/usr/sbin/sshd"
# sshd as root demands this folder, which Debian's unit makes at each start of the machine.
_PRIVILEGE_FOLDER = Path("/run/sshd")
# Variables that sshd or the login shell sets itself.
_OWN = frozenset({"HOME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"})
_LONGEST_VALUE = 4096


def find_sshd(which: Callable[[str], str | None]) -> str:
    """Returns the path of sshd; empty where there is none. which: finds a program on the path."""
    return which("sshd") or which(_SSHD) or ""


def configure(folder: Path, keys: str, directory: str, environment: Mapping[str, str], *, user: str) -> str:
    """Returns sshd's configuration. folder: for its files. keys: the file of the owner's key. directory: in which
    sessions start. user: the only one that is let in."""
    return "\n".join([
        f"HostKey {_quoted(str(folder / 'host_key'))}",
        f"AuthorizedKeysFile {_quoted(keys)}",
        f"AllowUsers {_quoted(user)}",
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "UsePAM no",
        # The folders above belong to the agent, which the check would not accept.
        "StrictModes no",
        "PidFile none",
        "PrintMotd no",
        "GatewayPorts no",
        "Subsystem sftp internal-sftp",
        f"ForceCommand {session_command(directory)}",
        "SetEnv " + " ".join(_quoted(f"{name}={value}") for name, value in shown_variables(environment).items()),
        "",
    ])  # fmt: skip


def session_command(directory: str) -> str:
    """Returns the command of a session: a shell, or the user's own command, in the task's folder. A login shell would
    replace the task's PATH."""
    own = 'if [ -n "$SSH_ORIGINAL_COMMAND" ]; then exec "$SHELL" -c "$SSH_ORIGINAL_COMMAND"; fi'
    return f'cd {shlex.quote(directory)}; {own}; exec "$SHELL"'


def shown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the task's variables that a session gets: those of one line that sshd can carry."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _OWN
        and not name.startswith("SSH_")
        and name.isidentifier()
        and value.isprintable()
        and '"' not in value
        and "\\" not in value
        and len(value) < _LONGEST_VALUE
    }


def _quoted(text: str) -> str:
    return f'"{text}"'


def main() -> None:
    sshd = find_sshd(shutil.which)
    if not sshd:
        print(NO_SSHD, file=sys.stderr)
        sys.exit(127)
    if os.geteuid() == 0:
        _PRIVILEGE_FOLDER.mkdir(mode=0o755, exist_ok=True)
    folder = Path(os.environ[TASK_SOCKET]).parent
    key = folder / "host_key"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gangline", "-f", str(key)], check=True)
    user = pwd.getpwuid(os.geteuid()).pw_name
    config = folder / "sshd_config"
    config.write_text(configure(folder, os.environ[TASK_KEYS], str(Path.cwd()), os.environ, user=user))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix_socket.bind(listener, os.environ[TASK_SOCKET])
    Path(os.environ[TASK_SOCKET]).chmod(0o600)
    listener.listen(64)
    print("the shell is ready", flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            command = [sshd, "-i", "-e", "-f", str(config)]
            # Each start reaps the servers of connections that have ended.
            subprocess.Popen(command, stdin=connection.fileno(), stdout=connection.fileno())


if __name__ == "__main__":
    main()
