"""The example settings are read by the services without complaint, and what they call a default is one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from services.agent.settings import AgentSettings
from services.common.setting.settings import ServiceSettings
from services.gateway.program import GatewaySettings
from services.scheduler.settings import SchedulerSettings
from tests.support.source import ROOT

# Without a default, or with one that a comment cannot show.
SHOWN_AS_EXAMPLE = {
    *("advertise_host", "id", "labels", "rank_users"),
    *("ca_file", "cert_file", "key_file", "user", "password_file"),
}
# Set by whoever starts the service, not in a file.
NOT_IN_FILE = {"ready_file", "kill_runners_on_exit", "exit_grace_seconds"}
SERVICES: list[type[ServiceSettings]] = [AgentSettings, GatewaySettings, SchedulerSettings]


def _file(service: type[ServiceSettings]) -> Path:
    return ROOT / "deploy" / "settings" / f"{service.service}.toml"


def _with_comments_removed(service: type[ServiceSettings]) -> dict[str, Any]:
    """The file as it would be if every commented line were set."""
    return tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", _file(service).read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("service", SERVICES)
def test_example_is_accepted(service: type[ServiceSettings]) -> None:
    service.load(["--settings", str(_file(service))], environment={})


@pytest.mark.parametrize("service", SERVICES)
def test_commented_lines_are_known_and_show_the_defaults(service: type[ServiceSettings], tmp_path: Path) -> None:
    shown = _with_comments_removed(service)
    everything = tmp_path / "everything.toml"
    everything.write_text(re.sub(r"^# (\w+ = )", r"\1", _file(service).read_text(), flags=re.MULTILINE))
    settings = service.load(["--settings", str(everything)], environment={})
    set_for_real = tomllib.loads(_file(service).read_text())
    for name in shown.keys() - set_for_real.keys() - SHOWN_AS_EXAMPLE:
        assert getattr(settings, name) == service.model_fields[name].get_default(call_default_factory=True), name


def test_docs_name_every_setting() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text() + "".join(_file(service).read_text() for service in SERVICES)
    missing = [
        f"{service.service}: {name}"
        for service in SERVICES
        for name in service.model_fields
        if name not in text and name not in NOT_IN_FILE
    ]
    assert missing == []
