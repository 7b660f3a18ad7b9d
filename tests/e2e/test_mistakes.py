"""Typical mistakes of users, each with its whole message and exit status, through the real CLI and a real cluster.

Every message is one line that names the mistake, its place and a remedy, and no line quotes another library. The
messages of one part alone are tested beside that part.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from gangline.login import HOME_VARIABLE
from tests.support import warm_program
from tests.support.cluster import Cluster
from tests.support.failing_trial import failing_config, failing_source
from tests.support.gated_trial import wait_for
from tests.support.warm_program import WarmPair

# Parts of sentences of pydantic, grpc, httpx, PyYAML, typer, the operating system's names and Python's tracebacks.
FOREIGN = (
    "Input should", "should be a valid", "should have at", "Extra inputs", "Field required", "validation error",
    "pydantic", "grpc", "ipv4:", "ipv6:", "last error", "UNKNOWN:", "StatusCode", "UNAVAILABLE", "INTERNAL",
    "failed to connect", "Deadline Exceeded", "larger than max", "errors resolving", "HTTP/2", "httpx", "metadata",
    "cannot start any token", "could not determine a constructor", "found unexpected", "mapping values are",
    "while parsing", "while scanning", "<block", "<stream", "unhashable", "Invalid value", "Usage:", "Try '",
    "No such option", "No such command", "Missing argument", "requires an argument", "extra argument", "Traceback",
    "Error:", "Expecting", "__init__", "object has no", "codec", "(char ",
)  # fmt: skip

BASE = yaml.safe_load(failing_config(slots=1))
TEXT = yaml.safe_dump(BASE)


@dataclass(frozen=True)
class Mistake:
    """A command with a mistake in its arguments or in its configuration.

    In arguments and message $ADDRESS, $HTTP, $ENDED, $RUNNING and $FOLDER name things of the test's cluster.
    """

    arguments: str  # arguments of the command
    message: str  # the line after "error: "
    status: int = 2  # exit status
    # changed keys of a good configuration, or its whole text; it becomes config.yaml
    config: Mapping[str, object] | str | bytes = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)  # variables to add


def of_config(message: str, text: str | bytes = "", /, **changes: object) -> Mistake:
    return Mistake("experiment create config.yaml code", message, 2, text or changes)


def at(address: str, message: str, status: int = 1) -> Mistake:
    environment = {"GANGLINE_GATEWAY": address, "GANGLINE_TOKEN": "token"}
    return Mistake("experiment list", message, status, environment=environment)


def search(**changes: object) -> dict[str, object]:
    return {"searcher": {**BASE["searcher"], **changes}}


def policy(**changes: object) -> dict[str, object]:
    return {"log_policies": [changes]}


def hyperparameter(**changes: object) -> dict[str, object]:
    return {"hyperparameters": {"global_batch_size": 8, "lr": changes}}


NO_EXPERIMENT = "there is no experiment 999; list them with: gangline experiment list"
MISTAKES = {
    "misspelt key": of_config("max_restart (line 4): unknown key; did you mean max_restarts?", max_restart=3),
    "misspelt inner key": of_config(
        "resources.slot_per_trial (line 7): unknown key; did you mean slots_per_trial?",
        resources={"slot_per_trial": 1},
    ),
    "wrong type": of_config("max_restarts (line 4): expected an integer, found the string 'many'", max_restarts="many"),
    "text for a mapping": of_config("config.yaml: expected a mapping such as name: ..., found the string 'x'", "x\n"),
    "no such command that runs": Mistake(
        "cmd kill 999", "there is no command 999; list them with: gangline cmd list --all"
    ),
    "too many slots for a command": Mistake(
        "cmd run --slots 9 -- true",
        "slots: 9 can never fit on a single agent of pool 'default' (2 agents of 2 slots): sizes that fit are 1, 2",
    ),
    "list for a mapping": of_config("resources (line 6): expected a mapping, found a list", resources=[1]),
    "unknown searcher": of_config(
        "searcher.name (line 12): must be one of single, random, grid, adaptive_asha, async_halving, tpe, optuna, "
        "custom, found the string 'randm'; did you mean random?",
        **search(name="randm"),
    ),
    "unit that is none": of_config(
        "searcher.max_length.steps (line 10): unknown key; known here are batches, epochs, records",
        **search(max_length={"steps": 8}),
    ),
    "no values": of_config(
        "hyperparameters.lr.vals (line 6): must have at least 1 entry, found a list",
        **hyperparameter(type="categorical", vals=[]),
    ),
    "range upside down": of_config(
        "hyperparameters.lr.maxval (line 5): must be above minval 3, found 2",
        **hyperparameter(type="double", minval=3, maxval=2),
    ),
    "missing entrypoint": of_config(
        "entrypoint: required, but missing", TEXT.replace("entrypoint: model_def:FailingTrial\n", "")
    ),
    "entrypoint without its file": of_config(
        "entrypoint nope:Trial needs the file nope.py, but the Python files in code are: model_def.py",
        entrypoint="nope:Trial",
    ),
    "entrypoint without its class": of_config(
        "model_def.py defines no Nope; the classes in it are: FailingTrial", entrypoint="model_def:Nope"
    ),
    "no such pool": of_config(
        "resources.resource_pool: there is no pool 'gpu'; the pools are default",
        resources={"slots_per_trial": 1, "resource_pool": "gpu"},
    ),
    "too many slots": of_config(
        "slots_per_trial: 8 can never fit pool 'default' (2 agents of 2 slots): sizes that fit are 1, 2, 4",
        resources={"slots_per_trial": 8},
    ),
    "no slots": of_config(
        "resources.slots_per_trial (line 7): 0 slots are for a script, and this entrypoint runs in every slot; use "
        "at least 1",
        resources={"slots_per_trial": 0},
    ),
    "priority out of range": of_config(
        "resources.priority (line 7): must be at most 99, found 100", resources={"slots_per_trial": 1, "priority": 100}
    ),
    "pattern that cannot be compiled": of_config(
        "log_policies[0].pattern (line 6): '(abc' is no pattern of RE2: missing ): (abc; write it as "
        "https://github.com/google/re2/wiki/Syntax says, without lookaround and backreferences",
        **policy(pattern="(abc", action="cancel_retries"),
    ),
    "action that is none": of_config(
        "log_policies[0].action (line 5): must be cancel_retries or exclude_node, found 'restart'",
        **policy(pattern="abc", action="restart"),
    ),
    "tab": of_config(
        "line 2, column 1: this is no valid YAML: a tab cannot indent a line; use spaces",
        "resources:\n\tslots_per_trial: 1\n",
    ),
    "duplicate key": of_config(
        "line 13: max_restarts stands here a second time (first on line 4); keep one", TEXT + "max_restarts: 3\n"
    ),
    "unknown anchor": of_config(
        "line 13, column 9: this is no valid YAML: no anchor &nope precedes the alias *nope; a value that begins with "
        "* needs quotes",
        TEXT + "labels: *nope\n",
    ),
    "second colon": of_config(
        "line 1, column 8: this is no valid YAML: a second ': ' in one line, or a line that is indented too far; put "
        "a value that contains ': ' in quotes",
        "name: a: b\n",
    ),
    "unclosed list": of_config(
        "line 2, column 1: this is no valid YAML: a comma or the closing ] is missing", "name: [a\n"
    ),
    "unclosed quote": of_config(
        "line 2, column 1: this is no valid YAML: a string in quotes has no closing quote", "name: 'a\n"
    ),
    "value that needs quotes": of_config(
        "line 1, column 7: this is no valid YAML: a value cannot begin with %; put the value in quotes", "name: %a\n"
    ),
    "tag": of_config(
        "line 1, column 7: this is no valid YAML: the tag tag:yaml.org,2002:python/object:os.system has no meaning "
        "here; remove it",
        "name: !!python/object:os.system x\n",
    ),
    "two documents": of_config(
        "line 13, column 1: this is no valid YAML: a second document begins here; keep one, and remove the line ---",
        f"{TEXT}---\n{TEXT}",
    ),
    "empty file": of_config("config.yaml is empty; it needs at least entrypoint and searcher", "\n"),
    "binary file": of_config(
        "config.yaml is no text (byte 128 is no UTF-8); give the experiment's YAML file", bytes(range(256))
    ),
    "missing file": Mistake(
        "experiment create nope.yaml code", "cannot read nope.yaml: there is no such file; give the YAML file"
    ),
    "folder instead of a file": Mistake(
        "experiment create code", "cannot read code: it is a folder; give the YAML file"
    ),
    "file instead of a folder": Mistake(
        "experiment create config.yaml config.yaml",
        "the code folder config.yaml is a file; give the folder that holds the trial",
    ),
    "missing folder": Mistake(
        "experiment create config.yaml nope",
        "the code folder nope does not exist; give the folder that holds the trial",
    ),
    "broken link": Mistake(
        "experiment create config.yaml links",
        "cannot read links/data: No such file or directory; repair it or list it in an ignore file",
    ),
    "folder that is too large": Mistake(
        "experiment create config.yaml large",
        "the code folder large holds 600.0 MB, above the limit of 95 MB; the largest are data.bin 600.0 MB, "
        "model_def.py 0.0 MB; list what the trial does not need in large/.ganglineignore",
    ),
    "code that is no Python": Mistake(
        "experiment create config.yaml broken", "model_def.py line 1 is no valid Python: invalid syntax"
    ),
    "script that is no Python": Mistake(
        "experiment create config.yaml broken",
        "model_def.py line 1 is no valid Python: invalid syntax",
        config={"entrypoint": "python3 model_def.py"},
    ),
    "unknown command": Mistake(
        "experimnt list", "there is no command 'experimnt'; did you mean experiment? see gangline --help"
    ),
    "unknown option": Mistake(
        "experiment list --jsn",
        "there is no option --jsn; did you mean --json? see gangline experiment list --help",
    ),
    "missing argument": Mistake("experiment describe", "ID is missing; see gangline experiment describe --help"),
    "too many arguments": Mistake(
        "experiment describe 1 2", "too many arguments: 2; see gangline experiment describe --help"
    ),
    "id that is no number": Mistake(
        "experiment describe abc", "ID: expected an integer, not 'abc'; see gangline experiment describe --help"
    ),
    "id beyond the wire": Mistake(
        "experiment describe 99999999999999999999",
        "ID: must be at most 9223372036854775807, not 99999999999999999999; see gangline experiment describe --help",
    ),
    "id that does not exist": Mistake("experiment describe 999", NO_EXPERIMENT),
    "logs of none": Mistake("experiment logs 999", NO_EXPERIMENT),
    "trial id without a dot": Mistake(
        "trial describe 1", "1 is an experiment; list its trials with: gangline experiment trials 1"
    ),
    "trial that does not exist": Mistake(
        "trial describe $ENDED.9", "there is no trial $ENDED.9; list them with: gangline experiment trials $ENDED"
    ),
    "negative tail": Mistake(
        "experiment logs 1 --tail -3", "--tail: must be at least 0, not -3; see gangline experiment logs --help"
    ),
    "pause of an ended one": Mistake(
        "experiment pause $ENDED", "experiment $ENDED has ended (CANCELED), so it cannot be paused"
    ),
    "activation of an ended one": Mistake(
        "experiment activate $ENDED", "experiment $ENDED has ended (CANCELED), so it cannot be activated"
    ),
    "priority of an ended one": Mistake(
        "experiment set priority $ENDED 5", "experiment $ENDED has ended (CANCELED), so it cannot be changed"
    ),
    "priority beyond the last": Mistake(
        "experiment set priority $RUNNING 500", "priority 500 is out of range; give 1 (most urgent) to 99"
    ),
    "place beside itself": Mistake(
        "job update $RUNNING --ahead-of $RUNNING",
        "experiment $RUNNING cannot be moved relative to itself; name another one",
    ),
    "queue of no pool": Mistake("job list --pool gpu", "there is no pool 'gpu'; the pools are default"),
    "agent that does not exist": Mistake(
        "agent disable nope", "there is no agent 'nope'; the agents are agent-1, agent-2"
    ),
    "agent instead of a slot": Mistake(
        "slot disable agent-1", "'agent-1' is no slot id; one looks like 'agent-1/0': gangline slot list"
    ),
    "checkpoint that does not exist": Mistake(
        "checkpoint download nope", "there is no checkpoint nope; list them with: gangline checkpoint list"
    ),
    "wrong token": at(
        "$ADDRESS",
        "this token belongs to no user of this cluster; log in again with `gangline login`, or correct GANGLINE_TOKEN",
        2,
    ),
    "gateway that is down": at(
        "127.0.0.1:9",
        "cannot reach the gateway at 127.0.0.1:9: nothing listens there; check the address and that the service runs",
    ),
    "port of HTTP": at(
        "$HTTP",
        "cannot reach the gateway at $HTTP: an HTTP server answers there; give the port of its gRPC server",
    ),
    "host that does not exist": at(
        "no.such.host.invalid",
        "cannot reach the gateway at no.such.host.invalid:8081: its host name cannot be resolved; check the address",
    ),
    "port that is no number": at(
        "localhost:abc",
        "GANGLINE_GATEWAY has 'localhost:abc', whose port is no number from 1 to 65535; write host:port, for several "
        "gateways gpu1:8081,gpu2:8081",
        2,
    ),
    "no login": Mistake(
        "experiment list",
        "no cluster is known; start one here with `gangline up`, log in with `gangline login`, or set "
        "GANGLINE_GATEWAY and GANGLINE_TOKEN",
        environment={HOME_VARIABLE: "nowhere"},
    ),
    "login file that is broken": Mistake(
        "experiment list",
        "cannot use broken/login.json: it is no login file; delete it",
        environment={HOME_VARIABLE: "broken"},
    ),
    "slots that are no number": Mistake(
        "up --slots many --data-dir new",
        "--slots takes a number from 1 to 64, or auto for this machine's GPUs, not 'many'",
    ),
}


@dataclass(frozen=True)
class Place:
    """The cluster and the folder of the commands."""

    cluster: Cluster
    folder: Path  # working directory
    words: Mapping[str, str]  # values of the placeholders

    def fill(self, text: str) -> str:
        for word, value in self.words.items():
            text = text.replace(word, value)
        return text

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, HOME_VARIABLE: str(self.cluster.home), **environment}
        return WarmPair(warm_program.folder()).run(arguments, variables, 60.0, self.folder)


@pytest.fixture(scope="module")
def place(two_agents: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("work")
    for name in ("code", "links", "large", "broken"):
        (folder / name).mkdir()
        (folder / name / "model_def.py").write_text("def f(:\n" if name == "broken" else failing_source())
    (folder / "broken" / "login.json").write_text('{"adress": "a:1"}')
    (folder / "links" / "data").symlink_to("/nonexistent")
    with (folder / "large" / "data.bin").open("wb") as file:
        file.truncate(600 << 20)
    config = failing_config(slots=1, entrypoint="sleep 600")
    with two_agents.connect() as client:
        ended, running = (client.create_experiment(config, folder / "code").experiment.id for _ in range(2))
        client.kill_experiment(ended)
        client.wait_experiment(ended, 60)
        wait_for(lambda: str(client.get_experiment(running).experiment.state) == "RUNNING", "a running one")
    words = {
        "$ADDRESS": two_agents.login.address,
        "$HTTP": two_agents.login.http_address,
        "$ENDED": str(ended),
        "$RUNNING": str(running),
    }
    return Place(two_agents, folder, words)


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_has_one_line_and_its_status(place: Place, mistake: Mistake) -> None:
    config = place.folder / "config.yaml"
    if isinstance(mistake.config, bytes):
        config.write_bytes(mistake.config)
    else:
        text = mistake.config if isinstance(mistake.config, str) else yaml.safe_dump({**BASE, **mistake.config})
        config.write_text(text)
    environment = {name: place.fill(value) for name, value in mistake.environment.items()}
    done = place.run(place.fill(mistake.arguments).split(), environment)
    assert (done.returncode, done.stdout, done.stderr) == (
        mistake.status, "", f"error: {place.fill(mistake.message)}\n",
    )  # fmt: skip


def test_there_are_fifty_and_none_quotes_another_library() -> None:
    assert len(MISTAKES) >= 50
    for name, mistake in MISTAKES.items():
        assert "\n" not in mistake.message, name
        assert not [part for part in FOREIGN if part in mistake.message], name


HARMLESS = {
    "kill of an ended one": ("experiment kill $ENDED", "experiment $ENDED failing: CANCELED\n", ""),
    "activation of a running one": ("experiment activate $RUNNING", "experiment $RUNNING failing: RUNNING\n", ""),
    "metrics of an unknown group": (
        "experiment metrics $RUNNING --group trainin",
        "",
        "warning: nothing was reported under the group 'trainin'; without --group all groups are shown\n",
    ),
}


@pytest.mark.parametrize(("arguments", "output", "warning"), HARMLESS.values(), ids=HARMLESS)
def test_what_is_so_already_is_no_mistake(place: Place, arguments: str, output: str, warning: str) -> None:
    done = place.run(place.fill(arguments).split(), {})
    assert (done.returncode, done.stdout, done.stderr) == (0, place.fill(output), place.fill(warning))


def test_a_failure_is_told_once_and_shows_the_users_code(place: Place, tmp_path: Path) -> None:
    """The error is below many frames of torch; torch's frames alone would fill the last lines."""
    statement = "nn.Sequential(nn.Sequential(nn.Linear(3, 3)))(torch.zeros(2, 5))"
    (tmp_path / "model_def.py").write_text(failing_source(batch=statement))
    (place.folder / "config.yaml").write_text(failing_config(slots=1))
    created = place.run(["experiment", "create", "--follow", "config.yaml", str(tmp_path)], {})
    assert (created.returncode, created.stderr) == (1, "")
    lines = created.stdout.splitlines()
    number = lines[-1].rpartition(" ")[2]
    error = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x5 and 3x3)"
    [start] = [position for position, line in enumerate(lines) if line.startswith("  reason: ")]
    assert re.fullmatch(
        rf"  reason: trial {number}\.1 failed: rank 0 on agent agent-\d: {re.escape(error)}", lines[start]
    )
    assert lines[start + 1 : start + 4] == [
        "    Traceback (most recent call last):",
        '      File "model_def.py", line 28, in train_batch',
        f"        {statement}",
    ]
    assert re.fullmatch(r"      \.\.\. \d+ frames of torch", lines[start + 4])
    assert lines[start + 5 :] == ["    exit code 1", f"  next: gangline experiment logs {number}"]
    for command in (["experiment", "describe"], ["job", "explain"]):
        assert place.run([*command, number], {}).stdout.count(error) == 1
    assert place.run(["job", "explain", f"{number}.1"], {}).stdout.count(error) == 1
    # The log keeps every frame.
    assert place.run(["experiment", "logs", number], {}).stdout.count("site-packages/torch") > 1


def test_a_pause_is_told_once(place: Place) -> None:
    (place.folder / "config.yaml").write_text(failing_config(slots=4, entrypoint="sleep 600"))
    number = place.run(["experiment", "create", "config.yaml", "code"], {}).stdout.split()[2]
    place.run(["experiment", "pause", number], {})
    line = f"experiment {number} failing: PAUSED, paused by admin"
    activation = f"it is activated: gangline experiment activate {number}"
    described = place.run(["experiment", "describe", number], {}).stdout
    assert described.startswith(f"{line}; goes on if {activation}\n")
    explained = place.run(["job", "explain", number], {}).stdout
    assert explained.startswith(f"{line}\n  goes on if: {activation}\n")
    for text in (described, explained):
        assert text.count("paused") == 1
        assert "QUEUED" not in text
    assert f"\ntrial {number}.1: PAUSED, needs 4 slots, pool 'default'" in explained
    rows = [line.split() for line in place.run(["job", "list"], {}).stdout.splitlines()]
    assert [row[0] for row in rows if row[1] == f"{number}.1"] == ["-"]
