"""The guard's TLS identity: made anew for every process, or brought along in files.

A certificate of its own making needs no Secret, no renewal and no cert-manager: its CA goes into the
webhook configuration, its key never leaves the process. It has a second use: an API server that
has read the new configuration cannot mistake a former guard for the present one.
"""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = timedelta(days=3650)  # longer than any process
_BACKDATED = timedelta(minutes=5)  # clocks of API servers may lag behind ours


@dataclass(frozen=True, slots=True)
class Identity:
    """What the guard shows to API servers, and what they check it with."""

    tls: ssl.SSLContext
    ca: bytes  # PEM; empty means: the API servers trust the issuer already
    files: tuple[Path, Path] | None = None  # certificate and key, if they are somebody else's

    def renew(self) -> None:
        """Read the files again: whoever made them renews them, and new connections shall see it."""
        if self.files is not None:
            self.tls.load_cert_chain(*self.files)


def make_identity(hosts: Sequence[str], now: datetime) -> Identity:
    """Make a CA and a certificate for these names and addresses."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dray-guard-ca")])
    ca = (
        _builder(issuer, issuer, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dray-guard")])
    certificate = (
        _builder(issuer, subject, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # OpenSSL reads keys from files only; the folder is ours alone and gone at once.
    with tempfile.TemporaryDirectory(prefix="dray-guard-") as folder:
        certificate_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(private)
        tls = _server_tls(certificate_file, key_file)
    return Identity(tls, ca.public_bytes(serialization.Encoding.PEM))


def load_identity(certificate_file: Path, key_file: Path, ca_file: Path | None) -> Identity:
    """Use files that somebody else made; raises ValueError when they do not fit."""
    try:
        ca = ca_file.read_bytes() if ca_file is not None else b""
        return Identity(_server_tls(certificate_file, key_file), ca, (certificate_file, key_file))
    except (OSError, ssl.SSLError) as problem:
        raise ValueError(
            f"cannot use certificate {certificate_file} with key {key_file}: {problem}"
        ) from problem


def _server_tls(certificate_file: Path, key_file: Path) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(certificate_file, key_file)
    tls.set_alpn_protocols(["http/1.1"])
    return tls


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _LIFE)
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
