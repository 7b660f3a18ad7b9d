"""The certificate of one service: reads its files, checks them, and reads them again when they are replaced.

The checks are the same at the start, where a fault ends the service with one line, and later, where the former files
stay in use and the fault is logged. So no half of a copy breaks a running service. It opens no connection.
"""

from __future__ import annotations

import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gangline.certificate.facts import CertificateFacts, facts_of
from gangline.domain.peer_name import AGENT, PeerName
from gangline.errors import GanglineError, invalid
from gangline.protocol.dialer import Dialer, TlsFiles, TlsTarget, stamp_of, unreadable
from services.common.tls.settings import TlsSettings

# From here on until its end, a certificate is named in the log.
SOON_SECONDS = 14 * 86400.0
# Between two lines of the log about the end of a certificate.
REPEAT_SECONDS = 3600.0
UNUSABLE = "the files of TLS cannot be used; the former ones stay in use"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TlsContent:
    """What the files held when they were last read."""

    authorities: bytes
    certificate: bytes
    key: bytes
    name: PeerName
    ends_at: float


class TlsIdentity:
    """Who this service is. role, agent_id: the name that its certificate must have. Any thread may call it. Raises
    GanglineError `tls.*` where the files cannot be used at the start."""

    def __init__(self, files: TlsFiles, role: str, agent_id: str = "") -> None:
        self.files = files
        self._role = role
        self._agent_id = agent_id
        self._lock = threading.Lock()
        self._stamp: tuple[object, ...] = ()
        self._logged_at = -REPEAT_SECONDS
        self._fault = ""
        self._cluster = ""
        self._content = self._load()
        self._cluster = self._content.name.cluster
        self._note_end()

    @property
    def cluster(self) -> str:
        return self._cluster

    def current(self) -> TlsContent:
        """Returns the content of the files, or what was in them before if they cannot be used now."""
        with self._lock:
            try:
                if stamp_of(self.files.paths) != self._stamp:
                    self._content = self._load()
                    self._fault, self._logged_at = "", -REPEAT_SECONDS
                    log.info("the files of TLS were replaced", cert_file=self.files.cert_file, ends=self._end_date())
            except GanglineError as error:
                self._note_fault(error.message)
            self._note_end()
            return self._content

    def dialer(self, role: str) -> Dialer:
        """Returns what opens channels to the services of a role."""
        target = TlsTarget(self.files, str(PeerName(role, self.cluster)))

        def find() -> TlsTarget:
            # A service that only calls others has its faults and its end in the log as well.
            self.current()
            return target

        return Dialer(find)

    def _load(self) -> TlsContent:
        self._stamp = stamp_of(self.files.paths)
        try:
            authorities, certificate, key = (path.read_bytes() for path in self.files.paths)
            check_key_mode(Path(self.files.key_file))
        except OSError as failure:
            raise unreadable(failure) from failure
        chain = _parse(certificate, self.files.cert_file)
        trusted = _parse(authorities, self.files.ca_file)
        facts = facts_of(chain[0])
        _check_key(key, chain[0], self.files)
        name = self._find_name(facts)
        if self._cluster not in ("", name.cluster):
            text = f"{self.files.cert_file} is of the cluster {name.cluster}, not of {self._cluster}"
            raise invalid("tls.other_cluster", f"{text}; copy the one of this cluster, or restart the service")
        if facts.ends_at <= time.time():
            raise invalid(
                "tls.expired",
                f"the certificate {self.files.cert_file} ended on {_date(facts.ends_at)}; renew it with gangline certs "
                "rotate, and copy it and its key here",
            )
        _check_signer(chain, trusted, self.files)
        return TlsContent(authorities, certificate, key, name, facts.ends_at)

    def _find_name(self, facts: CertificateFacts) -> PeerName:
        for name in facts.peers:
            if (name.role, name.agent_id) == (self._role, self._agent_id):
                return name
        wanted = f"{self._role}.{self._agent_id}.CLUSTER" if self._role == AGENT else f"{self._role}.CLUSTER"
        has = ", ".join(map(str, facts.peers)) or "no name of a service"
        issuing = f"gangline certs issue {self._role}" + (f" {self._agent_id}" if self._agent_id else "")
        raise invalid(
            "tls.wrong_name",
            f"{self.files.cert_file} has {has}, not {wanted}; make one for this service with: {issuing}",
        )

    def _note_fault(self, reason: str) -> None:
        """Writes one line for each change of the fault, not one for each handshake."""
        if reason != self._fault:
            self._fault = reason
            log.error(UNUSABLE, reason=reason)

    def _note_end(self) -> None:
        left = self._content.ends_at - time.time()
        if left > SOON_SECONDS or time.monotonic() - self._logged_at < REPEAT_SECONDS:
            return
        self._logged_at = time.monotonic()
        hint = "renew it with gangline certs rotate, and copy it and its key here; nothing restarts"
        if left <= 0:
            text = "the certificate has ended, and nobody connects with it any more"
            log.error(text, cert_file=self.files.cert_file, ended=self._end_date(), hint=hint)
        else:
            log.warning("the certificate ends soon", cert_file=self.files.cert_file, ends=self._end_date(), hint=hint)

    def _end_date(self) -> str:
        return _date(self._content.ends_at)


def load_identity(settings: TlsSettings, role: str, agent_id: str = "") -> TlsIdentity | None:
    """Returns who a service is by its settings; None without TLS. Raises GanglineError `tls.*`."""
    if not settings.is_set:
        return None
    # Trial runners have another working folder. Links stay, because a renewal may change where they lead.
    ca_file, cert_file, key_file = (str(Path(str(path)).absolute()) for path in settings.paths)
    files = TlsFiles(ca_file, cert_file, key_file)
    try:
        return TlsIdentity(files, role, agent_id)
    except GanglineError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            text = f"{error.message}; make it with gangline certs, and copy it here (docs/security.md)"
            raise invalid(error.code, text) from error.__cause__
        raise


def check_key_mode(path: Path) -> None:
    """Raises GanglineError `tls.open_key` for a key that other accounts may read, and OSError."""
    status = path.stat()
    # The group's bits of a systemd credential are the mask of its access list; its group is root's.
    others = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP | (stat.S_IRGRP if status.st_gid else 0)
    if status.st_mode & others:
        mode = stat.S_IMODE(status.st_mode)
        raise invalid("tls.open_key", f"other accounts may read the key {path} (mode {mode:04o}); chmod 600 {path}")


def _parse(content: bytes, path: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as failure:
        raise invalid("tls.bad_certificate", f"{path} has no certificate in PEM; copy it again") from failure


def _check_key(key: bytes, certificate: x509.Certificate, files: TlsFiles) -> None:
    try:
        is_right = load_pem_private_key(key, None).public_key() == certificate.public_key()
    except (ValueError, TypeError) as failure:
        text = f"{files.key_file} is no key in PEM without a password; copy it again"
        raise invalid("tls.bad_key", text) from failure
    if not is_right:
        text = f"{files.key_file} is not the key of {files.cert_file}; copy both files again"
        raise invalid("tls.bad_key", text)


def _check_signer(chain: list[x509.Certificate], trusted: list[x509.Certificate], files: TlsFiles) -> None:
    """Checks the end of the chain against the authorities. Peers verify the rest at each handshake."""
    for authority in trusted:
        for certificate in chain:
            if certificate == authority:
                return
            try:
                certificate.verify_directly_issued_by(authority)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return
    raise invalid(
        "tls.wrong_authority",
        f"{files.cert_file} is signed by {chain[-1].issuer.rfc4514_string()}, which is not in {files.ca_file}; copy "
        "the ca.crt of this cluster",
    )


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
