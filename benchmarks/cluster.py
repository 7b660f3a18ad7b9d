"""A separate cluster for one benchmark: `gangline up` in a temporary folder, and `gangline down` afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.run_folder import make_run_folder
from gangline.client import Client
from gangline.local.layout import Layout
from gangline.local.process_table import load_table

GANGLINE = Path(sys.executable).parent / "gangline"


@contextmanager
def running_cluster(agents: int, slots: int) -> Iterator[tuple[Client, Path]]:
    """Yields a client of a new cluster and the folder of its data. slots: artificial slots of each agent."""
    folder = make_run_folder("gl-bench-")
    home, data = folder / "home", folder / "data"
    environment = {**os.environ, "GANGLINE_HOME": str(home)}
    up = [str(GANGLINE), "up", "--agents", str(agents), "--slots", str(slots), "--data-dir", str(data)]
    subprocess.run(up, check=True, env=environment, stdout=subprocess.DEVNULL)
    os.environ["GANGLINE_HOME"] = str(home)
    try:
        with Client() as client:
            yield client, data
    finally:
        subprocess.run([GANGLINE, "down", "--data-dir", data], check=True, env=environment)


def find_gateway(data: Path) -> psutil.Process:
    """Returns the process of the cluster's gateway. data: folder of the data of a running cluster."""
    table = load_table(Layout(data).processes)
    gateway = table.find("gateway") if table is not None else None
    assert gateway is not None, "the cluster runs"
    return psutil.Process(gateway.pid)
