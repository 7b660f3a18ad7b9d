"""The entry of the program `gangline`, also for python -m gangline.cli: Ctrl-C never shows a traceback.

The modules of the commands take a tenth of a second to load, in which Python's own handler would print one.
"""

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED = 130


def main() -> None:
    # A parent that ignores the signal, as nohup does, is left in charge.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    from gangline.cli.main import run  # noqa: PLC0415 - the handler comes first

    try:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = _INTERRUPTED
    finally:
        if is_ours:
            # Nothing is left to say while the interpreter ends.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)


if __name__ == "__main__":
    main()
