"""The folder in which an operator keeps a cluster's authority and the certificates that it has signed.

| file                | mode | holds                                                                  |
|---------------------|------|------------------------------------------------------------------------|
| ca.crt              | 0644 | the authorities that the cluster trusts, the one that signs first      |
| ca.key              | 0600 | the key of that one; it belongs on no machine of the cluster           |
| scheduler.crt, .key | 0600 | certificate and key of the schedulers, likewise of the gateways        |
| agent-ID.crt, .key  | 0600 | certificate and key of one agent                                       |

Each file is written whole. A change of the authority takes three steps, between which the operator copies the files to
the machines: the cluster trusts the new one as well, then all certificates are signed by it, then the old one leaves.
So at each moment all programs trust each other. Called by `gangline certs`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gangline.certificate.authority import Pair, issue, make_authority
from gangline.certificate.facts import CertificateFacts, load_facts
from gangline.domain.peer_name import PeerName, check_cluster, make_peer_name
from gangline.errors import GanglineError, conflict, invalid

_PRIVATE, _PUBLIC = 0o600, 0o644
# Read in one piece; a damaged disk or a wrong path may offer anything.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredCertificate:
    """One certificate of the folder."""

    path: Path
    facts: CertificateFacts


class CertificateFolder:
    """Owns the files below `path`. All methods raise GanglineError `certs.*` and `tls.*`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def ca_path(self) -> Path:
        return self.path / "ca.crt"

    @property
    def ca_key_path(self) -> Path:
        return self.path / "ca.key"

    def init(self, cluster: str, now: datetime, days: int) -> None:
        """Makes the authority of a cluster."""
        check_cluster(cluster)
        for path in (self.ca_path, self.ca_key_path):
            if path.exists():
                raise conflict(
                    "certs.exists",
                    f"{path} is there already, and nothing was written; choose another folder with --dir, or add an "
                    "authority with gangline certs rotate --new-ca",
                )
        self._write_authority(make_authority(cluster, now, days), "")

    def issue(self, name: PeerName, hosts: tuple[str, ...], now: datetime, days: int) -> Path:
        """Makes certificate and key of one program. Returns the path of the certificate."""
        path = self.path / f"{name.file_stem}.crt"
        for file in (path, path.with_suffix(".key")):
            if file.exists():
                raise conflict(
                    "certs.exists",
                    f"{file} is there already, and nothing was written; renew it with gangline certs rotate, or move "
                    "it away",
                )
        self._write_pair(path, issue(self._authority(), name, hosts, now, days))
        return path

    def name_of(self, role: str, agent_id: str) -> PeerName:
        """Returns the name of a program of this cluster."""
        return make_peer_name(role, self.cluster(), agent_id)

    def cluster(self) -> str:
        return self._authorities()[0].cluster

    def rotate(self, now: datetime, days: int) -> list[Path]:
        """Signs every certificate of the folder anew, with a new key. Names and hosts stay. Returns the paths."""
        authority, renewed = self._authority(), list[tuple[Path, Pair]]()
        for stored in self.certificates():
            peer = stored.facts.peers[0]
            renewed.append((stored.path, issue(authority, peer, stored.facts.hosts, now, days)))
        # All of them are made before the first is written, so a wrong --days changes nothing.
        for path, pair in renewed:
            self._write_pair(path, pair)
        return [path for path, _ in renewed]

    def add_authority(self, now: datetime, days: int) -> None:
        """Makes a new authority, which signs from now on. The cluster trusts the former ones, too."""
        bundle = self._read(self.ca_path)
        self._write_authority(make_authority(self.cluster(), now, days), bundle)

    def drop_authorities(self) -> int:
        """Removes every authority but the one that signs. Returns how many."""
        signer, *former = self._authorities()
        foreign = [stored for stored in self.certificates() if stored.facts.issuer_key != signer.own_key]
        if foreign:
            raise conflict(
                "certs.in_use",
                f"{foreign[0].path} is signed by a former authority, and nothing was changed; renew it with "
                "gangline certs rotate, copy the files to the machines, and try again",
            )
        if former:
            self._write(self.ca_path, _first_of(self._read(self.ca_path)), _PUBLIC)
        return len(former)

    def certificates(self) -> list[StoredCertificate]:
        """Returns the programs' certificates, in the order of their files."""
        return [stored for stored in self.all() if stored.facts.peers and not stored.facts.is_authority]

    def all(self) -> list[StoredCertificate]:
        """Returns all certificates, the authorities first."""
        return [*(StoredCertificate(self.ca_path, facts) for facts in self._authorities()), *self._others()]

    def _others(self) -> Iterator[StoredCertificate]:
        for path in sorted(self.path.glob("*.crt")):
            if path != self.ca_path:
                yield from (StoredCertificate(path, facts) for facts in load_facts(path)[:1])

    def _authorities(self) -> list[CertificateFacts]:
        if not self.ca_path.exists():
            raise invalid(
                "certs.no_authority",
                f"{self.path} has no ca.crt; make an authority with gangline certs init, or name its folder with --dir",
            )
        found = load_facts(self.ca_path)
        if not found[0].cluster:
            raise invalid(
                "certs.foreign_authority",
                f"{self.ca_path} is of another authority than certs init makes; have that one sign the certificates "
                "(docs/security.md names the names that they need)",
            )
        return found

    def _authority(self) -> Pair:
        self._authorities()
        return Pair(self._read(self.ca_path), self._read(self.ca_key_path))

    def _read(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                return file.read(_MOST_BYTES).decode("ascii")
        except OSError as failure:
            raise invalid("tls.unreadable_file", f"cannot read {path}: {failure.strerror}") from failure
        except UnicodeDecodeError as failure:
            raise invalid("tls.bad_certificate", f"{path} is no file in PEM") from failure

    def _write_authority(self, authority: Pair, others: str) -> None:
        # A key without its certificate signs nothing; a certificate without its key would be refused ever after.
        self._write(self.ca_key_path, authority.key, _PRIVATE)
        self._write(self.ca_path, authority.certificate + others, _PUBLIC)

    def _write_pair(self, path: Path, pair: Pair) -> None:
        # A service that reads between the two finds a pair that does not match, and goes on with what it had.
        self._write(path.with_suffix(".key"), pair.key, _PRIVATE)
        self._write(path, pair.certificate, _PRIVATE)

    def _write(self, path: Path, text: str, mode: int) -> None:
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The file has its mode before it has any text, so no other account can read a key meanwhile.
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as failure:
            part.unlink(missing_ok=True)
            raise GanglineError("certs.unwritable", f"cannot write {path}: {failure.strerror}") from failure


def _first_of(bundle: str) -> str:
    end = "-----END CERTIFICATE-----\n"
    return bundle[: bundle.index(end) + len(end)]
