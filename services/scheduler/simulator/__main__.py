"""`python -m services.scheduler.simulator`, which `gangline simulate` runs: arguments, files, exit codes.

With FILE it prints what the planner decides on that snapshot. Exit code 2 and one line for input that cannot be used, 1
for what is missing around it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NoReturn

from gangline.errors import ErrorKind, GanglineError, invalid
from services.scheduler.placement import plan
from services.scheduler.placement.simulation_file import dump_plan, parse_simulation
from services.scheduler.simulator.plan_report import describe_plan

PROGRAM = "gangline simulate"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise invalid("simulation.argument", f"{message}; --help lists the options")


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    try:
        _run(_parser().parse_args(arguments))
    except GanglineError as error:
        print(f"{PROGRAM}: {error.message}", file=sys.stderr)
        return 2 if error.kind is ErrorKind.INVALID else 1
    except BrokenPipeError:
        # Whoever reads has seen enough; nothing more may be written at the end either.
        sys.stdout = None
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Shows what the planner decides on a snapshot file.", allow_abbrev=False)
    parser.add_argument("file", metavar="FILE", nargs="?", help="a snapshot in JSON; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(options: argparse.Namespace) -> None:
    if options.file is None:
        raise invalid("simulation.argument", "name a snapshot FILE; --help lists the options")
    _decide(options.file, options.json)


def _decide(name: str, is_json: bool) -> None:
    text = _read(name)
    try:
        simulation = parse_simulation(text)
    except GanglineError as error:
        raise GanglineError(error.code, f"{name}: {error.message}", error.kind) from error
    decided = plan(simulation.snapshot, simulation.now)
    print(json.dumps(dump_plan(decided), indent=2) if is_json else describe_plan(simulation, decided))


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise invalid("simulation.syntax", f"{name}: byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise invalid("simulation.file", f"{name}: cannot be read: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
