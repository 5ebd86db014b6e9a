"""Credentials from a kubeconfig's user: fixed values, files that are renewed, exec plugins.

`FileCredentials` reads token and certificate files again when they change (service
account tokens and kubelet's certificates rotate) and after every 401. `ExecCredentials`
runs a plugin by the protocol of client.authentication.k8s.io: before the first request,
when the credentials it gave have expired, and after a 401.

A file that cannot be read for a moment leaves the last good content in place: it is
being replaced. A plugin that fails leaves nothing: the request that needed it fails with its reason.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dray.api.parsing import ParseError, load_json
from dray.client.bounded_files import read_file
from dray.client.decoding import without_nulls
from dray.client.endpoint import Secret, header_value
from dray.client.errors import KubeconfigError
from dray.host.clock import utc_now

EXEC_GROUP = "client.authentication.k8s.io"
EXEC_VERSIONS = (f"{EXEC_GROUP}/v1", f"{EXEC_GROUP}/v1beta1")
INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")

_LOOK_EVERY = 5.0  # seconds between looks at the files' times
_MOST_TOKEN_BYTES = 64 << 10  # API servers refuse headers of this size
_MOST_PEM_BYTES = 1 << 20
_MOST_PLUGIN_BYTES = 1 << 20
_PLUGIN_SECONDS = 60.0
_INTERACTIVE_SECONDS = 600.0  # somebody types a password, or opens a browser


def bearer(token: str, what: str) -> str:
    """Return the Authorization header of a token."""
    return f"Bearer {header_value(token, what)}"


def basic(username: str, password: str) -> str:
    """Return the Authorization header of a name and a password."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def read_token(path: Path) -> str:
    """Read a token file and return the Authorization header; raise KubeconfigError."""
    try:
        text = read_file(path, _MOST_TOKEN_BYTES).decode("ascii").strip()
    except OSError as error:
        raise KubeconfigError(f"cannot read the token file {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise KubeconfigError(f"the token file {path} is not text") from None
    if not text:
        raise KubeconfigError(f"the token file {path} is empty")
    return bearer(text, f"the token in {path}")


def read_pem(path: Path, what: str) -> bytes:
    """Read a certificate or key; raise KubeconfigError."""
    try:
        return read_file(path, _MOST_PEM_BYTES)
    except OSError as error:
        raise KubeconfigError(f"cannot read {what} {path}: {error.strerror}") from error


class FileCredentials:
    """Fixed values, and files beside them that are read again when they change.

    Reads the files when it is made, so that a wrong path is an error at once.
    """

    def __init__(
        self,
        fixed: Secret = Secret(),  # noqa: B008  # immutable
        *,
        token: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = fixed
        self._token, self._certificate, self._key = token, certificate, key
        self._paths = [path for path in (token, certificate, key) if path is not None]
        self._clock = clock
        self._looked = clock()
        self._stamp = self._stat()
        self.secret = self._read()

    def is_due(self) -> bool:
        """Return whether it is time to look at the files again."""
        return bool(self._paths) and self._clock() - self._looked >= _LOOK_EVERY

    async def renew(self, *, was_refused: bool) -> None:
        """Read the files again if they changed, or in any case when the server refused the secret."""
        self._looked = self._clock()
        stamp = self._stat()
        if not self._paths or (stamp == self._stamp and not was_refused):
            return
        try:
            self.secret = self._read()
        except KubeconfigError:
            return  # being replaced: the next look finds it
        self._stamp = stamp

    def _stat(self) -> list[tuple[int, int, int]]:
        found = []
        for path in self._paths:
            try:
                status = os.stat(path)
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
            except (OSError, ValueError):
                found.append((0, 0, 0))
        return found

    def _read(self) -> Secret:
        fixed = self._fixed
        return Secret(
            read_token(self._token) if self._token else fixed.authorization,
            read_pem(self._certificate, "client-certificate") if self._certificate else fixed.certificate,
            read_pem(self._key, "client-key") if self._key else fixed.key,
        )


class _ExecStatus(msgspec.Struct, rename="camel"):
    """What a plugin answers."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


@dataclass(slots=True)
class ExecCredentials:
    """Asks a plugin; remembers its answer until it expires or is refused."""

    command: str
    args: Sequence[str]
    environment: Mapping[str, str]  # added to ours
    api_version: str
    interactive_mode: str = "IfAvailable"
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None  # for plugins that want to know the cluster
    now: Callable[[], datetime] = utc_now
    limit: float = _PLUGIN_SECONDS
    secret: Secret = field(default_factory=Secret)
    _is_known: bool = False
    _expires: datetime | None = None

    def is_due(self) -> bool:
        """Return whether the plugin must be asked before the next request."""
        return not self._is_known or (self._expires is not None and self.now() >= self._expires)

    async def renew(self, *, was_refused: bool) -> None:
        """Run the plugin."""
        if not was_refused and not self.is_due():
            return
        answer = self._judged(await self._run())
        authorization = bearer(answer.token, f"the token of {self._name}") if answer.token else ""
        self.secret = Secret(
            authorization, answer.client_certificate_data.encode(), answer.client_key_data.encode()
        )
        expires = answer.expiration_timestamp
        self._expires = expires.replace(tzinfo=UTC) if expires and expires.tzinfo is None else expires
        self._is_known = True

    @property
    def _name(self) -> str:
        return f"exec plugin {self.command!r}"

    def _is_interactive(self) -> bool:
        has_terminal = sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
        if self.interactive_mode == "Always" and not has_terminal:
            raise KubeconfigError(
                f"{self._name} wants a terminal (interactiveMode: Always), and standard input is not one"
            )
        return has_terminal and self.interactive_mode != "Never"

    async def _run(self) -> bytes:
        is_interactive = self._is_interactive()
        spec: dict[str, Any] = {"interactive": is_interactive}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        environment = {
            **os.environ,
            **self.environment,
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
        }
        # People must see what a plugin asks of them; a daemon's log gets the last line with the error.
        shows = sys.stderr is not None and sys.stderr.isatty()
        try:
            process = await asyncio.create_subprocess_exec(
                self.command,
                *self.args,
                env=environment,
                stdin=None if is_interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if shows else asyncio.subprocess.PIPE,
                # In its own session it could not ask the terminal, and Ctrl-C would not reach it.
                start_new_session=not is_interactive,
            )
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            hint = self.install_hint or "is it installed and on PATH?"
            raise KubeconfigError(f"{self._name} cannot be run: {text}: {_one_line(hint)}") from error
        limit = _INTERACTIVE_SECONDS if is_interactive else self.limit
        try:
            async with asyncio.timeout(limit):
                output, errors = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                code = await process.wait()
        except TimeoutError:
            raise KubeconfigError(f"{self._name} gave no credentials within {limit:g} s") from None
        finally:
            await _end(process, has_session=not is_interactive)
        if code != 0:
            last = _one_line(errors.decode("utf-8", "replace").strip().rpartition("\n")[2])
            raise KubeconfigError(
                f"{self._name} failed with exit code {code}" + (f": {last}" if last else "")
            )
        return output

    def _judged(self, output: bytes) -> _ExecStatus:
        """Return the status in a plugin's output; raise KubeconfigError for anything else."""
        if len(output) > _MOST_PLUGIN_BYTES:
            raise KubeconfigError(f"{self._name} printed more than {_MOST_PLUGIN_BYTES >> 20} MiB")
        try:
            answer = msgspec.convert(without_nulls(load_json(output)), _ExecCredential)
        except (ParseError, msgspec.ValidationError) as error:
            raise KubeconfigError(f"{self._name} did not print an ExecCredential: {error}") from None
        if answer.kind != "ExecCredential" or answer.api_version != self.api_version:
            raise KubeconfigError(
                f"{self._name} is configured for {self.api_version} and answered with"
                f" {answer.api_version or 'no apiVersion'}, kind {answer.kind or 'none'}"
            )
        status = answer.status
        if status is None or not (status.token or status.client_certificate_data or status.client_key_data):
            raise KubeconfigError(f"{self._name} returned neither a token nor a certificate with its key")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise KubeconfigError(f"{self._name} returned only one of certificate and key")
        return status


def _one_line(text: str) -> str:
    """Return text without line breaks and control characters, cut to a length people read."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """Read a plugin's output to its end, keeping no more than the limit and one byte."""
    kept = bytearray()
    while stream is not None:
        piece = await stream.read(1 << 16)
        if not piece:
            break
        kept += piece[: _MOST_PLUGIN_BYTES + 1 - len(kept)]
    return bytes(kept)


async def _end(process: asyncio.subprocess.Process, *, has_session: bool) -> None:
    """End a plugin that is still running, with its children."""
    if process.returncode is not None:
        return
    try:
        if has_session:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except ProcessLookupError:
        pass
    await process.wait()
