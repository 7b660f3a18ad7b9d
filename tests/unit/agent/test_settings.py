"""The agent's settings: what is refused, and in which words."""

from __future__ import annotations

import socket

import pytest

from gangline.errors import GanglineError
from services.agent.settings import AgentSettings


def test_flags() -> None:
    settings = AgentSettings.load(
        ["--slots", "4", "--labels", "zone=b,kind=dgx", "--scheduler-addresses", "s1:8082,s2:8082", "--no-warm"], {}
    )
    assert (settings.slots, settings.warm) == ("4", False)
    assert settings.labels == {"zone": "b", "kind": "dgx"}
    assert settings.scheduler_addresses == ["s1:8082", "s2:8082"]


def test_defaults() -> None:
    settings = AgentSettings.load([], {})
    assert (settings.id, settings.slots, settings.kill_runners_on_exit) == (socket.gethostname(), "auto", False)
    assert (settings.health_seconds, settings.health_confirmations, settings.health_good_checks) == (15.0, 2, 3)
    assert (settings.code_cache_mb, settings.code_cache_days) == (2048.0, 30.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slots", "many"], "it is auto or a number from 0 to 1024"),
        (["--slots", "-1"], "slots"),
        (["--id", "a/b"], "letters, digits"),
        (["--scheduler-addresses", ""], "scheduler_addresses"),
        (["--health-confirmations", "1"], "health_confirmations"),
        (["--health-good-checks", "0"], "health_good_checks"),
        (["--code-cache-mb", "-1"], "code_cache_mb"),
        (["--slot", "2"], "did you mean --slots?"),
        (["--pool", "a\x1b[2J"], "it has the control character"),
        (["--labels", "zone=a\nb"], "it has the control character"),
    ],
)
def test_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(GanglineError, match=words.replace("?", r"\?")):
        AgentSettings.load(arguments, {})
