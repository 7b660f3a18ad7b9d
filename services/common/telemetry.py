"""Logs, metrics and the ready file of a service.

Owns the configuration of structlog (and of the standard logging module, so that libraries log in the same form), the
Prometheus endpoint and the ready file. Called from a service's `__main__` only; libraries just use
`structlog.get_logger`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Literal

import structlog

from services.common.address import bind_error, join_address, split_address
from services.common.connection.scrape_server import start_scrape_server
from services.common.disk import write_atomic

LogFormat = Literal["json", "text"]


def configure_logging(service: str, format: LogFormat = "json", level: str = "info") -> None:
    """Configures logs of one line an event on stderr, each with time, level and service."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    # None of these fields is shown; skipping them is the advice of the logging module's own documentation
    # (Optimization).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(format, [*shared, _add_service(service)]))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def serve_metrics(listen: str) -> str:
    """Serves /metrics from a thread of its own until the process ends. Returns "host:port" with the real port."""
    host, port = split_address(listen)
    try:
        real_port = start_scrape_server(host, port)
    except OSError as error:
        raise bind_error(listen, error, "--metrics-listen") from error
    return join_address(host, real_port)


def write_ready_file(path: Path | str | None, **addresses: str | None) -> None:
    """Records that the service serves, and where. The file is written whole or not at all; path None writes nothing.

    addresses: `grpc`, `http`, `metrics`, each "host:port" or None when there is none.
    """
    if path is None:
        return
    content = {"pid": os.getpid(), **{name: address for name, address in addresses.items() if address}}
    write_atomic(Path(path), json.dumps(content) + "\n", is_durable=False)


def _formatter(format_name: LogFormat, chain: list[structlog.typing.Processor]) -> logging.Formatter:
    processors: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if format_name == "json":
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=chain, processors=[chain[-1], *processors])


def _add_service(service: str) -> structlog.typing.Processor:
    def add(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("service", service)
        return event

    return add
