"""`python -m gangline.rank.cold_nursery`: a nursery where there is no warm process to fork it from.

It imports torch itself, once for all ranks, which takes seconds. Started by the trial runner, which leaves it a socket
(`--fd N`), or as the first process of a container, which connects to its runner (`--connect PATH`). In a container its
first message is {"event": "hello", "environment", "problem"}: the variables of the image, and why the image cannot run
ranks that use Gangline; empty if it can. With `--bare` it imports nothing, because no rank uses torch or Gangline.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from contextlib import suppress

from gangline import unix_socket
from gangline.launch import channel, child, nursery


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gangline.rank.cold_nursery", description=__doc__)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--fd", type=int, help="the inherited socket to the trial runner")
    way.add_argument("--connect", metavar="PATH", help="the socket at which the trial runner listens")
    parser.add_argument("--bare", action="store_true", help="import no library for the ranks")
    options = parser.parse_args()
    if options.connect:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix_socket.connect(control, options.connect)
        environment = dict(os.environ)
    # BLAS starts its threads when numpy is loaded, and threads do not survive the fork of a rank.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    child.prepare_output()
    if not options.bare:
        with suppress(ImportError):
            import torch._dynamo  # noqa: F401, PLC0415 - after the environment is set
    if not options.connect:
        return nursery.main({}, [options.fd])
    problem = "" if options.bare else _find_problem()
    channel.send(control, {"event": "hello", "environment": environment, "problem": problem})
    return nursery.main({}, [control.detach()])


def _find_problem() -> str:
    """Returns why this Python cannot run ranks that use Gangline; empty if it can."""
    try:
        import gangline.rank.entrypoint  # noqa: F401, PLC0415 - after the environment is set
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the image's packages is for the user to read
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
