"""`python -m services.scheduler.simulator`, which `gangline simulate` runs: arguments, files, exit codes.

With FILE it prints the plan for that snapshot; with --trace or --load it plays a trace in virtual time, once with each
strategy. Invalid input gives one line and exit code 2; a missing requirement, such as matplotlib, gives exit code 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from gangline.cli.output.terminal import clean_output
from gangline.errors import ErrorKind, GanglineError, invalid
from gangline.printable import to_line, to_printable
from services.scheduler.placement import plan
from services.scheduler.placement.simulation_file import dump_plan, parse_simulation
from services.scheduler.simulator.cluster_size import agents_of_slots, parse_agents
from services.scheduler.simulator.engine import EngineContext, play
from services.scheduler.simulator.figure import Figures, figures_of
from services.scheduler.simulator.figure_report import describe_figures, describe_stop
from services.scheduler.simulator.load import LOADS, draw_load, parse_priorities
from services.scheduler.simulator.plan_report import describe_plan, describe_seconds
from services.scheduler.simulator.played import Played
from services.scheduler.simulator.plot import check_plot, draw_plot
from services.scheduler.simulator.strategy import STRATEGIES, SimulatedStrategy, choose_strategies
from services.scheduler.simulator.submission import ESTIMATES, TraceSubmission
from services.scheduler.simulator.trace_file import dump_trace, parse_trace

PROGRAM = "gangline simulate"
_T = TypeVar("_T")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise invalid("simulation.argument", f"{message}; --help lists the options")


def main(arguments: list[str] | None = None) -> int:
    """Runs the program and returns the exit code."""
    try:
        # A snapshot and a trace may contain names that other users chose, with control characters in them.
        with clean_output():
            _run(_parser().parse_args(arguments))
    except GanglineError as error:
        print(to_line(f"{PROGRAM}: {error.message}"), file=sys.stderr)
        return 2 if error.kind is ErrorKind.INVALID else 1
    except BrokenPipeError:
        # The reader closed the pipe; the interpreter must not write to it at exit either.
        sys.stdout = None
    return 0


def _parser() -> argparse.ArgumentParser:
    description = "Shows what the planner decides on a snapshot FILE, or plays a trace in virtual time."
    parser = _Parser(prog=PROGRAM, description=description, allow_abbrev=False)
    parser.add_argument("file", metavar="FILE", nargs="?", help="a snapshot in JSON; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print JSON")
    trace = parser.add_argument_group("a trace in virtual time")
    trace.add_argument("--trace", metavar="FILE.csv", help="columns submitted_at, slots, duration_seconds and more")
    trace.add_argument("--load", choices=tuple(LOADS), help="a synthetic trace with the statistics of a public one")
    cluster = trace.add_mutually_exclusive_group()
    cluster.add_argument("--agents", metavar="NxS", help="agents x slots, such as 64x8 or 4x8+2x4")
    cluster.add_argument("--slots", type=int, metavar="N", help="so many slots on agents of 8 (default 512)")
    trace.add_argument(
        "--strategies", metavar="NAMES", help=f"of: {'; '.join(strategy.name for strategy in STRATEGIES)}"
    )
    trace.add_argument("--estimates", choices=ESTIMATES, default="progress", help="what is known of run times")
    trace.add_argument("--plot", metavar="FILE.png", help="queue and utilisation over time")
    load = parser.add_argument_group("a synthetic load")
    load.add_argument("--seed", type=int, default=1, help="the same seed gives the same trace (default 1)")
    load.add_argument("--days", type=float, default=1.0, help="of submissions (default 1)")
    load.add_argument("--intensity", type=float, default=1.0, help="times as many submissions (default 1)")
    load.add_argument("--priorities", metavar="P:W,...", default="42:1", help="priorities and their weights")
    load.add_argument("--write", metavar="FILE.csv", help="write the trace and play nothing")
    return parser


def _run(options: argparse.Namespace) -> None:
    sources = [name for name in (options.file, options.trace, options.load) if name is not None]
    if len(sources) != 1:
        raise invalid("simulation.argument", "name either a snapshot FILE, --trace or --load; --help lists the options")
    if options.file is not None:
        _decide(options.file, options.json)
        return
    sizes = (
        parse_agents(options.agents)
        if options.agents
        else agents_of_slots(512 if options.slots is None else options.slots)
    )
    submissions = _draw(options, sum(sizes)) if options.load else _in_file(options.trace, parse_trace)
    if options.write:
        _write(options.write, dump_trace(submissions))
        return
    _play(options, sizes, submissions)


def _decide(name: str, is_json: bool) -> None:
    if name.endswith(".csv"):
        raise invalid("simulation.argument", f"{name} is a trace and no snapshot in JSON; play it with: --trace {name}")
    simulation = _in_file(name, parse_simulation)
    decided = plan(simulation.snapshot, simulation.now)
    print(json.dumps(dump_plan(decided), indent=2) if is_json else to_printable(describe_plan(simulation, decided)))


def _draw(options: argparse.Namespace, slots: int) -> list[TraceSubmission]:
    for name in ("days", "intensity"):
        if not 0 < getattr(options, name) < 1e6:
            raise invalid("simulation.argument", f"--{name}: must be more than 0, not {getattr(options, name):g}")
    submissions = draw_load(
        LOADS[options.load],
        random.Random(options.seed),  # noqa: S311 - chance for a simulation, not for a secret
        slots,
        options.days,
        intensity=options.intensity,
        priorities=parse_priorities(options.priorities),
    )
    if not submissions:
        raise invalid("simulation.argument", "nobody submits anything in so short a time; raise --days or --intensity")
    return submissions


def _play(options: argparse.Namespace, sizes: list[int], submissions: list[TraceSubmission]) -> None:
    strategies = choose_strategies(options.strategies.split(";")) if options.strategies else list(STRATEGIES)
    if options.plot:
        check_plot(options.plot)
    context = EngineContext(estimates=options.estimates)
    played = {strategy.name: play(submissions, sizes, strategy, context) for strategy in strategies}
    figures = [_figures(strategy, played[strategy.name]) for strategy in strategies]
    if options.plot:
        draw_plot(played, options.plot)
    if options.json:
        print(json.dumps([strategy_figures.as_json() for strategy_figures in figures], indent=2))
        return
    span = describe_seconds(submissions[-1].submitted_at - submissions[0].submitted_at)
    print(f"{len(submissions)} submissions within {span}, {sum(sizes)} slots on {len(sizes)} agents")
    if figures[0].refused:
        print(f"{figures[0].refused} of them can never fit and are left out")
    print(f"run times: {options.estimates}\n\n{to_printable(describe_figures(figures))}\n{describe_stop(context)}")


def _figures(strategy: SimulatedStrategy, played: Played) -> Figures:
    if not played.runs:
        raise invalid("simulation.trace", "nothing in this trace can ever fit the agents")
    return figures_of(strategy.name, played, strategy.has_head)


def _in_file(name: str, parse: Callable[[str], _T]) -> _T:
    """Parses the file's text; an error names the file."""
    text = _read(name)
    try:
        return parse(text)
    except GanglineError as error:
        raise GanglineError(error.code, f"{name}: {error.message}", error.kind) from error


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise invalid("simulation.syntax", f"{name}: byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise invalid("simulation.file", f"{name}: cannot be read: {error.strerror}") from error


def _write(name: str, text: str) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise invalid("simulation.file", f"{name}: cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
