"""The server of a /metrics port costs no processor time while nobody asks, and answers at once."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from pathlib import Path

# Prints the port and the kernel's number of the server's thread.
SERVE = """
import sys, threading
from services.common.connection.scrape_server import start_scrape_server
port = start_scrape_server("127.0.0.1", 0)
thread = next(thread for thread in threading.enumerate() if thread.name == "metrics")
print(port, thread.native_id, flush=True)
sys.stdin.read()
"""
COUNT_SECONDS = 2.0


def test_server_that_nobody_asks_does_not_wake_up_and_still_answers_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port, thread_id = process.stdout.readline().decode().split()
        before = _count_wakes(process.pid, thread_id)
        time.sleep(COUNT_SECONDS)
        # It may have fallen asleep for the first time meanwhile.
        assert _count_wakes(process.pid, thread_id) - before <= 1
        began_at = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            assert b"process_cpu_seconds_total" in response.read()
        assert time.monotonic() - began_at < 5.0
        process.communicate()


def _count_wakes(pid: int, thread_id: str) -> int:
    status = Path(f"/proc/{pid}/task/{thread_id}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
