"""What can go wrong when talking to an API server, as one tree.

    ClientError
    ├── KubeconfigError      the kubeconfig (or the in-cluster files) cannot be used
    ├── TransportError       no answer: refused, reset, timed out, cut off
    │   └── Unreadable            an answer came, but not what was asked for
    └── ApiError             an answer that says no; carries the server's Status
        ├── BadRequest       400
        ├── Unauthorized     401
        ├── Forbidden        403
        ├── NotFound         404
        ├── Conflict         409  somebody else wrote first; read again
        │   └── AlreadyExists     409  the name is taken
        ├── Gone             410  the revision is forgotten; list again
        ├── TooLarge         413
        ├── UnsupportedMedia 415
        ├── Invalid          422  `causes` name the fields
        ├── TooManyRequests  429  `retry_after` seconds, if the server said so
        └── ServerFailed     5xx  may or may not have happened

Callers catch the branch they can act upon and let the rest rise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dray.api.parsing import ParseError, json_loader


class ClientError(Exception):
    """Base of everything this package raises."""


class KubeconfigError(ClientError):
    """The file that says where the server is cannot be used."""


class TransportError(ClientError):
    """There was no answer; for a write it is unknown whether it happened."""


class Unreadable(TransportError):
    """The answer does not fit the view that the caller asked for."""


class StatusCause(msgspec.Struct, rename="camel", frozen=True):
    """One field that the server refuses."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, rename="camel", frozen=True):
    """What the Status is about."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[StatusCause] = []
    retry_after_seconds: int = 0


class Status(msgspec.Struct, rename="camel", frozen=True):
    """The server's own account of an error."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class ApiError(ClientError):
    """The server answered, and the answer is no."""

    def __init__(self, code: int, status: Status, what: str = "", retry_after: float | None = None) -> None:
        self.code = code
        self.status = status
        self.what = what  # "PUT /apis/…": the request that was refused
        self.retry_after = retry_after  # seconds, None means: the server did not say
        text = status.message or f"HTTP {code}"
        super().__init__(f"{what}: {text}" if what else text)

    @property
    def reason(self) -> str:
        """The machine-readable reason, e.g. `AlreadyExists`."""
        return self.status.reason

    @property
    def causes(self) -> list[StatusCause]:
        """The fields that the server refuses, if it named any."""
        return self.status.details.causes if self.status.details else []


class BadRequest(ApiError):
    """400: the request makes no sense to the server."""


class Unauthorized(ApiError):
    """401: the credentials are wrong."""


class Forbidden(ApiError):
    """403: the credentials do not allow this."""


class NotFound(ApiError):
    """404: no such object, or no such resource."""


class Conflict(ApiError):
    """409: the object has changed since it was read."""


class AlreadyExists(Conflict):
    """409: the name is taken."""


class Gone(ApiError):
    """410: the revision asked for is forgotten."""


class TooLarge(ApiError):
    """413: the body is over the server's limit."""


class UnsupportedMedia(ApiError):
    """415: the server does not read this content type."""


class Invalid(ApiError):
    """422: fields break the rules; see `causes`."""


class TooManyRequests(ApiError):
    """429: slow down."""


class ServerFailed(ApiError):
    """5xx: the server failed; a write may still have happened."""


_BY_CODE: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    415: UnsupportedMedia,
    422: Invalid,
    429: TooManyRequests,
}
_decode_status = json_loader(Status).decode


def error_from(code: int, body: bytes, what: str = "", headers: Mapping[str, str] | None = None) -> ApiError:
    """Turn an error answer into the exception of its branch; never raises."""
    try:
        status = _decode_status(body)
    except ParseError:
        # Not every answer is a Status: unknown paths and proxies answer in plain text.
        status = Status(code=code, message=body[:400].decode(errors="replace").strip())
    if 300 <= code < 400:
        where = (headers or {}).get("location", "")[:200]
        status = Status(
            code, message=f"the server redirects{f' to {where}' if where else ''}, which is not followed"
        )
    code = status.code if 400 <= status.code < 600 else code
    kind = _BY_CODE.get(code, ServerFailed if code >= 500 else ApiError)
    if kind is Conflict and status.reason == "AlreadyExists":
        kind = AlreadyExists
    return kind(code, status, what, _retry_after(status, headers))


def _retry_after(status: Status, headers: Mapping[str, str] | None) -> float | None:
    text: Any = (headers or {}).get("retry-after") or (headers or {}).get("Retry-After")
    if text and str(text).isdigit():
        return float(text)
    if status.details and status.details.retry_after_seconds:
        return float(status.details.retry_after_seconds)
    return None
