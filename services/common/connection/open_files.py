"""The limit of open files of this process, and the share of it that a server's connections may take.

Each connection is an open file. Without shares, one full port would leave no file for the other ports of the service,
for etcd and for the database.
"""

from __future__ import annotations

import resource

import structlog

_log = structlog.get_logger(__name__)

MAX_OPEN_FILES = 65536


def allow_open_files() -> int:
    """Raises the limit of open files as far as the operator allows, at most to MAX_OPEN_FILES, and returns it. Shells
    start programs with 1024 by default. May be called again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def fit_connections(wanted: int, divisor: int, server: str) -> int:
    """Returns how many connections a server may keep: `wanted`, or this part of the open files if that is less.

    server: its name in the warning about fewer connections.
    """
    limit = allow_open_files()
    fitting = min(wanted, limit // divisor)
    if fitting < wanted:
        _log.warning(
            f"{server} keeps at most {fitting} connections instead of {wanted}, because this process may open only"
            f" {limit} files; raise LimitNOFILE (ulimit -Hn) to {wanted * divisor}"
        )
    return fitting
