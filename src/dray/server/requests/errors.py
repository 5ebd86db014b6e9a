"""Failures as Kubernetes reports them: `Status` objects.

    ApiError                     anything that ends a request with a Status
      made by: not_found, already_exists, conflict, invalid, bad_request,
               forbidden, unauthorized, gone, too_large, ...

Every function here returns an `ApiError` to raise. Messages follow
kube-apiserver's wording, because tools match on it. `FieldError`s of validation
become `details.causes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dray.server.requests.messages import Response, json_response


class FieldProblem(Protocol):
    """What validation reports: api.validation's FieldError satisfies this."""

    def message(self) -> str:
        """Return the sentence with the field's path in front."""

    def cause(self) -> dict[str, str]:
        """Return the entry for details.causes."""


@dataclass
class ApiError(Exception):
    """A request that ends with a Status; `reason` "" is left out (plain internal errors)."""

    code: int
    reason: str
    message: str
    details: dict[str, Any] | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def status(self) -> dict[str, Any]:
        """Return the Status object."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status

    def response(self) -> Response:
        """Return the HTTP answer."""
        return json_response(self.code, self.status(), self.headers)


def _qualified(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource


def _details(group: str = "", kind: str = "", name: str = "", **more: Any) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name, "group": group, "kind": kind, **more}
    return {key: value for key, value in details.items() if value}


def not_found(group: str, resource: str, name: str) -> ApiError:
    """Return 404 for an object that does not exist."""
    return ApiError(
        404,
        "NotFound",
        f'{_qualified(resource, group)} "{name}" not found',
        _details(group, resource, name),
    )


def unknown_resource() -> ApiError:
    """Return 404 for a resource or subresource that is not served."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(group: str, resource: str, name: str, being_deleted: bool = False) -> ApiError:
    """Return 409 for a name that is taken."""
    prefix = "object is being deleted: " if being_deleted else ""
    return ApiError(
        409,
        "AlreadyExists",
        f'{prefix}{_qualified(resource, group)} "{name}" already exists',
        _details(group, resource, name),
    )


def conflict(group: str, resource: str, name: str, why: str) -> ApiError:
    """Return 409 for a write that raced or may not happen now."""
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {_qualified(resource, group)} "{name}": {why}',
        _details(group, resource, name),
    )


MAX_MESSAGE = 1024 * 1024  # characters; each of many problems may list many names
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def apply_conflict(causes: list[dict[str, str]], message: str) -> ApiError:
    """Return 409 of server-side apply, with one cause per contested field."""
    return ApiError(409, "Conflict", message, {"causes": causes})


def invalid(group: str, kind: str, name: str, problems: Sequence[FieldProblem]) -> ApiError:
    """Return 422 with one cause per field problem, as far as an answer of `MAX_MESSAGE` characters goes."""
    messages: list[str] = []
    size = 0
    for problem in problems:
        messages.append(problem.message())
        size += len(messages[-1])
        if size > MAX_MESSAGE:
            break
    n_left_out, problems = len(problems) - len(messages), problems[: len(messages)]
    # Equal errors are told once in the message, as upstream's aggregate does.
    texts = list(dict.fromkeys(messages))
    if n_left_out:
        texts.append(f"and {n_left_out} more")
    summary = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    # Paths are a kind of text of their own in validation; an encoder wants plain text.
    causes = [{name: str(text) for name, text in problem.cause().items()} for problem in problems]
    target = f"{kind}.{group}" if group else kind
    return ApiError(
        422,
        "Invalid",
        f'{target} "{name}" is invalid: {summary}',
        _details(group, kind, name, causes=causes),
    )


def bad_request(message: str) -> ApiError:
    """Return 400."""
    return ApiError(400, "BadRequest", message)


def forbidden(
    group: str, resource: str, name: str, why: str, causes: Iterable[dict[str, str]] = ()
) -> ApiError:
    """Return 403 of admission or authorisation: `<resource> "<name>" is forbidden: <why>`."""
    target = _qualified(resource, group)
    subject = f'{target} "{name}"' if name else target
    return ApiError(
        403,
        "Forbidden",
        f"{subject} is forbidden: {why}",
        _details(group, resource, name, causes=list(causes)),
    )


def unauthorized(message: str = "Unauthorized") -> ApiError:
    """Return 401."""
    return ApiError(401, "Unauthorized", message)


def expired(message: str, continue_token: str = "") -> ApiError:
    """Return 410: the asked-for history is compacted away."""
    metadata = {"continue": continue_token} if continue_token else {}
    return ApiError(410, "Expired", message, metadata=metadata)


def internal(message: str) -> ApiError:
    """Return 500 with a reason: something upstream also reports as an internal error."""
    return ApiError(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        {"causes": [{"message": message}]},
    )


def plain_failure(code: int, message: str) -> ApiError:
    """Return an error without reason, as upstream gives for errors it did not classify."""
    return ApiError(code, "", message)


def method_not_allowed() -> ApiError:
    """Return 405 for a method that this path does not have."""
    return ApiError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {}
    )


def unsupported_media_type(message: str) -> ApiError:
    """Return 415."""
    return ApiError(415, "UnsupportedMediaType", message)


def not_acceptable(message: str) -> ApiError:
    """Return 406."""
    return ApiError(406, "NotAcceptable", message)


def too_large(message: str) -> ApiError:
    """Return 413."""
    return ApiError(413, "RequestEntityTooLarge", message)


def too_many_requests(message: str, retry_after: int = 1) -> ApiError:
    """Return 429 with Retry-After."""
    return ApiError(
        429,
        "TooManyRequests",
        message,
        {"retryAfterSeconds": retry_after},
        [("Retry-After", str(retry_after))],
    )


def timed_out(message: str, causes: list[dict[str, str]] | None = None, retry_after: int = 0) -> ApiError:
    """Return 504."""
    details: dict[str, Any] = {}
    if causes:
        details["causes"] = causes
    if retry_after:
        details["retryAfterSeconds"] = retry_after
    return ApiError(504, "Timeout", message, details)
