"""PURE: the files of a service's TLS, and whether it may listen without.

Owns the `[tls]` table of every service's settings (flags `--tls-ca-file` and so on). It opens no file; `identity.py`
does.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from gangline.errors import invalid


class TlsSettings(BaseModel):
    """Names the files, all three or none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ca_file: Path | None = Field(default=None, description="the authorities that the cluster trusts, in PEM")
    cert_file: Path | None = Field(default=None, description="this service's certificate, in PEM")
    key_file: Path | None = Field(default=None, description="its key, which only this account may read")

    @property
    def paths(self) -> tuple[Path | None, Path | None, Path | None]:
        return self.ca_file, self.cert_file, self.key_file

    @property
    def is_set(self) -> bool:
        """Whether TLS is on. Raises GanglineError `tls.incomplete`."""
        names = {name: getattr(self, name) for name in ("ca_file", "cert_file", "key_file")}
        missing = [name for name, path in names.items() if path is None]
        if 0 < len(missing) < len(names):
            text = " and ".join(f"tls.{name}" for name in missing)
            raise invalid("tls.incomplete", f"{text} missing: ca_file, cert_file and key_file belong together")
        return not missing


def check_listen(listen: str, host: str, flag: str, *, is_secure: bool, allows_plaintext: bool) -> None:
    """Checks that a server without TLS listens on this machine alone. host: of `listen`. Raises GanglineError
    `tls.plaintext`."""
    if is_secure or allows_plaintext or is_loopback(host):
        return
    raise invalid(
        "tls.plaintext",
        f"cannot listen on {listen} without TLS: everyone on the network could read the tokens; make certificates with "
        "gangline certs and name them below [tls] (docs/security.md), or set allow_plaintext = true "
        f"(--allow-plaintext) for a network that you trust, or give an address of this machine alone with {flag}",
    )


def is_loopback(host: str) -> bool:
    """Returns whether nobody outside of this machine reaches this host. Names other than localhost count as others'."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
