"""An address that signs a user in is given to a browser in a file of the user alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gangline.cli.browser import open_privately
from gangline.cli.open import enter_address
from gangline.errors import GanglineError
from gangline.login import HOME_VARIABLE


def test_key_is_in_no_word_of_the_browsers_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, words = tmp_path / "browser", tmp_path / "words"
    program.write_text(f'#!/bin/sh\ntr "\\0" " " </proc/$$/cmdline >{words}\n')
    program.chmod(0o755)
    # Python reads it once, when it is asked for a browser for the first time.
    monkeypatch.setattr("webbrowser._tryorder", None)
    monkeypatch.setenv("BROWSER", str(program))
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    address = enter_address("http://gpu1:8080/lab/", "key:1:2:ann:0f", "/experiments/5")
    assert address == "http://gpu1:8080/lab/enter#key=key:1:2:ann:0f&to=/experiments/5"
    assert open_privately(address)
    page = tmp_path / "home" / "open.html"
    assert words.read_text().split()[-1] == page.as_uri()
    assert "key:1" not in words.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert 'content="0; url=http://gpu1:8080/lab/enter#key=key:1:2:ann:0f&amp;to=/experiments/5"' in page.read_text()


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    with pytest.raises(GanglineError, match=r"cannot write .*/home/open\.html"):
        open_privately("http://gpu1/")
