"""The certificates of one control plane: a CA, a serving certificate, client certificates, a token key.

A server that always speaks TLS must have certificates before its first request,
and nobody should have to make them by hand. So the first start makes everything
in one directory, and later starts find it there:

    ca.crt ca.key               signs all of the following; ten years
    apiserver.crt apiserver.key what clients see; one year
    sa.key                      signs service account tokens

Client certificates (the administrator, the scheduler, the controllers, each
node) live inside the kubeconfig files that are written for them, nowhere else.

Theory of operation: `prepare` is idempotent. It keeps what is valid, renews a
certificate in the last tenth of its life (or when the serving certificate does
not cover a host it should), and never replaces a CA that still is valid, because
every client trusts it. Keys, certificates and files are made by `dray.certificates`.

Invariants (tests/unit/server/test_edge_pki.py): private keys are readable by the
owner only; a damaged file is an error, never silently replaced.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dray import certificates
from dray.api.parsing import load_yaml
from dray.certificates import (
    Pair,
    alternative_name,
    make_ca,
    make_client_certificate,
    make_key,
    make_serving_certificate,
    private_pem,
)
from dray.host.files import write_private

ADMIN = ("kubernetes-admin", ("system:masters",))
SCHEDULER = ("system:kube-scheduler", ())
CONTROLLERS = ("system:kube-controller-manager", ())
NODE_CLIENT = "kube-apiserver-kubelet-client"  # the server, towards node agents; bound in rbac_bootstrap


class PkiError(Exception):
    """A certificate or key file that cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client certificate says its holder is, and until when."""

    name: str
    groups: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    uid: str = ""
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Pki:
    """Everything a server needs to prove itself and to recognise its clients."""

    directory: Path
    ca: Pair
    serving: Pair
    token_key: ec.EllipticCurvePrivateKey

    @property
    def ca_file(self) -> Path:
        """Return the file of the CA certificate."""
        return self.directory / "ca.crt"

    @property
    def serving_certificate_file(self) -> Path:
        """Return the file of the serving certificate."""
        return self.directory / "apiserver.crt"

    @property
    def serving_key_file(self) -> Path:
        """Return the file of the serving key."""
        return self.directory / "apiserver.key"

    def client_pair(self, name: str, groups: Sequence[str], now: datetime) -> Pair:
        """Make a client certificate: the common name is the user, organisations are groups."""
        return make_client_certificate(self.ca, name, groups, now)

    def write_kubeconfig(
        self, path: Path, server_url: str, name: str, groups: Sequence[str], now: datetime
    ) -> None:
        """Write a kubeconfig file (mode 0600) with a fresh client certificate embedded."""
        pair = self.client_pair(name, groups, now)
        write_private(path, kubeconfig(server_url, self.ca.certificate_pem, name, pair).encode())

    def refresh_kubeconfig(
        self, path: Path, server_url: str, name: str, groups: Sequence[str], now: datetime
    ) -> bool:
        """Write the kubeconfig unless the file holds one that still serves; tell whether it was written."""
        if _kubeconfig_serves(path, server_url, self.ca, name, now):
            return False
        self.write_kubeconfig(path, server_url, name, groups, now)
        return True


def prepare(directory: Path, hosts: Iterable[str], now: datetime) -> Pki:
    """Find or make the CA, the serving certificate for `hosts`, and the token key. Idempotent."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca = _read_pair(directory / "ca.crt", directory / "ca.key")
    if ca is None or _not_after(ca.certificate) <= now:
        ca = make_ca(f"dray-ca@{int(now.timestamp())}", now)
        _write_pair(directory / "ca.crt", directory / "ca.key", ca)
    serving = _read_pair(directory / "apiserver.crt", directory / "apiserver.key")
    wanted = _all_hosts(hosts)
    if serving is None or not _still_good(serving, ca, wanted, now):
        serving = make_serving_certificate(ca, "kube-apiserver", wanted, now)
        _write_pair(directory / "apiserver.crt", directory / "apiserver.key", serving)
    token_key = _read_key(directory / "sa.key")
    if token_key is None:
        token_key = make_key()
        write_private(directory / "sa.key", private_pem(token_key))
    return Pki(directory, ca, serving, token_key)


def existing_ca(directory: Path) -> Pair:
    """Return the CA of a directory that `prepare` has filled; raises PkiError when there is none."""
    ca = _read_pair(directory / "ca.crt", directory / "ca.key")
    if ca is None:
        raise PkiError(f"{directory / 'ca.crt'} does not exist")
    return ca


def server_tls(certificate_file: Path, key_file: Path, client_ca_files: Sequence[Path]) -> ssl.SSLContext:
    """Return the TLS settings of a server that asks for client certificates but does not insist."""
    try:
        context = certificates.server_tls(certificate_file, key_file)
        for file in client_ca_files:
            context.load_verify_locations(cafile=str(file))
    except (OSError, ssl.SSLError) as problem:
        raise PkiError(f"cannot load TLS files {certificate_file}, {key_file}: {problem}") from problem
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def node_client_tls(directory: Path, ca: Pair, now: datetime) -> ssl.SSLContext:
    """Return the TLS settings with which the server calls node agents.

    Agents authenticate our certificate and authorise its user; theirs are not verified,
    which is kube-apiserver's default too: an agent's serving certificate is its own. The
    certificate is made anew at every start, so folders of older versions get it, too. It
    has no group: an agent that an attacker controls gains nothing from the calls it sees.
    """
    certificate_file, key_file = directory / "node-client.crt", directory / "node-client.key"
    _write_pair(certificate_file, key_file, make_client_certificate(ca, NODE_CLIENT, [], now))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(certificate_file, key_file)
    return context


def identity_of(der: bytes) -> Identity:
    """Read user and groups from a client certificate that TLS has verified."""
    certificate = x509.load_der_x509_certificate(der)
    names = [str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [
        str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    ]
    return Identity(
        name=names[-1] if names else "",
        groups=tuple(groups),
        not_before=certificate.not_valid_before_utc,
        not_after=_not_after(certificate),
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def kubeconfig(server_url: str, ca_pem: bytes, user: str, pair: Pair, namespace: str = "") -> str:
    """Return the text of a kubeconfig file with everything embedded."""
    context = {"cluster": "dray", "user": user, **({"namespace": namespace} if namespace else {})}
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": f"{user}@dray",
        "clusters": [
            {
                "name": "dray",
                "cluster": {"server": server_url, "certificate-authority-data": _base64(ca_pem)},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _base64(pair.certificate_pem),
                    "client-key-data": _base64(pair.key_pem),
                },
            }
        ],
        "contexts": [{"name": f"{user}@dray", "context": context}],
        "preferences": {},
    }
    return yaml.safe_dump(content, sort_keys=False, width=1 << 20)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _all_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    service = (
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    )
    wildcard = {"", "0.0.0.0", "::"}  # bind addresses that are not names of anything
    return tuple(
        dict.fromkeys(("localhost", "127.0.0.1", "::1", *service, *(h for h in hosts if h not in wildcard)))
    )


def _not_after(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc


def _near_its_end(certificate: x509.Certificate, now: datetime) -> bool:
    life = _not_after(certificate) - certificate.not_valid_before_utc
    return now >= _not_after(certificate) - life / 10


def _still_good(serving: Pair, ca: Pair, hosts: Sequence[str], now: datetime) -> bool:
    if _near_its_end(serving.certificate, now) or not _signed_by(serving.certificate, ca):
        return False
    try:
        names = serving.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return all(alternative_name(host) in names for host in hosts)


def _signed_by(certificate: x509.Certificate, ca: Pair) -> bool:
    try:
        certificate.verify_directly_issued_by(ca.certificate)
    except Exception:
        # Whatever is wrong with the signature or the issuer, the certificate is not ours.
        return False
    return True


def _write_pair(certificate_file: Path, key_file: Path, pair: Pair) -> None:
    certificates.write_pair(certificate_file, key_file, pair)
    certificate_file.chmod(0o644)


def _read_pair(certificate_file: Path, key_file: Path) -> Pair | None:
    if not certificate_file.exists():
        return None
    key = _read_key(key_file)
    if key is None:
        raise PkiError(
            f"{certificate_file} exists but its key {key_file} does not; restore the key or remove both files"
        )
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except ValueError as problem:
        raise PkiError(
            f"{certificate_file} is not a certificate ({problem}); restore or remove it"
        ) from problem
    if certificate.public_key() != key.public_key():
        raise PkiError(f"{certificate_file} and {key_file} do not belong together; restore or remove both")
    return Pair(certificate, key)


def _read_key(file: Path) -> ec.EllipticCurvePrivateKey | None:
    if not file.exists():
        return None
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError) as problem:
        raise PkiError(f"{file} is not a private key ({problem}); restore or remove it") from problem
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PkiError(f"{file} is not an elliptic curve key; remove it to have one made")
    return key


def _kubeconfig_serves(path: Path, server_url: str, ca: Pair, name: str, now: datetime) -> bool:
    try:
        content = load_yaml(path.read_bytes())
        cluster = content["clusters"][0]["cluster"]
        user = content["users"][0]
        certificate = x509.load_pem_x509_certificate(
            base64.b64decode(user["user"]["client-certificate-data"])
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return False
    return (
        user["name"] == name
        and cluster["server"] == server_url
        and cluster["certificate-authority-data"] == _base64(ca.certificate_pem)
        and _signed_by(certificate, ca)
        and not _near_its_end(certificate, now)
    )
