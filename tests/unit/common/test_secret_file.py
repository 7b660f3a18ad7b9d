"""A secret in a file that every account can read is used, and a warning names the command that closes the file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from services.common.access.secret_file import read_secret
from services.common.access.security import load_token
from services.common.etcd.connection import Rotation
from services.common.etcd.settings import EtcdSettings
from services.common.setting.settings import ServiceSettings

TOKEN = "a token of more than 16 characters".replace(" ", "-")


class Settings(ServiceSettings):
    service: ClassVar[str] = "example"

    database_url: str = ""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other accounts may enter, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def warnings_of(path: Path) -> list[str]:
    with capture_logs() as logs:
        assert read_secret(path) == TOKEN.encode()
    return [entry["event"] for entry in logs]


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_closed_file_is_read_without_a_word(folder: Path, mode: int) -> None:
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(mode)
    assert warnings_of(folder / "token") == []


@pytest.mark.parametrize("mode", [0o644, 0o604])
def test_open_file_is_named_with_the_remedy(folder: Path, mode: int) -> None:
    path = folder / "token"
    path.write_text(TOKEN)
    path.chmod(mode)
    said = (
        f"{path} has a secret and the mode {mode:04o}: every account of this machine can read it; run: chmod o= {path}"
    )
    assert warnings_of(path) == [said]
    with capture_logs() as logs:
        assert load_token(path) == TOKEN
    assert [entry["event"] for entry in logs] == [said]


def test_private_keys_are_checked_and_certificates_are_not(folder: Path) -> None:
    for name in ("key", "certificate"):
        (folder / name).write_text(TOKEN)
        (folder / name).chmod(0o644)
    with capture_logs() as logs:
        Rotation(EtcdSettings(cert_file=folder / "certificate", key_file=folder / "key"))
    assert [entry["event"].partition(" ")[0] for entry in logs] == [str(folder / "key")]


def test_open_file_in_a_closed_folder_is_safe(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o750)
    path = folder / "closed" / "token"
    path.write_text(TOKEN)
    path.chmod(0o644)
    assert warnings_of(path) == []


@pytest.mark.parametrize(
    ("url", "mode", "num_warnings"),
    [
        ("postgresql://gangline:secret@db-1/gangline", 0o644, 1),
        ("postgresql://gangline:secret@db-1/gangline", 0o640, 0),
        ("postgresql://gangline@db-1/gangline", 0o644, 0),
        ("sqlite:////var/lib/gangline/a:b@c.db", 0o644, 0),
    ],
)
def test_settings_file_with_a_password_is_a_secret(folder: Path, url: str, mode: int, num_warnings: int) -> None:
    path = folder / "example.toml"
    path.write_text(f'database_url = "{url}"\n')
    path.chmod(mode)
    settings = Settings.load(["--settings", str(path)], {})
    with capture_logs() as logs:
        settings.warn_of_open_file()
    assert len([entry for entry in logs if str(path) in entry["event"]]) == num_warnings
    assert "secret@" not in str(logs)
