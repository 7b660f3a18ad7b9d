"""`gangline certs`: the whole life of a folder by its commands, and one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gangline.cli.main import run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(["certs", *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    return {str(Path(row["path"]).name): row for row in answer} if isinstance(answer, list) else answer


def test_certificates_are_made_shown_and_renewed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert read(capsys, "init", "--cluster", "lab")["ca_file"] == "certs/ca.crt"
    read(capsys, "issue", "scheduler")
    read(capsys, "issue", "gateway", "--host", "gw.example", "--host", "10.0.0.5")
    assert read(capsys, "issue", "agent", "gpu-7")["name"] == "agent.gpu-7.lab"
    before = read(capsys, "show")
    assert before["gateway.crt"]["hosts"] == ["gw.example", "10.0.0.5"]
    assert [row["peers"] for row in before.values()] == [[], ["agent.gpu-7.lab"], ["gateway.lab"], ["scheduler.lab"]]
    assert read(capsys, "rotate", "--new-ca")["changed"] == ["certs/ca.crt"]
    assert len(read(capsys, "rotate")["changed"]) == 3
    assert read(capsys, "rotate", "--drop-old-ca")["changed"] == ["certs/ca.crt"]
    after = read(capsys, "show")
    assert after.keys() == before.keys()
    assert all(after[name]["serial"] != before[name]["serial"] for name in before)
    assert run(["certs", "show"]) == 0
    shown = capsys.readouterr().out
    assert "agent.gpu-7.lab" in shown
    assert shown.count("VALID") == 4


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["issue", "scheduler", "--dir", "none"], "none has no ca.crt; make an authority with gangline certs init"),
        (["issue", "gateway"], "users check the host name of a gateway"),
        (["issue", "master"], "'master' is no role of a service"),
        (["issue", "agent"], "'' is no id of an agent"),
        (["init"], "certs/ca.crt is there already, and nothing was written"),
        (["rotate", "--new-ca", "--drop-old-ca"], "--new-ca and --drop-old-ca are two steps"),
        (["issue", "scheduler", "--days", "9999"], "before 9999 days are over"),
    ],
)
def test_mistakes_get_one_line(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    read(capsys, "init")
    assert run(["certs", *words]) in (1, 2)
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1
