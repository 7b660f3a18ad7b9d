"""The files of a cluster with TLS, made by `gangline certs`, and the flags with which services use them."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gangline.certificate.authority import Pair, issue
from gangline.certificate.folder import CertificateFolder
from gangline.domain.peer_name import make_peer_name
from gangline.protocol.dialer import TlsFiles
from services.common.tls.settings import TlsSettings

CLUSTER = "lab"
HOSTS = ("127.0.0.1", "localhost")


def make_certificates(path: Path, *agent_ids: str, cluster: str = CLUSTER) -> CertificateFolder:
    """An authority with certificates for schedulers, gateways and these agents."""
    folder = CertificateFolder(path)
    now = datetime.now(UTC)
    folder.init(cluster, now, 100)
    for role in ("scheduler", "gateway"):
        folder.issue(folder.name_of(role, ""), HOSTS, now, 10)
    for agent_id in agent_ids:
        folder.issue(folder.name_of("agent", agent_id), (), now, 10)
    return folder


def files_of(folder: CertificateFolder, stem: str) -> TlsFiles:
    """stem: such as "scheduler" or "agent-a1"."""
    return TlsFiles(str(folder.ca_path), str(folder.path / f"{stem}.crt"), str(folder.path / f"{stem}.key"))


def settings_of(folder: CertificateFolder, stem: str) -> TlsSettings:
    files = files_of(folder, stem)
    return TlsSettings(ca_file=Path(files.ca_file), cert_file=Path(files.cert_file), key_file=Path(files.key_file))


def flags_of(folder: CertificateFolder, stem: str) -> list[tuple[str, str]]:
    files = files_of(folder, stem)
    names = ("--tls-ca-file", "--tls-cert-file", "--tls-key-file")
    return list(zip(names, (files.ca_file, files.cert_file, files.key_file), strict=True))


def expire(folder: CertificateFolder, stem: str, *hosts: str) -> None:
    """Replaces a certificate by one that has ended."""
    role, _, agent_id = stem.partition("-")
    authority = Pair(folder.ca_path.read_text(), folder.ca_key_path.read_text())
    before = datetime.now(UTC) - timedelta(days=2)
    pair = issue(authority, make_peer_name(role, CLUSTER, agent_id), hosts, before, 1)
    write_pair(folder.path / stem, pair)


def write_pair(stem: Path, pair: Pair) -> None:
    stem.with_name(f"{stem.name}.key").write_text(pair.key)
    stem.with_name(f"{stem.name}.crt").write_text(pair.certificate)


def copy_pair(source: Path, target: Path) -> None:
    """As an operator who copies two files, one after the other."""
    for suffix in (".key", ".crt"):
        part = target.with_name(f".{target.name}.part")
        shutil.copy(source.with_name(source.name + suffix), part)
        part.replace(target.with_name(target.name + suffix))
