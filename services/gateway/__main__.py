"""`gangline-gateway`: reads the settings, configures logging, serves until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from contextlib import suppress

import structlog

from gangline.errors import ErrorKind, GanglineError
from services.common.concurrency import cancel
from services.common.telemetry import configure_logging, write_ready_file
from services.gateway.program import GatewaySettings, run_gateway

log = structlog.get_logger(__name__)


def main() -> None:
    """Runs the gateway. Exit code 2: the operator's input cannot work. Exit code 1: something that the gateway needs is
    missing."""
    try:
        settings = GatewaySettings.load()
        configure_logging("gateway", settings.log_format, settings.log_level)
        settings.warn_of_open_file()
        asyncio.run(_serve_until_stopped(settings))
    except GanglineError as error:
        print(f"gangline-gateway: {error.message}", file=sys.stderr)
        sys.exit(2 if error.kind is ErrorKind.INVALID else 1)


async def _serve_until_stopped(settings: GatewaySettings) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    serving = asyncio.create_task(_serve(settings), name="gateway")
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        # A gateway that still waits for etcd ends as well.
        log.info("gateway stops")
        serving.cancel()
    await cancel(waiting)
    with suppress(asyncio.CancelledError):
        await serving


async def _serve(settings: GatewaySettings) -> None:
    """Serves until it is cancelled."""
    async with run_gateway(settings) as addresses:
        # What is loaded now lives as long as the gateway. A full pass over it would hold up all calls for 0.1 s.
        gc.collect()
        gc.freeze()
        write_ready_file(settings.ready_file, grpc=addresses.grpc, http=addresses.http, metrics=addresses.metrics)
        log.info("gateway serves", grpc=addresses.grpc, http=addresses.http)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
