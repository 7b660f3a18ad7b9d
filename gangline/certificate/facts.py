"""What a certificate says: its names, its signer, and when it ends. It reads files of certificates, and no key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from gangline.domain.peer_name import PeerName, parse_peer_names
from gangline.errors import invalid

# The organization of what `gangline certs` makes.
ISSUER_NAME = "Gangline"
E = TypeVar("E", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """Describes one certificate."""

    subject: str
    issuer: str
    serial: str
    is_authority: bool
    peers: tuple[PeerName, ...]  # names of the cluster's programs
    hosts: tuple[str, ...]  # host names and IP addresses
    begins_at: float  # Unix seconds, as the next
    ends_at: float
    fingerprint: str  # identifies the certificate among those of an authority's bundle
    issuer_key: str  # identifies the key of the signer; empty where the certificate does not say it
    own_key: str
    cluster: str  # of an authority that `gangline certs init` has made, else empty


def load_facts(path: Path) -> list[CertificateFacts]:
    """Returns every certificate of a file in PEM, in its order. Raises GanglineError `tls.unreadable_file` and
    `tls.bad_certificate`."""
    try:
        content = path.read_bytes()
    except OSError as failure:
        raise invalid("tls.unreadable_file", f"cannot read {path}: {failure.strerror}") from failure
    try:
        return [facts_of(certificate) for certificate in x509.load_pem_x509_certificates(content)]
    except ValueError as failure:
        raise invalid(
            "tls.bad_certificate", f"{path} has no certificate in PEM; give a file of certs issue"
        ) from failure


def facts_of(certificate: x509.Certificate) -> CertificateFacts:
    names = _extension(certificate, x509.SubjectAlternativeName)
    dns = names.get_values_for_type(x509.DNSName) if names is not None else []
    addresses = names.get_values_for_type(x509.IPAddress) if names is not None else []
    peers = parse_peer_names(dns)
    constraints = _extension(certificate, x509.BasicConstraints)
    signer = _extension(certificate, x509.AuthorityKeyIdentifier)
    own = _extension(certificate, x509.SubjectKeyIdentifier)
    texts = {str(peer) for peer in peers}
    return CertificateFacts(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        is_authority=constraints is not None and constraints.ca,
        peers=peers,
        hosts=(*(name for name in dns if name not in texts), *map(str, addresses)),
        begins_at=certificate.not_valid_before_utc.timestamp(),
        ends_at=certificate.not_valid_after_utc.timestamp(),
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        issuer_key=(signer.key_identifier or b"").hex() if signer is not None else "",
        own_key=own.digest.hex() if own is not None else "",
        cluster=_cluster_of(certificate.subject),
    )


def _cluster_of(subject: x509.Name) -> str:
    values = [
        attribute.value
        for oid in (NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME)
        for attribute in subject.get_attributes_for_oid(oid)
    ]
    return str(values[1]) if len(values) == 2 and values[0] == ISSUER_NAME else ""


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
