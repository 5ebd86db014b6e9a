"""Asking one admission webhook: an AdmissionReview out, an AdmissionReview back.

A webhook is not trusted with this server: the transport (see `http.webhook_transport`) bounds where
it is, how long it takes and how much it says, and what it says about the object is read like any
client's body.

Webhooks that are named by a service cannot be called: nothing here forwards traffic.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dray.api.json_types import JsonMapping, JsonObject
from dray.api.parsing import ParseError, parse_json
from dray.server.admission.admission_request import AdmissionRequest
from dray.server.requests import ApiError, compute, encode, errors

ANSWER_BYTES = 6 * 1024 * 1024
MOST_WARNINGS = 80
DEFAULT_SECONDS = 10


class CallFailed(Exception):
    """A webhook could not be asked, or its answer makes no sense; `failurePolicy` decides."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a webhook answered."""

    allowed: bool
    status: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    patch: list[JsonObject] | None = None
    annotations: Mapping[str, str] | None = None


class Transport(Protocol):
    """Posts to webhooks; only the package `http` speaks HTTP."""

    async def post(self, url: str, body: bytes, authorities: str) -> tuple[int, bytes]:
        """Return status and body of the answer; `authorities` is a caBundle. Raises OSError or ValueError."""

    async def close(self) -> None:
        """Drop connections."""


async def ask(
    transport: Transport, hook: JsonMapping, request: AdmissionRequest, version: str, uid: str
) -> Verdict:
    """Return a webhook's verdict on a request, shown in a version; raise CallFailed."""
    review = _review_version(hook)
    body = encode(
        {
            "kind": "AdmissionReview",
            "apiVersion": review,
            "request": {
                "uid": uid,
                **request.review(version),
                "object": request.object_in(version),
                "oldObject": request.old_object_in(version),
            },
        }
    )
    config = hook.get("clientConfig") or {}
    seconds = hook.get("timeoutSeconds") or DEFAULT_SECONDS
    url = _url(config, seconds)
    try:
        async with asyncio.timeout(seconds):
            status, answer = await transport.post(url, body, config.get("caBundle") or "")
    except TimeoutError:
        raise CallFailed(f'failed to call webhook: Post "{url}": context deadline exceeded') from None
    except (OSError, ValueError) as problem:
        raise CallFailed(f'failed to call webhook: Post "{url}": {problem}') from None
    if status != 200:
        raise CallFailed(f"failed to call webhook: the server answered with status {status}")
    return await compute(len(answer), read_verdict, answer, uid, review)


def _review_version(hook: JsonMapping) -> str:
    for version in hook.get("admissionReviewVersions") or ():
        if version in ("v1", "v1beta1"):
            return f"admission.k8s.io/{version}"
    raise CallFailed("webhook does not accept known AdmissionReview versions (v1, v1beta1)")


def _url(config: JsonMapping, seconds: int) -> str:
    service = config.get("service")
    if service is not None:
        place = f"https://{service.get('name')}.{service.get('namespace')}.svc:{service.get('port') or 443}"
        raise CallFailed(
            f'failed to call webhook: Post "{place}{service.get("path") or "/"}?timeout={seconds}s": '
            f'service "{service.get("name")}" not found (this server has no services; use clientConfig.url)'
        )
    url = config.get("url") or ""
    return f"{url}{'&' if '?' in url else '?'}timeout={seconds}s"


def read_verdict(answer: bytes, uid: str, review: str) -> Verdict:
    """Read the AdmissionReview that came back; raise CallFailed where it is none."""
    try:
        said = parse_json(answer, max_bytes=ANSWER_BYTES)
    except ParseError as problem:
        raise CallFailed(f"failed to call webhook: {problem}") from None
    found = said if isinstance(said, dict) else {}
    response = found.get("response")
    invalid = "received invalid webhook response: "
    if not isinstance(response, dict):
        raise CallFailed(invalid + "webhook response was absent")
    if review.endswith("/v1"):
        if response.get("uid") != uid:
            raise CallFailed(f'{invalid}expected response.uid="{uid}", got "{response.get("uid") or ""}"')
        if (found.get("apiVersion"), found.get("kind")) != (review, "AdmissionReview"):
            group = str(found.get("apiVersion") or "")
            raise CallFailed(
                f"{invalid}expected webhook response of {review}, Kind=AdmissionReview, "
                f"got {group}, Kind={found.get('kind') or ''}"
            )
    status = response.get("status")
    warnings = response.get("warnings")
    annotations = response.get("auditAnnotations")
    return Verdict(
        response.get("allowed") is True,
        status if isinstance(status, dict) else {},
        tuple(str(text) for text in warnings[:MOST_WARNINGS]) if isinstance(warnings, list) else (),
        _patch(response, is_strict=review.endswith("/v1")),
        annotations if isinstance(annotations, dict) else None,
    )


def _patch(response: JsonMapping, *, is_strict: bool) -> list[JsonObject] | None:
    text, kind = response.get("patch") or "", response.get("patchType")
    invalid = "received invalid webhook response: "
    if is_strict and text and kind is None:
        raise CallFailed(invalid + "webhook returned response.patch but not response.patchType")
    if is_strict and not text and kind is not None:
        raise CallFailed(invalid + "webhook returned response.patchType but not response.patch")
    if not text:
        return None
    if is_strict and kind != "JSONPatch":
        raise CallFailed(f'unsupported patch type "{kind}"')
    try:
        decoded = parse_json(base64.b64decode(text, validate=True), max_bytes=ANSWER_BYTES)
    except (ParseError, binascii.Error, ValueError, TypeError) as problem:
        raise CallFailed(f"received undecodable patch in webhook response: {problem}") from None
    if not isinstance(decoded, list) or not all(isinstance(step, dict) for step in decoded):
        raise CallFailed("received undecodable patch in webhook response: it is not a list of operations")
    return [step for step in decoded if isinstance(step, dict)]


def denial(name: str, status: Mapping[str, Any]) -> ApiError:
    """Return the error of a request that a webhook refused."""
    code = status.get("code")
    code = code if isinstance(code, int) and 400 <= code < 600 else 400
    message, reason = str(status.get("message") or ""), str(status.get("reason") or "")
    refused = f'admission webhook "{name}" denied the request'
    text = f"{refused}: {message or reason}" if message or reason else f"{refused} without explanation"
    details = status.get("details")
    return ApiError(code, reason, text, details if isinstance(details, dict) else None)


def failure(name: str, problem: Exception) -> ApiError:
    """Return the error of a request whose webhook could not be asked."""
    return errors.internal(f'failed calling webhook "{name}": {problem}')
