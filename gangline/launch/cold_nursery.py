"""`python -m gangline.launch.cold_nursery --fd N`: a nursery where there is no warm process to fork it from.

It imports torch itself, once for all ranks, which takes seconds. Started by the trial runner.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress

from gangline.launch import child, nursery


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gangline.launch.cold_nursery", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket to the trial runner")
    options = parser.parse_args()
    # BLAS starts its threads when numpy is loaded, and threads do not survive the fork of a rank.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    child.prepare_output()
    with suppress(ImportError):
        import torch._dynamo  # noqa: F401, PLC0415 - after the environment is set
    return nursery.main({}, [options.fd])


if __name__ == "__main__":
    sys.exit(main())
