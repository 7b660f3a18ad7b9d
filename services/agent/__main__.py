"""`gangline-agent`: reads the settings, configures logging, runs the agent. An error that a user must correct is one
line."""

from __future__ import annotations

import asyncio
import sys

from gangline.errors import GanglineError
from services.agent.allocations.launcher import RunnerProgram
from services.agent.program import run
from services.agent.settings import AgentSettings
from services.common.telemetry import configure_logging


def main() -> int:
    try:
        settings = AgentSettings.load()
        configure_logging(AgentSettings.service, settings.log_format, settings.log_level)
        settings.warn_of_open_file()
        asyncio.run(run(settings, RunnerProgram()))
    except GanglineError as error:
        print(f"gangline-agent: {error.message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
