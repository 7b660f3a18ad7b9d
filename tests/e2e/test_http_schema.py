"""The HTTP interface against its own description: schemathesis sends to a real cluster what the description allows and
what it forbids, and compares each answer with what the description promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.cluster import running_cluster

COMMAND = str(Path(sys.executable).with_name("schemathesis"))
# A request that fits the schema may still contradict itself, or name a pool that does not exist; the answer is 400.
LEFT_OUT = "positive_data_acceptance"
# Its answer never ends, so each request would last until its time is over; test_live.py has its refusals.
ENDLESS = "/api/v1/stream"


def test_the_interface_is_as_it_is_described(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", agents=1, slots=1) as cluster:
        address, token = f"{cluster.http_url}/openapi.json", f"Authorization: Bearer {cluster.login.token}"
        options = ["--phases", "examples,coverage,fuzzing", "--max-examples", "2", "--seed", "1"]
        options += ["--request-timeout", "10", "--continue-on-failure", "--exclude-checks", LEFT_OUT]
        options += ["--exclude-path", ENDLESS]
        done = subprocess.run(
            [COMMAND, "run", address, "--header", token, *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-20000:]
    numbers = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", done.stdout)
    assert numbers is not None, done.stdout[-2000:]
    selected, total, tested = map(int, numbers.groups())
    assert (selected, tested) == (total - 1, total - 1), "every call but one was tested"
