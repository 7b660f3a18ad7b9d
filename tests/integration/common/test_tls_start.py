"""Services as processes whose TLS cannot work end at once with one line; none waits for etcd before it says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.certificate.folder import CertificateFolder
from tests.support.forked_service import fork_service, load_services
from tests.support.tls import expire, flags_of, make_certificates

PROGRAMS = {
    "scheduler": ("services.scheduler.__main__", ["--listen"]),
    "gateway": ("services.gateway.__main__", ["--http-listen", "--grpc-listen"]),
    "agent-a1": ("services.agent.__main__", []),
}


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    load_services()
    return make_certificates(tmp_path / "certs", "a1", "a2")


def end_of(stem: str, folder: Path, flags: list[tuple[str, str]], host: str = "127.0.0.1") -> tuple[int, str]:
    """Returns exit code and last line of a service that cannot start."""
    program, listening = PROGRAMS[stem]
    token, log = folder / "token", folder / f"{stem}.log"
    token.write_text("cluster-token-of-the-tests")
    words = [("--cluster-token-file", str(token)), *flags, *((flag, f"{host}:0") for flag in listening)]
    if stem == "agent-a1":
        words += [("--id", "a1"), ("--slots", "1"), ("--state-dir", str(folder / "state"))]
    else:
        # Nothing is there.
        words += [("--etcd-endpoints", "127.0.0.1:1"), ("--storage-url", str(folder / "storage"))]
    process = fork_service(program, [word for pair in words for word in pair], log, folder)
    code = process.wait(60)
    return code, log.read_text().strip().splitlines()[-1]


@pytest.mark.parametrize("stem", ["scheduler", "gateway"])
def test_no_service_listens_for_others_in_plain_text(tmp_path: Path, folder: CertificateFolder, stem: str) -> None:
    code, line = end_of(stem, tmp_path, [], "0.0.0.0")
    assert code == 2
    assert line.startswith(f"gangline-{stem}: cannot listen on 0.0.0.0:0 without TLS: ")
    assert "--allow-plaintext" in line


FAULTS: dict[str, Callable[[CertificateFolder, str], object]] = {
    "ended on": expire,
    "No such file or directory; make it with gangline certs, and copy it here": lambda folder, stem: (
        folder.path / f"{stem}.crt"
    ).unlink(),
    "other accounts may read the key": lambda folder, stem: (folder.path / f"{stem}.key").chmod(0o644),
    "which is not in": lambda folder, stem: folder.ca_path.write_bytes(
        make_certificates(folder.path / "other").ca_path.read_bytes()
    ),
    "is not the key of": lambda folder, stem: (folder.path / f"{stem}.key").write_bytes(
        (folder.path / "agent-a2.key").read_bytes()
    ),
    "make one for this service with: gangline certs issue": lambda folder, stem: [
        (folder.path / f"{stem}{suffix}").write_bytes((folder.path / f"agent-a2{suffix}").read_bytes())
        for suffix in (".crt", ".key")
    ],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stem", PROGRAMS)
def test_a_fault_of_the_files_is_one_line(tmp_path: Path, folder: CertificateFolder, stem: str, fault: str) -> None:
    FAULTS[fault](folder, stem)
    code, line = end_of(stem, tmp_path, flags_of(folder, stem))
    assert code == 2
    assert line.startswith(f"gangline-{stem.partition('-')[0]}: ")
    assert fault in line


def test_a_part_of_the_files_is_refused(tmp_path: Path, folder: CertificateFolder) -> None:
    code, line = end_of("scheduler", tmp_path, flags_of(folder, "scheduler")[:1])
    assert (code, line) == (
        2,
        "gangline-scheduler: tls.cert_file and tls.key_file missing: ca_file, cert_file and key_file belong together",
    )
