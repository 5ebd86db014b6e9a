"""Makes private keys and certificates: certificate authorities, what they sign, and self-signed ones.

Server, guard and node agent each prove who they are with certificates of dray's own making. How
a key is chosen and a certificate is put together is decided here and nowhere else; lifetimes and
names are the callers'. Reading certificates, and deciding when one must be renewed, is in
`dray.server.auth.pki`.

Keys are ECDSA on P-256: making one takes a tenth of a millisecond, RSA a good part of a second.

Of dray the module imports only how files are written, and it is a program, too: `python certificates.py FOLDER ADDRESS`
makes the serving certificate of a node. The node agent runs it in a process of its own, because
the library behind it would cost the agent 10 MB for as long as it runs.

Invariants (tests/unit/test_certificates.py): private keys are readable by their owner only; a
crash leaves the old file or the new one; where a certificate file is, its key is, too.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dray.host.clock import utc_now
from dray.host.files import write_private

CA_LIFETIME = timedelta(days=3650)
CERTIFICATE_LIFETIME = timedelta(days=365)
BACKDATED = timedelta(
    days=1
)  # clocks of peers may lag behind ours, or be put back by hours for the time zone


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """Return the certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """Return the unencrypted private key as PEM."""
        return private_pem(self.key)


def make_key() -> ec.EllipticCurvePrivateKey:
    """Make a private key."""
    return ec.generate_private_key(ec.SECP256R1())


def make_ca(name: str, now: datetime, *, path_length: int | None = None) -> Pair:
    """Make a certificate authority for ten years; `path_length` 0: it signs no other authorities."""
    key, subject = make_key(), _subject(name)
    builder = (
        _builder(subject, subject, key, now - BACKDATED, now + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Pair(builder.sign(key, hashes.SHA256()), key)


def make_client_certificate(
    ca: Pair, name: str, groups: Sequence[str], now: datetime, lifetime: timedelta = CERTIFICATE_LIFETIME
) -> Pair:
    """Make a client certificate: the common name is the user, organisations are groups."""
    return _issue(ca, _subject(name, groups), ExtendedKeyUsageOID.CLIENT_AUTH, (), now, lifetime)


def make_serving_certificate(
    ca: Pair, name: str, hosts: Sequence[str], now: datetime, lifetime: timedelta = CERTIFICATE_LIFETIME
) -> Pair:
    """Make a certificate for a server that is reached by these names and addresses."""
    return _issue(ca, _subject(name), ExtendedKeyUsageOID.SERVER_AUTH, hosts, now, lifetime)


def make_self_signed_certificate(name: str, hosts: Sequence[str], now: datetime) -> Pair:
    """Make a serving certificate without an authority, for peers that do not verify it."""
    key, subject = make_key(), _subject(name)
    builder = _builder(subject, subject, key, now - BACKDATED, now + CERTIFICATE_LIFETIME)
    builder = builder.add_extension(_alternative_names(hosts), critical=False)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def alternative_name(host: str) -> x509.GeneralName:
    """Return the subject alternative name for an IP address or a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as unencrypted PKCS #8."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_pair(certificate_file: Path, key_file: Path, pair: Pair) -> None:
    """Write both files, mode 0600; the key first, because a certificate without its key is of no use."""
    write_private(key_file, pair.key_pem)
    write_private(certificate_file, pair.certificate_pem)


def server_tls(certificate_file: Path, key_file: Path) -> ssl.SSLContext:
    """Return the TLS settings of a server; raises OSError or ssl.SSLError when the files do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate_file, key_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


def main(folder: str, address: str) -> None:
    """Write node.crt and node.key for a node that is reached by this IP address.

    API servers do not verify the certificates of nodes unless they are told a CA for them, so a
    self-signed certificate is what kubelet uses, too, when nobody gives it one.
    """
    hosts = dict.fromkeys(("localhost", "127.0.0.1", str(ipaddress.ip_address(address))))
    os.umask(0o077)
    pair = make_self_signed_certificate("dray-node", tuple(hosts), utc_now())
    write_pair(Path(folder, "node.crt"), Path(folder, "node.key"), pair)


def _subject(name: str, groups: Sequence[str] = ()) -> x509.Name:
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([alternative_name(host) for host in hosts])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    not_before: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
    )


def _issue(
    ca: Pair,
    subject: x509.Name,
    purpose: x509.ObjectIdentifier,
    hosts: Sequence[str],
    now: datetime,
    lifetime: timedelta,
) -> Pair:
    key = make_key()
    not_after = min(now + lifetime, ca.certificate.not_valid_after_utc)
    builder = (
        _builder(subject, ca.certificate.subject, key, now - BACKDATED, not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False
        )
    )
    if hosts:
        builder = builder.add_extension(_alternative_names(hosts), critical=False)
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def _key_usage(ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
