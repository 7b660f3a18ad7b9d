"""The settings that every service has, and their sources.

Owns the precedence (flags, then GANGLINE_* variables, then the TOML file, then defaults) and the refusal of unknown
keys, with the nearest known one. A service derives its own class from ServiceSettings and calls `load` in its
`__main__`. It reads files and the environment; it opens nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gangline.domain.storage.storage_url import check_storage_url
from gangline.errors import GanglineError, invalid
from gangline.printable import find_unprintable
from services.common.access.secret_file import warn_if_open
from services.common.address import advertised_address, split_address
from services.common.etcd.settings import EtcdSettings
from services.common.setting.setting_error import Layer, explain, nearest
from services.common.setting.setting_flag import flags_of, parse_flags, value_at
from services.common.telemetry import LogFormat
from services.common.tls.settings import TlsSettings, check_listen

_ENVIRONMENT_PREFIX = "GANGLINE_"
# Read by other programs of Gangline, and so close to a setting's name that it would count as a misspelling of it.
_OTHER_VARIABLES = {"GANGLINE_ETCD"}


class ServiceSettings(BaseSettings):
    """Holds the settings of all services. `[etcd]` in the file is `--etcd-...` as flags and GANGLINE_ETCD_... as
    variables."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    service: ClassVar[str] = "service"
    # Settings of earlier versions, each with what to set instead.
    replaced: ClassVar[Mapping[str, str]] = {}

    etcd: EtcdSettings = EtcdSettings()
    cluster_token_file: Path | None = None
    ready_file: Path | None = None
    log_format: LogFormat = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_listen: str | None = None
    advertise_host: str | None = None
    tls: TlsSettings = TlsSettings()
    allow_plaintext: bool = Field(default=False, description="listen beyond this machine although TLS is off")
    # The file that the settings came from, if it has a password.
    _secret_file: Path | None = PrivateAttr(default=None)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keeps only the values that `load` passes: it merges the sources itself, while each value's origin is still
        known."""
        return (init_settings,)

    @classmethod
    def load(cls, arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> Self:
        """Loads the settings. arguments: without the program's name; sys.argv's when None. Raises GanglineError
        `settings.*`."""
        program = f"gangline-{cls.service.replace('_', '-')}"
        flags, file = parse_flags(cls, program, sys.argv[1:] if arguments is None else arguments)
        layers = [flags, _read_environment(cls, os.environ if environment is None else environment)]
        path = file or Path(f"/etc/gangline/{cls.service}.toml")
        layers.append(_read_file(path, is_optional=file is None))
        merged: dict[str, Any] = {}
        for layer in reversed(layers):
            _merge(merged, layer.values)
        try:
            settings = cls(**merged)
        except ValidationError as error:
            raise explain(cls, error, layers) from error
        if any(_has_password(value) for value in layers[-1].values.values()):
            settings._secret_file = path
        return settings

    def warn_of_open_file(self) -> None:
        """Logs a warning where other accounts can read a password that stands in the settings file. Called once the log
        is configured."""
        if self._secret_file is not None:
            with contextlib.suppress(FileNotFoundError):  # it has been moved since
                warn_if_open(self._secret_file, self._secret_file.stat().st_mode)

    def advertised(self, address: str) -> str:
        """Returns the address at which other machines reach an address that this service listens on."""
        return advertised_address(address, self.advertise_host)

    def check_plaintext(self, listen: str, flag: str) -> None:
        """Checks that a server may listen there. Raises GanglineError `tls.plaintext` for one without TLS that others
        reach."""
        host, _ = split_address(listen)
        check_listen(listen, host, flag, is_secure=self.tls.is_set, allows_plaintext=self.allow_plaintext)


def check_names(names: Iterable[str]) -> None:
    """Checks names that users see. Raises ValueError where one has a control character."""
    for name in names:
        letter = find_unprintable(name)
        if letter is not None:
            raise ValueError(f"it has the control character {letter}; use characters that can be printed")


def check_own_storage(url: str) -> None:
    """Checks the cluster's storage, which may have any protocol of fsspec. Raises ValueError for a chain of
    protocols."""
    try:
        check_storage_url(url, url)
    except GanglineError as error:
        raise ValueError(error.message) from error


# By the beginning of the messages of tomllib.
_TOML_FAULTS = {
    "Invalid value": "this is no value; text needs quotation marks",
    "Invalid statement": "expected a key, = and a value",
    "Invalid initial character": "expected a key, = and a value",
    "Expected '='": "expected = and a value after the key",
    "Expected newline": "expected the end of the line after the value",
    "Expected ']": "the name of the section lacks its closing bracket",
    'Expected "': "the text lacks its closing quotation mark",
    "Cannot overwrite": "this key is set twice",
    "Cannot mutate": "this key is set twice",
    "Cannot declare": "this section is declared twice",
    "Duplicate": "this key is set twice",
    "Unclosed": "the list or table is not closed",
    "Unterminated": "the text lacks its closing quotation mark",
    "Illegal character": "the text lacks its closing quotation mark",
    "Unescaped": "write two backslashes for one, or put the text into single quotation marks",
}


def _read_environment(model: type[BaseSettings], environment: Mapping[str, str]) -> Layer:
    """Reads the variables. Variables that set nothing here belong to other programs; one that looks like a misspelling
    is refused."""
    flag_by_variable = {_ENVIRONMENT_PREFIX + "_".join(flag.path).upper(): flag for flag in flags_of(model)}
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if name in flag_by_variable:
            value_at(values, flag_by_variable[name].path, flag_by_variable[name].parse(text, name))
        elif name.startswith(_ENVIRONMENT_PREFIX) and name not in _OTHER_VARIABLES:
            candidate = nearest(name, flag_by_variable, cutoff=0.9)
            if candidate:
                raise invalid(
                    "settings.unknown_key", f"{name} in the environment is no setting; did you mean {candidate}?"
                )
    return Layer("the environment", values)


def _has_password(value: object) -> bool:
    """Returns whether a setting is a URL of the form scheme://user:password@host."""
    return isinstance(value, str) and re.search(r"://[^/@:]*:[^/@]+@", value) is not None


def _read_file(path: Path, is_optional: bool) -> Layer:
    if is_optional and not path.exists():
        return Layer(str(path), {})
    try:
        return Layer(str(path), tomllib.loads(path.read_text()))
    except OSError as error:
        raise invalid("settings.unreadable_file", f"cannot read the settings file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise invalid("settings.bad_file", f"{path} is not TOML: byte {error.start} is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise invalid("settings.bad_file", f"{path} is not TOML: {_describe_toml_error(str(error))}") from error


def _describe_toml_error(text: str) -> str:
    """Says in our words what the parser's message means, and where. Messages of later parsers get only the place."""
    fault = next((words for beginning, words in _TOML_FAULTS.items() if text.startswith(beginning)), "cannot be read")
    place = re.search(r"\(at (line \d+, column \d+)\)$", text)
    return f"{place[1] if place else 'the end of the file'}: {fault}"


def _merge(target: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = dict(value) if isinstance(value, Mapping) else value
