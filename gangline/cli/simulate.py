"""`gangline simulate`: runs the planner on a file, by starting the services' program for it.

The library must not depend on the services. So this module imports nothing of them and passes all arguments on.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import typer

from gangline.errors import GanglineError

_MODULE = "services.scheduler.simulator"


def simulate(context: typer.Context) -> None:
    """Show the planner's decisions on a file, or play a trace in virtual time; --help tells more."""
    if importlib.util.find_spec(_MODULE.partition(".")[0]) is None:
        raise GanglineError(
            "simulate.not_installed",
            "the planner is not installed; type: pip install gangline[cluster] (docs/install.md says from where)",
        )
    # -P keeps Python from taking a folder of that name in the working directory for the services.
    done = subprocess.run([sys.executable, "-P", "-m", _MODULE, *context.args], check=False)
    raise typer.Exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
