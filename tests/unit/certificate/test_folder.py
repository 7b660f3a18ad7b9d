"""The authority of a cluster: what it signs, what it refuses, and its change without a moment of mistrust."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store

from gangline.certificate.facts import load_facts
from gangline.certificate.folder import CertificateFolder
from gangline.errors import GanglineError

NOW = datetime.now(UTC)


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    made = CertificateFolder(tmp_path / "certs")
    made.init("lab", NOW, 3650)
    return made


def issue(folder: CertificateFolder, role: str, agent_id: str = "", *hosts: str, days: int = 365) -> Path:
    return folder.issue(folder.name_of(role, agent_id), hosts, NOW, days)


def is_trusted(folder: CertificateFolder, certificate: Path, host: str) -> bool:
    """Asks another verifier than ours, with the authorities of the folder."""
    store = Store(x509.load_pem_x509_certificates(folder.ca_path.read_bytes()))
    verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName(host))
    try:
        verifier.verify(x509.load_pem_x509_certificate(certificate.read_bytes()), [])
    except x509.verification.VerificationError:
        return False
    return True


def code_of(action: object) -> str:
    with pytest.raises(GanglineError) as caught:
        action()  # type: ignore[operator]  # a function of the test
    return caught.value.code


def test_names_and_hosts_are_in_the_certificate_and_the_key_belongs_to_it(folder: CertificateFolder) -> None:
    path = issue(folder, "gateway", "", "gw.example", "10.0.0.5", "[fd00::7]")
    [facts] = load_facts(path)
    assert [str(peer) for peer in facts.peers] == ["gateway.lab"]
    assert facts.hosts == ("gw.example", "10.0.0.5", "fd00::7")
    assert not facts.is_authority
    assert is_trusted(folder, path, "gw.example")
    assert is_trusted(folder, path, "gateway.lab")
    assert not is_trusted(folder, path, "scheduler.lab")
    key = load_pem_private_key(path.with_suffix(".key").read_bytes(), None)
    assert key.public_key() == x509.load_pem_x509_certificate(path.read_bytes()).public_key()


def test_only_its_owner_reads_a_key(folder: CertificateFolder) -> None:
    path = issue(folder, "agent", "a1")
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (folder.ca_key_path, path.with_suffix(".key"))]
    assert modes == [0o600, 0o600]
    assert stat.S_IMODE(folder.ca_path.stat().st_mode) == 0o644
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_nothing_is_overwritten(folder: CertificateFolder) -> None:
    path = issue(folder, "agent", "a1")
    before = {each: each.read_bytes() for each in folder.path.iterdir()}
    assert code_of(lambda: issue(folder, "agent", "a1")) == "certs.exists"
    assert code_of(lambda: folder.init("lab", NOW, 10)) == "certs.exists"
    path.unlink()
    assert code_of(lambda: issue(folder, "agent", "a1")) == "certs.exists"
    del before[path]
    assert {each: each.read_bytes() for each in folder.path.iterdir()} == before


@pytest.mark.parametrize(
    ("role", "agent_id", "code"),
    [
        ("master", "", "certs.role"),
        ("agent", "", "certs.agent"),
        ("agent", "a b", "certs.agent"),
        ("agent", "-a", "certs.agent"),
        ("gateway", "g1", "certs.agent"),
    ],
)
def test_a_wrong_name_is_refused(folder: CertificateFolder, role: str, agent_id: str, code: str) -> None:
    assert code_of(lambda: issue(folder, role, agent_id)) == code


@pytest.mark.parametrize("cluster", ["", "Lab", "a.b", "-a", "a" * 41])
def test_a_cluster_is_one_word(tmp_path: Path, cluster: str) -> None:
    assert code_of(lambda: CertificateFolder(tmp_path).init(cluster, NOW, 10)) == "certs.cluster"


def test_a_host_with_a_port_and_days_beyond_the_authority_are_refused(folder: CertificateFolder) -> None:
    assert code_of(lambda: issue(folder, "gateway", "", "gw:8081")) == "certs.host"
    assert code_of(lambda: issue(folder, "scheduler", days=4000)) == "certs.days"
    assert sorted(path.name for path in folder.path.iterdir()) == ["ca.crt", "ca.key"]


def test_longest_name_of_an_agent_has_a_certificate(folder: CertificateFolder) -> None:
    [facts] = load_facts(issue(folder, "agent", "a" * 63))
    assert facts.peers[0].agent_id == "a" * 63


def test_renewal_keeps_names_and_hosts_and_takes_new_keys(folder: CertificateFolder) -> None:
    path = issue(folder, "gateway", "", "gw.example")
    [before], key = load_facts(path), path.with_suffix(".key").read_bytes()
    assert folder.rotate(NOW + timedelta(seconds=60), 365) == [path]
    [after] = load_facts(path)
    assert (after.peers, after.hosts) == (before.peers, before.hosts)
    assert after.ends_at > before.ends_at
    assert path.with_suffix(".key").read_bytes() != key
    assert is_trusted(folder, path, "gw.example")


def test_a_new_authority_comes_and_the_old_one_goes_while_all_stay_trusted(folder: CertificateFolder) -> None:
    former = issue(folder, "scheduler")
    folder.add_authority(NOW, 3650)
    assert len(load_facts(folder.ca_path)) == 2
    assert is_trusted(folder, former, "scheduler.lab")
    # What is issued between two steps is of the new one.
    assert is_trusted(folder, issue(folder, "agent", "a1"), "agent.a1.lab")
    assert code_of(folder.drop_authorities) == "certs.in_use"
    assert len(load_facts(folder.ca_path)) == 2
    old = former.read_bytes()
    folder.rotate(NOW, 365)
    assert folder.drop_authorities() == 1
    assert folder.drop_authorities() == 0
    assert is_trusted(folder, former, "scheduler.lab")
    former.write_bytes(old)
    assert not is_trusted(folder, former, "scheduler.lab")


def test_a_folder_without_an_authority_and_a_foreign_one_are_named(tmp_path: Path, folder: CertificateFolder) -> None:
    assert code_of(lambda: CertificateFolder(tmp_path / "none").all()) == "certs.no_authority"
    scheduler = issue(folder, "scheduler")
    folder.ca_path.write_bytes(scheduler.read_bytes())
    assert code_of(lambda: issue(folder, "agent", "a1")) == "certs.foreign_authority"
    folder.ca_path.write_text("nothing")
    assert code_of(lambda: issue(folder, "agent", "a1")) == "tls.bad_certificate"


def test_a_key_of_another_authority_signs_nothing(tmp_path: Path, folder: CertificateFolder) -> None:
    other = CertificateFolder(tmp_path / "other")
    other.init("lab", NOW, 10)
    folder.ca_key_path.write_bytes(other.ca_key_path.read_bytes())
    assert code_of(lambda: issue(folder, "agent", "a1", days=5)) == "certs.bad_authority"
