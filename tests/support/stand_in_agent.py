"""The real agent with the stand-in runner in place of the trial runner: `python -m tests.support.stand_in_agent FLAGS`.

Nothing else differs from `gangline-agent`.
"""

from __future__ import annotations

import asyncio
import sys

from gangline.errors import GanglineError
from services.agent.allocations.launcher import RunnerProgram
from services.agent.program import run
from services.agent.settings import AgentSettings
from services.common.telemetry import configure_logging

PROGRAM = RunnerProgram(
    target="tests.support.stand_in_runner:main",
    preload=("tests.support.stand_in_runner",),
    command=(sys.executable, "-m", "tests.support.stand_in_runner"),
    rank_preload=(),
)


def main() -> int:
    try:
        settings = AgentSettings.load()
        configure_logging("agent", settings.log_format, settings.log_level)
        asyncio.run(run(settings, PROGRAM))
    except GanglineError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
