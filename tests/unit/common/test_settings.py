"""Where settings come from, which one wins, and what a misspelled one says."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from gangline.errors import GanglineError
from services.common.setting.settings import ServiceSettings


class Pool(BaseModel):
    model_config = ConfigDict(extra="forbid")

    preemption: bool = False
    priority: int = Field(default=42, ge=1)


class Settings(ServiceSettings):
    service: ClassVar[str] = "example"

    listen: str = "127.0.0.1:8082"
    storage_url: str
    lease_seconds: float = 15
    is_single: bool = False
    slots: int | str = "auto"
    labels: dict[str, str] = Field(default_factory=dict)
    addresses: list[str] = Field(default_factory=list)
    pools: dict[str, Pool] = Field(default_factory=dict)


def load(*flags: str, file: Path | None = None, **environment: str) -> Settings:
    source = ["--settings", str(file)] if file else []
    return Settings.load([*source, "--storage-url", "file:///s", *flags], environment)


def failing(*flags: str, file: Path | None = None, **environment: str) -> tuple[str, str]:
    with pytest.raises(GanglineError) as caught:
        load(*flags, file=file, **environment)
    return caught.value.code, caught.value.message


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "example.toml"


def test_flags_win_over_environment_over_file_over_defaults(file: Path) -> None:
    file.write_text('listen = "file:1"\nlog_level = "warning"\nadvertise_host = "file"\n[etcd]\nuser = "file"\n')
    settings = load(
        "--listen", "flag:1", file=file, GANGLINE_LISTEN="environment:1", GANGLINE_ADVERTISE_HOST="environment"
    )
    assert settings.listen == "flag:1"
    assert settings.advertise_host == "environment"
    assert settings.log_level == "warning"
    assert settings.etcd.user == "file"
    assert settings.log_format == "json"


def test_nested_settings_merge_key_by_key(file: Path) -> None:
    file.write_text('[etcd]\nuser = "file"\nendpoints = ["a:1"]\n')
    settings = load("--etcd-endpoints", "b:1, c:2", file=file, GANGLINE_ETCD_PASSWORD_FILE="/p")
    assert settings.etcd.endpoints == ("b:1", "c:2")
    assert (settings.etcd.user, settings.etcd.password_file) == ("file", Path("/p"))


def test_lists_and_mappings_are_written_with_commas() -> None:
    settings = load("--labels", "rack=3,kind=a=b", "--addresses=a:1,b:2", "--is-single", GANGLINE_SLOTS="4")
    assert settings.labels == {"rack": "3", "kind": "a=b"}
    assert settings.addresses == ["a:1", "b:2"]
    assert settings.is_single
    assert settings.slots == "4"
    assert not load("--no-is-single", GANGLINE_IS_SINGLE="true").is_single


def test_tables_come_from_the_file(file: Path) -> None:
    file.write_text("[pools.gpu]\npreemption = true\n")
    assert load(file=file).pools == {"gpu": Pool(preemption=True)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('lisen = "x:1"', "lisen in {file} is no setting; did you mean listen?"),
        ('[etcd]\nendpoint = ["a:1"]', "etcd.endpoint in {file} is no setting; did you mean etcd.endpoints?"),
        (
            "[pools.gpu]\npreemtion = true",
            "pools.gpu.preemtion in {file} is no setting; did you mean pools.gpu.preemption?",
        ),
        ("qqqqqq = 1", "qqqqqq in {file} is no setting"),
    ],
)
def test_an_unknown_key_in_the_file_is_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    assert failing(file=file) == ("settings.unknown_key", message.format(file=file))


def test_an_unknown_flag_is_refused() -> None:
    code, message = failing("--ectd-endpoints=a:1")
    assert code == "settings.unknown_flag"
    assert message == "--ectd-endpoints is no flag of gangline-example; did you mean --etcd-endpoints?"


def test_a_misspelled_variable_is_refused_and_others_are_left_alone() -> None:
    assert failing(GANGLINE_STORAGE_URI="x") == (
        "settings.unknown_key",
        "GANGLINE_STORAGE_URI in the environment is no setting; did you mean GANGLINE_STORAGE_URL?",
    )
    load(GANGLINE_ETCD="/usr/bin/etcd", GANGLINE_CLUSTER_INFO="{}", LISTEN="x", GANGLINE_TOKEN="t")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--lease-seconds=soon", "lease_seconds in the flags cannot be 'soon': expected a number"),
        ("--log-level=loud", "log_level in the flags cannot be 'loud': must be one of debug, info"),
        ("--labels=rack", "--labels 'rack' is not of the form name=value,name=value"),
        ("--etcd-endpoints=", "etcd.endpoints in the flags cannot be"),
        ("--listen", "gangline-example: argument --listen: expected one argument"),
    ],
)
def test_a_wrong_value_names_where_it_came_from(flag: str, message: str) -> None:
    code, text = failing(flag)
    assert code == "settings.invalid"
    assert text.startswith(message)


def test_a_wrong_value_deep_in_the_file_is_named_by_its_path(file: Path) -> None:
    file.write_text("[pools.gpu]\npriority = 0\n")
    code, text = failing(file=file)
    assert code == "settings.invalid"
    assert text.startswith(f"pools.gpu.priority in {file} cannot be 0:")


def test_a_missing_setting_names_its_flag() -> None:
    with pytest.raises(GanglineError) as caught:
        Settings.load([], {})
    assert caught.value.message.startswith("storage_url is not set; give --storage-url, or set it in /etc/gangline/")


def test_a_file_that_was_named_must_be_there_and_be_toml(file: Path) -> None:
    assert failing(file=file)[0] == "settings.unreadable_file"
    file.write_text("listen = ")
    assert failing(file=file)[0] == "settings.bad_file"
    file.write_bytes(b"listen = \xff")
    assert failing(file=file)[1] == f"{file} is not TOML: byte 9 is not UTF-8 text"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = 1\nb = c\n", "line 2, column 5: this is no value; text needs quotation marks"),
        ("a", "the end of the file: expected = and a value after the key"),
        ("a = 1 2", "line 1, column 7: expected the end of the line after the value"),
        ("[a\n", "line 1, column 3: the name of the section lacks its closing bracket"),
        ("a = 1\na = 2\n", "line 2, column 6: this key is set twice"),
        ("[a]\n[a]\n", "line 2, column 3: this section is declared twice"),
        ("a = 'x", "the end of the file: the text lacks its closing quotation mark"),
        ('a = "x', "the end of the file: the text lacks its closing quotation mark"),
        ("a = [1", "the end of the file: the list or table is not closed"),
        (r'a = "C:\q"', "write two backslashes for one, or put the text into single quotation marks"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_our_words(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    assert failing(file=file)[1].removeprefix(f"{file} is not TOML: ").endswith(words)


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load("--help")
    shown = capsys.readouterr().out
    for flag in ("--settings", "--etcd-endpoints", "--cluster-token-file", "--ready-file", "--no-is-single"):
        assert flag in shown


def test_advertised_address() -> None:
    assert load("--advertise-host", "node1").advertised("0.0.0.0:81") == "node1:81"
    assert load().advertised("10.0.0.1:81") == "10.0.0.1:81"
    assert not load().advertised("0.0.0.0:81").startswith("0.0.0.0")
