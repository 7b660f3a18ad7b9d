"""`make demo`: a cluster on this machine trains the digits example over two agents, and is taken down again.

It runs the commands that a user would type, shows each one, and ends with the commands to type next. Its cluster lives
in .gangline/demo and keeps its data from one run to the next; the user's own login is not touched. With another folder
as its argument it may run beside another demo.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gangline.client import Client, ExperimentView
from gangline.login import HOME_VARIABLE

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / (sys.argv[1] if len(sys.argv) > 1 else ".gangline/demo")
GANGLINE = Path(sys.executable).with_name("gangline")
EXAMPLE = Path("examples/digits")
AGENTS, SLOTS = 2, 2
# A lower accuracy means that the model did not learn; the demo then fails.
EXPECTED_ACCURACY = 0.95


def main() -> int:
    os.chdir(ROOT)
    os.environ[HOME_VARIABLE] = str(FOLDER / "home")
    signal.signal(signal.SIGTERM, _interrupt)
    began_at = time.monotonic()
    data = ["--data-dir", str((FOLDER / "cluster").relative_to(ROOT))]
    _gangline("down", *data, is_quiet=True)  # what an interrupted run may have left
    try:
        if _gangline("up", "--agents", str(AGENTS), "--slots", str(SLOTS), *data):
            return 1
        # A second demo within a minute is meant, too.
        if _gangline("experiment", "create", "--again", "--follow", str(EXAMPLE / "distributed.yaml"), str(EXAMPLE)):
            print(f"the experiment did not complete; the services' logs are in {FOLDER / 'cluster' / 'logs'}")
            return 1
        with Client() as client:
            view = client.get_experiment(client.list_experiments(limit=1)[0].id)
            places = {checkpoint.id: checkpoint.url for checkpoint in client.list_checkpoints(view.experiment.id)}
        _gangline("experiment", "metrics", str(view.experiment.id), "--group", "validation")
    finally:
        _gangline("down", *data)
    return _tell(view, places, time.monotonic() - began_at)


def _tell(view: ExperimentView, places: dict[str, str], seconds: float) -> int:
    """Prints the result, its location and the next commands. Returns 1 when the model did not learn."""
    trial = view.trials[0]
    accuracy = trial.validation.metrics["accuracy"] if trial.validation else 0.0
    checkpoint = os.path.relpath(places[trial.trial.latest_checkpoint_id].removeprefix("file://"), ROOT)
    here = Path(os.path.relpath(GANGLINE, ROOT))
    print(
        f"\nValidation accuracy {accuracy:.1%} after {trial.trial.batches_completed} batches, trained by "
        f"{AGENTS * SLOTS} ranks on {AGENTS} agents. All of it took {seconds:.0f} s.\n"
        f"Checkpoint: {checkpoint}\n\n"
        "What to type next, to bring it up again and look around:\n"
        f"  {here} up --data-dir {os.path.relpath(FOLDER / 'cluster', ROOT)}\n"
        f"  {here} experiment metrics {view.experiment.id}\n"
        f"  {here} experiment create -f {EXAMPLE / 'distributed.yaml'} {EXAMPLE}\n"
        f"  {here} status\n"
        f"  {here} down"
    )
    if accuracy < EXPECTED_ACCURACY:
        print(f"the accuracy is below {EXPECTED_ACCURACY:.0%}")
        return 1
    return 0


def _gangline(*arguments: str, is_quiet: bool = False) -> int:
    """Runs a command and returns its exit status."""
    if not is_quiet:
        print(f"\n$ gangline {' '.join(arguments)}", flush=True)
    output = subprocess.DEVNULL if is_quiet else None
    return subprocess.run([GANGLINE, *arguments], stdout=output, stderr=output, check=False).returncode


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Makes SIGTERM take the cluster down as Ctrl-C does."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
