"""Names of a user's choosing in real runners of root: nothing that they lead to runs or opens with the runner's rights.

Each test plays an ordinary user, whose experiment chooses names. What the user cannot do as the ranks' user must not
happen.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from gangline.domain.state import ExitKind
from services.common.rank_rules import RankRules, find_user
from tests.integration.trial_runner.conftest import World
from tests.integration.trial_runner.test_confinement import USER, open_world, start

__all__ = ["open_world"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs ranks as another user")
# Tells as whom it runs, which the attempt's reason repeats, and leaves a process behind.
TELL = '#!/bin/sh\nsleep 600 & echo "ran as $(id -u), groups $(id -G)" >&2\nexit 3\n'
UID, GROUPS = (find_user(USER).uid, sorted(find_user(USER).groups)) if os.geteuid() == 0 else (0, [])


@pytest.mark.parametrize("name", ["{code}/py", "{code}/env", "/proc/self/cwd/py"], ids=["file", "folder", "cwd"])
async def test_an_interpreter_in_the_code_runs_as_the_ranks_user(open_world: World, name: str) -> None:
    code = open_world.folder / "a1/allocations/7.1.1/code"
    files = {"py": TELL, "env/bin/python3": TELL, "code/py": TELL}
    config = {"environment": {"python": name.format(code=code)}}
    await start(open_world, RankRules(user=USER), "print('trained')", files=files, config=config)
    (report,) = await open_world.wait()
    assert report.kind is ExitKind.CONFIGURATION_ERROR, report
    groups = " ".join(str(group) for group in GROUPS)
    expected = f"(ran as {UID}, groups {groups})" if "cwd" not in name else "there is no interpreter /proc/self/cwd/py"
    assert expected in report.message
    assert "trained" not in open_world.gateway.lines("stdout")


async def test_an_interpreter_in_the_code_makes_the_hooks_environment_as_the_ranks_user(open_world: World) -> None:
    files = {"py": TELL, "startup-hook.sh": "true\n"}
    config = {
        "entrypoint": "sh train.py",
        "environment": {"python": f"{open_world.folder}/a1/allocations/7.1.1/code/py"},
    }
    await start(open_world, RankRules(user=USER), "echo", files=files, config=config, entrypoint="sh train.py")
    (report,) = await open_world.wait()
    assert f"ran as {UID}, groups" in report.message, report


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"environment": {"working_directory": "{secret}"}}, "there is no folder {secret} in a1"),
        ({"environment": {"python": "{secret}"}}, "there is no interpreter {secret} on a1"),
        (
            {"environment": {"image": "any"}, "bind_mounts": [{"host_path": "{secret}/open", "container_path": "x"}]},
            "bind_mounts: nobody reaches no {secret}/open on a1",
        ),
    ],
    ids=["working directory", "interpreter", "mount"],
)
async def test_a_folder_that_the_ranks_user_may_not_enter_is_not_followed(
    open_world: World, config: dict[str, Any], problem: str
) -> None:
    secret = open_world.folder / "secret"
    (secret / "open").mkdir(parents=True)
    (secret / "bin").mkdir()
    (secret / "bin/python3").write_text(TELL)
    (secret / "bin/python3").chmod(0o755)
    secret.chmod(0o700)
    config = json.loads(json.dumps(config).replace("{secret}", str(secret)))
    rules = RankRules(user=USER, container_command=("false",))
    await start(open_world, rules, "print('trained')", config=config)
    (report,) = await open_world.wait()
    assert (report.kind, problem.format(secret=secret) in report.message) == (
        ExitKind.CONFIGURATION_ERROR,
        True,
    ), report


DEEP = """
import os
os.chdir(os.path.dirname(os.environ["GANGLINE_RUNNER_SOCKET"]))
os.symlink({secret!r}, "link")
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
print("made", flush=True)
"""


async def test_what_a_rank_leaves_is_removed_however_deep_and_no_link_is_followed(open_world: World) -> None:
    secret = open_world.folder / "secret"
    secret.mkdir()
    (secret / "kept").write_text("of the operator")
    await start(open_world, RankRules(user=USER), DEEP.format(secret=str(secret)))
    (report,) = await open_world.wait(120)
    assert report.kind is ExitKind.COMPLETED, report
    assert not (open_world.runners[0].directory / "ranks").exists()
    assert (secret / "kept").exists()
