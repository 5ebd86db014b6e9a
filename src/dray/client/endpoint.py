"""Where a server is, how its certificate is checked, and who we are: values for a transport.

`Endpoint` is what a kubeconfig comes down to. `Secret` is what proves our identity at one
moment (an Authorization header, a client certificate); a `Credentials` object supplies
it, and a new one when it expires, when its file changes, or when a server answers 401.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dray.client.errors import KubeconfigError

_LONGEST_PATH = 107  # bytes of a Unix socket's path


@dataclass(frozen=True, slots=True)
class Secret:
    """What proves an identity."""

    authorization: str = field(default="", repr=False)  # value of the Authorization header; empty means: none
    certificate: bytes = field(default=b"", repr=False)  # PEM; empty means: no client certificate
    key: bytes = field(default=b"", repr=False)  # PEM


class Credentials(Protocol):
    """A source of secrets. Used from one event loop; `renew` is called by one task at a time."""

    secret: Secret  # the current one; may be empty before the first `renew`

    def is_due(self) -> bool:
        """Return whether `renew` should be called before the next request."""
        ...

    async def renew(self, *, was_refused: bool) -> None:
        """Bring `secret` up to date; raise KubeconfigError when no credentials can be had.

        `was_refused` means that a server answered 401 to the current secret.
        """
        ...


class NoCredentials:
    """An anonymous client."""

    secret = Secret()

    def is_due(self) -> bool:
        """Return False: there is nothing to renew."""
        return False

    async def renew(self, *, was_refused: bool) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)  # value of Proxy-Authorization; empty means: none

    def __str__(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Trust:
    """How to check a server's certificate."""

    authority: bytes | None = None  # PEM; None means: the CAs of this machine
    is_insecure: bool = False  # check nothing

    def context(self, secret: Secret = Secret()) -> ssl.SSLContext:  # immutable
        """Make a TLS context; raise KubeconfigError when a certificate cannot be used."""
        try:
            context = ssl.create_default_context(cadata=self.authority.decode() if self.authority else None)
            if self.is_insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if secret.certificate:
                _load_pair(context, secret)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise KubeconfigError(f"certificates cannot be used: {error}") from error
        return context


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address, its trust, and our credentials for it."""

    server: str  # http://HOST[:PORT][/PATH], https://… or unix:///PATH
    trust: Trust = Trust()
    credentials: Credentials = field(default_factory=NoCredentials)
    server_name: str | None = None  # name in the server's certificate; None means: the host of `server`
    proxy: Proxy | None = None
    impersonation: tuple[tuple[str, str], ...] = ()  # Impersonate-* headers
    namespace: str = "default"
    user: str = ""  # who we are, for messages: the user's name in the kubeconfig
    origin: str = ""  # where that is written, for messages

    @property
    def tls(self) -> ssl.SSLContext | None:
        """A TLS context with the present client certificate, for other protocols; None without TLS."""
        return self.trust.context(self.credentials.secret) if self.server.startswith("https:") else None


def socket_path(server: str) -> str | None:
    """Return the path of the Unix socket that an address names; None when it names none.

    >>> socket_path("unix:///run/dray/api.sock"), socket_path("unix://host/x"), socket_path("https://x")
    ('/run/dray/api.sock', None, None)
    """
    path = server.removeprefix("unix://")
    is_good = server.startswith("unix:///") and path.isprintable() and 1 < len(path.encode()) <= _LONGEST_PATH
    return path if is_good else None


def local_endpoint(path: str, namespace: str) -> Endpoint:
    """Return the endpoint of the system of this machine, which knows by the kernel who calls."""
    return Endpoint(f"unix://{path}", namespace=namespace, user="your account", origin=path)


def header_value(text: str, what: str) -> str:
    """Return text that may stand in an HTTP header; raise KubeconfigError naming `what` otherwise."""
    if not text.isascii() or not text.isprintable():
        raise KubeconfigError(f"{what} has characters that cannot be sent in an HTTP header")
    return text


def impersonation_headers(
    user: str, uid: str, groups: Iterable[str], extra: Iterable[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """Return the headers with which a request acts for somebody else."""
    if not user:
        return ()
    headers = [("Impersonate-User", user)]
    if uid:
        headers.append(("Impersonate-Uid", uid))
    headers += [("Impersonate-Group", group) for group in groups]
    headers += [(f"Impersonate-Extra-{_escaped(key)}", value) for key, value in extra]
    return tuple((name, header_value(value, f"impersonation ({name})")) for name, value in headers)


def _escaped(key: str) -> str:
    """Percent-encode what may not be in a header's name; the percent sign itself too."""
    allowed = "!#$&'*+-.^_`|~"
    return "".join(
        character if (character.isascii() and character.isalnum()) or character in allowed else
        "".join(f"%{byte:02X}" for byte in character.encode())
        for character in key
    )  # fmt: skip


def _load_pair(context: ssl.SSLContext, secret: Secret) -> None:
    # The ssl module reads pairs only from files; the folder is private and gone at once.
    with tempfile.TemporaryDirectory(prefix="dray-tls-") as folder:
        certificate_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate_file.write_bytes(secret.certificate)
        key_file.touch(mode=0o600)
        key_file.write_bytes(secret.key)
        # Without a password callback OpenSSL asks the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate_file, key_file, password=_no_password)


def _no_password() -> bytes:
    raise ValueError("the client key is encrypted; keys with a password are not supported")
