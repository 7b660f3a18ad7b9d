"""A small certificate authority: makes its own certificate, and signs those of the cluster's programs.

It reads and writes no file; `folder.py` does. All keys are of the curve P-256, whose handshakes are the cheapest that
every browser takes. Keys have no password, because services start without a person; the modes of their files protect
them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gangline.certificate.facts import ISSUER_NAME
from gangline.domain.peer_name import PeerName
from gangline.errors import invalid

# Before now, because the clocks of two machines differ.
_EARLIER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both in PEM."""

    certificate: str
    key: str


def make_authority(cluster: str, now: datetime, days: int) -> Pair:
    """Makes an authority that signs for one cluster."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities of one cluster differ in their names, so that a reader of a certificate can tell its signer.
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ISSUER_NAME),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Gangline CA of {cluster} {now:%Y-%m-%d %H:%M:%S}"),
        ]
    )
    builder = (
        _builder(name, name, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Pair(_pem(builder.sign(key, hashes.SHA256())), _pem_key(key))


def issue(authority: Pair, name: PeerName, hosts: Sequence[str], now: datetime, days: int) -> Pair:
    """Makes a certificate for one program. hosts: host names and IP addresses at which others reach it. Raises
    GanglineError `certs.host`, `certs.days` and `certs.bad_authority`."""
    certificate, signer = _load(authority)
    if now + timedelta(days=days) > certificate.not_valid_after_utc:
        raise invalid(
            "certs.days",
            f"the authority ends on {certificate.not_valid_after_utc:%Y-%m-%d}, before {days} days are over; "
            "give fewer --days, or make a new one with gangline certs rotate --new-ca",
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, ISSUER_NAME), _common_name(name)])
    # An agent's trial runners listen as well, so every certificate is for both ends. The name alone gives the role.
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    names = [x509.DNSName(str(name)), *map(_host_name, hosts)]
    builder = (
        _builder(subject, certificate.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return Pair(_pem(builder.sign(signer, hashes.SHA256())), _pem_key(key))


def _load(authority: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(authority.certificate.encode())
        key = load_pem_private_key(authority.key.encode(), None)
    except (ValueError, TypeError) as failure:
        raise invalid("certs.bad_authority", f"ca.crt or ca.key of the authority is damaged: {failure}") from failure
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise invalid("certs.bad_authority", "ca.key is not the key of the first certificate in ca.crt")
    return certificate, key


def _common_name(name: PeerName) -> x509.NameAttribute[str]:
    # X.509 takes 64 characters here, and an agent's id alone may have as many. Peers compare the DNS name.
    return x509.NameAttribute(NameOID.COMMON_NAME, str(name)[:64])


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    if not host or not host.isascii() or len(host) > 253 or not all(c.isalnum() or c in "._-" for c in host):
        raise invalid("certs.host", f"{host!r} is no host name and no IP address; give it without a port")
    return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _pem_key(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
