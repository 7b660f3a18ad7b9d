"""Reads the YAML file of an experiment. Each way to fail has its own message. The CLI and the SDK call it."""

from __future__ import annotations

from pathlib import Path

from gangline.errors import GanglineError, invalid


def read_text(config: Path) -> str:
    """Reads the experiment's YAML file. Raises GanglineError `config.unreadable`."""
    try:
        return config.read_text("utf-8")
    except FileNotFoundError as failure:
        raise _unreadable(config, "there is no such file; give the YAML file") from failure
    except IsADirectoryError as failure:
        raise _unreadable(config, "it is a folder; give the YAML file") from failure
    except PermissionError as failure:
        raise _unreadable(config, "this account may not read it; change its mode") from failure
    except (OSError, ValueError) as failure:
        if isinstance(failure, UnicodeDecodeError):
            where = f"byte {failure.start} is no UTF-8"
            raise invalid(
                "config.unreadable", f"{config} is no text ({where}); give the experiment's YAML file"
            ) from failure
        reason = failure.strerror if isinstance(failure, OSError) else "this is no name of a file"
        raise _unreadable(config, f"{reason}; give the YAML file") from failure


def _unreadable(config: Path, why: str) -> GanglineError:
    return invalid("config.unreadable", f"cannot read {config}: {why}")
