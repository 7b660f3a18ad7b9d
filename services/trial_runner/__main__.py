"""`gangline-trial-runner --spec DIR/spec.json`: one trial runner from nothing, when no warm process can be forked."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gangline.launch import child
from services.trial_runner import program


def main() -> int:
    parser = argparse.ArgumentParser(prog="gangline-trial-runner", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="spec.json in the allocation's folder")
    parser.add_argument("--rank-forkserver", default="", help="socket of the rank template; ranks start cold without")
    options = parser.parse_args()
    child.take_normal_priority()
    directory = str(options.spec.absolute().parent)
    return program.main({"directory": directory, "rank_forkserver": options.rank_forkserver}, [])


if __name__ == "__main__":
    sys.exit(main())
