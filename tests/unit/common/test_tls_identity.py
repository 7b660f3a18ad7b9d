"""The files of a service's TLS: what ends it at the start with one line, and what it survives later."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gangline.certificate.folder import CertificateFolder
from gangline.domain.peer_name import GATEWAY, SCHEDULER
from gangline.errors import GanglineError
from gangline.protocol import dialer as dialer_module
from gangline.protocol.dialer import TlsFiles, dialer_of
from services.common.state_folder import StateFolder
from services.common.tls.identity import TlsIdentity, load_identity
from services.common.tls.server_credentials import http_context
from services.common.tls.settings import TlsSettings, check_listen
from tests.support.tls import copy_pair, expire, files_of, make_certificates, settings_of


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    return make_certificates(tmp_path / "certs", "a1", "a2")


def message_of(action: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(GanglineError) as caught:
        action()
    return caught.value.code, caught.value.message


def refusal(folder: CertificateFolder, stem: str = "agent-a1", role: str = "agent", agent_id: str = "a1") -> str:
    return message_of(lambda: load_identity(settings_of(folder, stem), role, agent_id))[0]


def test_an_identity_has_the_cluster_of_its_name(folder: CertificateFolder) -> None:
    identity = load_identity(settings_of(folder, "agent-a1"), "agent", "a1")
    assert identity is not None
    assert identity.cluster == "lab"
    assert load_identity(TlsSettings(), "agent", "a1") is None


def test_all_three_files_belong_together(folder: CertificateFolder) -> None:
    half = TlsSettings(ca_file=folder.ca_path)
    code, message = message_of(lambda: load_identity(half, SCHEDULER))
    assert code == "tls.incomplete"
    assert "tls.cert_file and tls.key_file missing" in message


@pytest.mark.parametrize(("role", "agent_id"), [("agent", "a2"), ("scheduler", ""), ("gateway", "")])
def test_a_certificate_is_good_for_its_own_name_alone(folder: CertificateFolder, role: str, agent_id: str) -> None:
    assert refusal(folder, role=role, agent_id=agent_id) == "tls.wrong_name"


def test_a_key_that_others_may_read_is_refused(folder: CertificateFolder) -> None:
    key = folder.path / "agent-a1.key"
    for mode in (0o604, 0o620, 0o601):
        key.chmod(mode)
        assert refusal(folder) == "tls.open_key"
    key.chmod(0o400)
    assert load_identity(settings_of(folder, "agent-a1"), "agent", "a1") is not None


def test_faults_of_the_files_have_one_line_each(folder: CertificateFolder, tmp_path: Path) -> None:
    pair = (folder.path / "agent-a1.crt", folder.path / "agent-a1.key")
    contents = [path.read_bytes() for path in pair]
    # Of another program.
    pair[1].write_bytes((folder.path / "agent-a2.key").read_bytes())
    assert refusal(folder) == "tls.bad_key"
    pair[1].write_text("nothing")
    assert refusal(folder) == "tls.bad_key"
    pair[1].write_bytes(contents[1])
    pair[0].write_text("nothing")
    assert refusal(folder) == "tls.bad_certificate"
    pair[0].unlink()
    code, message = message_of(lambda: load_identity(settings_of(folder, "agent-a1"), "agent", "a1"))
    hint = "make it with gangline certs, and copy it here (docs/security.md)"
    assert (code, message) == ("tls.unreadable_file", f"cannot read {pair[0]}: No such file or directory; {hint}")
    expire(folder, "agent-a1")
    code, message = message_of(lambda: load_identity(settings_of(folder, "agent-a1"), "agent", "a1"))
    assert code == "tls.expired"
    assert str(pair[0]) in message
    assert "gangline certs rotate" in message
    other = make_certificates(tmp_path / "other", "a1")
    copy_pair(other.path / "agent-a1", folder.path / "agent-a1")
    assert refusal(folder) == "tls.wrong_authority"


def test_half_of_a_copy_leaves_the_former_files_in_use(folder: CertificateFolder, tmp_path: Path) -> None:
    identity = TlsIdentity(files_of(folder, "scheduler"), SCHEDULER)
    before = identity.current()
    renewed = CertificateFolder(tmp_path / "copy")
    renewed.path.mkdir()
    for path in folder.path.iterdir():
        (renewed.path / path.name).write_bytes(path.read_bytes())
        (renewed.path / path.name).chmod(0o600)
    renewed.rotate(datetime.now(UTC), 20)
    key = folder.path / "scheduler.key"
    key.write_bytes((renewed.path / key.name).read_bytes())
    with capture_logs() as lines:
        assert [identity.current() for _ in range(3)] == [before] * 3
    faults = [line for line in lines if line["log_level"] == "error"]
    assert len(faults) == 1, "one line for one fault, not one for each handshake"
    assert "is not the key of" in faults[0]["reason"]
    copy_pair(renewed.path / "scheduler", folder.path / "scheduler")
    after = identity.current()
    assert after.ends_at > before.ends_at
    assert identity.current() is after


def test_files_that_go_or_are_of_another_cluster_leave_the_former_ones_in_use(
    folder: CertificateFolder, tmp_path: Path
) -> None:
    identity = TlsIdentity(files_of(folder, "scheduler"), SCHEDULER)
    before = identity.current()
    other = make_certificates(tmp_path / "other", cluster="other")
    folder.ca_path.write_bytes(other.ca_path.read_bytes())
    copy_pair(other.path / "scheduler", folder.path / "scheduler")
    assert identity.current() is before
    folder.ca_path.unlink()
    assert identity.current() is before


def test_the_end_of_a_certificate_is_in_the_log_before_and_after(
    folder: CertificateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It ends in ten days.
    with capture_logs() as lines:
        identity = TlsIdentity(files_of(folder, "scheduler"), SCHEDULER)
        identity.current()
    assert [line["event"] for line in lines] == ["the certificate ends soon"]
    ends_at = identity.current().ends_at
    monkeypatch.setattr("services.common.tls.identity.REPEAT_SECONDS", 0.0)
    monkeypatch.setattr("services.common.tls.identity.time.time", lambda: ends_at + 1)
    with capture_logs() as lines:
        identity.dialer(GATEWAY).open("127.0.0.1:1", []).close()
    assert lines[-1]["event"] == "the certificate has ended, and nobody connects with it any more"


def test_http_handshakes_take_the_files_as_they_are_then(folder: CertificateFolder) -> None:
    identity = TlsIdentity(files_of(folder, "gateway"), GATEWAY)
    context = http_context(identity)

    def shown(host: str | None) -> str:
        client = ssl.create_default_context(cafile=str(folder.ca_path))
        client.check_hostname = host is not None
        ends = [ssl.MemoryBIO() for _ in range(4)]
        near = client.wrap_bio(ends[0], ends[1], server_hostname=host)
        far = context.wrap_bio(ends[2], ends[3], server_side=True)
        for _ in range(4):
            for side in (near, far):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
                ends[2].write(ends[1].read())
                ends[0].write(ends[3].read())
        certificate = near.getpeercert()
        assert certificate
        return str(certificate["serialNumber"])

    first = shown("localhost")
    assert shown(None) == first
    folder.rotate(datetime.now(UTC), 20)
    second = shown("127.0.0.1")
    assert second != first
    # A client that names no host.
    assert shown(None) == second


def test_clients_take_new_files_and_never_fall_back_to_plain_text(
    folder: CertificateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer_module, "_LOOK_SECONDS", 0.0)
    dialer = dialer_of(files_of(folder, "agent-a1"), "scheduler.lab")
    assert (dialer.version, dialer.version) == (1, 1)
    folder.rotate(datetime.now(UTC), 20)
    assert dialer.version == 2
    (folder.path / "agent-a1.key").write_text("nothing")
    assert (dialer.version, dialer.is_secure) == (2, True)
    folder.ca_path.unlink()
    assert (dialer.version, dialer.is_secure) == (2, True)
    code, message = message_of(lambda: dialer_of(TlsFiles(str(folder.ca_path))).version)
    assert (code, message) == ("tls.unreadable_file", f"cannot read {folder.ca_path}: No such file or directory")


def test_runners_find_the_files_of_their_agent(
    folder: CertificateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialer_module, "_LOOK_SECONDS", 0.0)
    state = StateFolder(tmp_path)
    dialer = state.dialer(SCHEDULER)

    def is_secure() -> bool:
        return dialer.is_secure

    assert not is_secure()
    state.write_tls(files_of(folder, "agent-a1"), "lab")
    # A runner that began before TLS was on connects by it from then on.
    assert is_secure()
    assert (tmp_path / "tls.json").stat().st_mode & 0o077 == 0
    (tmp_path / "tls.json").write_text("{")
    assert is_secure()
    state.write_tls(None, "")
    assert not is_secure()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_this_machine_alone_needs_no_tls(host: str) -> None:
    check_listen(f"{host}:1", host, "--listen", is_secure=False, allows_plaintext=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "gpu1", "localhost.example"])
def test_others_are_reached_without_tls_only_where_the_setting_says_so(host: str) -> None:
    code, message = message_of(
        lambda: check_listen(f"{host}:1", host, "--listen", is_secure=False, allows_plaintext=False)
    )
    assert code == "tls.plaintext"
    assert "--allow-plaintext" in message
    check_listen(f"{host}:1", host, "--listen", is_secure=True, allows_plaintext=False)
    check_listen(f"{host}:1", host, "--listen", is_secure=False, allows_plaintext=True)
