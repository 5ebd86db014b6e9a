"""The guard's TLS identity: made anew for every process, or brought along in files.

A certificate of its own making needs no Secret, no renewal and no cert-manager: its CA goes into the
webhook configuration, its key never leaves the process. It has a second use: an API server that
has read the new configuration cannot mistake a former guard for the present one.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dray.certificates import CA_LIFETIME, make_ca, make_serving_certificate, server_tls, write_pair


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
    ca = make_ca("dray-guard-ca", now, path_length=0)
    # Valid as long as the CA, which is longer than any process.
    pair = make_serving_certificate(ca, "dray-guard", hosts, now, CA_LIFETIME)
    # OpenSSL reads keys from files only; the folder is ours alone and gone at once.
    with tempfile.TemporaryDirectory(prefix="dray-guard-") as folder:
        certificate_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
        write_pair(certificate_file, key_file, pair)
        tls = server_tls(certificate_file, key_file)
    return Identity(tls, ca.certificate_pem)


def load_identity(certificate_file: Path, key_file: Path, ca_file: Path | None) -> Identity:
    """Use files that somebody else made; raises ValueError when they do not fit."""
    try:
        ca = ca_file.read_bytes() if ca_file is not None else b""
        return Identity(server_tls(certificate_file, key_file), ca, (certificate_file, key_file))
    except (OSError, ssl.SSLError) as problem:
        raise ValueError(
            f"cannot use certificate {certificate_file} with key {key_file}: {problem}"
        ) from problem
