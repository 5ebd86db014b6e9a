"""The node's serving certificate, self-signed: a script that is run as `python certificate.py DIR ADDRESS`.

API servers do not verify the certificates of nodes unless they are told a CA for them, so a
certificate of one's own is what kubelet uses, too, when nobody gives it one. The script
imports nothing of dray, so that it starts quickly.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def self_signed(address: str) -> tuple[bytes, bytes]:
    """Make a certificate and its key for a node's address, for one year."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dray-node")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    if address != "127.0.0.1":
        names.append(x509.IPAddress(ipaddress.ip_address(address)))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def main(folder: str, address: str) -> None:
    """Write node.crt and node.key."""
    certificate, key = self_signed(address)
    os.umask(0o077)
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "node.key").touch(mode=0o600)
    Path(folder, "node.key").chmod(0o600)
    Path(folder, "node.key").write_bytes(key)
    # The certificate comes last: where it is, the key is, too.
    Path(folder, "node.crt").write_bytes(certificate)


if __name__ == "__main__":
    main(*sys.argv[1:])
