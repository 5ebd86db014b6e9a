"""From a request and its answer to an audit.k8s.io/v1 Event.

Events are written when an answer begins that lasts (a watch: stage ResponseStarted) and when an answer is complete
(ResponseComplete), or when answering failed in the server itself (Panic). The policy is asked when the answer is
known, so a request that never ends in any of these leaves no event.

Bodies are recorded only from level Request on, only of objects that hold no secrets, and only up to MAX_OBJECT bytes; what
is left out is named in the annotation `dray.dev/omitted`. Everything else in an event is bounded by the limits on the head
of a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec

from dray.api.json_types import JsonObject
from dray.api.kinds import AUTHENTICATION
from dray.api.parsing import ParseError, load_json
from dray.api.times import format_microtime
from dray.host.metrics_text import family
from dray.server.audit.audit_policy import (
    API_VERSION,
    LEVEL_NAMES,
    METADATA,
    NONE,
    PANIC,
    REQUEST,
    REQUEST_RESPONSE,
    RESPONSE_COMPLETE,
    RESPONSE_STARTED,
    AuditPolicy,
    RequestFacts,
    Verdict,
)
from dray.server.requests import EndingStream, Request, Response, User, split_path, verb_of

MAX_OBJECT = 256 * 1024  # bytes of a body that is recorded
MAX_TEXT = 8 * 1024  # characters of a path with its query, of a user agent
OMITTED = "dray.dev/omitted"
# (group, resource or resource/subresource) whose bodies are secrets
_SECRET = frozenset({("", "secrets"), ("", "serviceaccounts/token"), (AUTHENTICATION, "tokenreviews")})
_NOBODY = User("")


class Sink(Protocol):
    """Where lines go."""

    n_written: int
    n_lost: int

    def add(self, line: bytes) -> None:
        """Take one line."""


class _Names(msgspec.Struct):
    name: str = ""
    uid: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Named(msgspec.Struct):
    metadata: _Names = msgspec.field(default_factory=_Names)


class AuditLog:
    """Records requests as the policy says."""

    def __init__(
        self, policy: AuditPolicy, sink: Sink, now: Callable[[], datetime], new_uid: Callable[[], str]
    ) -> None:
        self._policy = policy
        self._sink = sink
        self._new_uid = new_uid
        self.now = now

    def answered(self, request: Request, response: Response, received: datetime) -> None:
        """Record an answer; one that streams is recorded when it begins, and again when it has ended."""
        if response.tunnel is not None and "upgrade" not in request.headers:
            return  # the framework is going to answer this request, and it is recorded then
        facts = _facts(request)
        verdict = self._policy.judge(facts)
        if verdict.level == NONE:
            return
        event = self._event(request, facts, verdict, received)
        body = response.body
        if isinstance(body, bytes):
            members, omitted = _objects(request, response, facts, verdict)
            event.update(members)
            if omitted:
                event.setdefault("annotations", {})[OMITTED] = ",".join(omitted)
            self._write(event, verdict, RESPONSE_COMPLETE, response.status)
            return
        if facts.verb == "watch":
            self._write(event, verdict, RESPONSE_STARTED, response.status)
        response.body = self._followed(body, event, verdict, response.status)

    def failed(self, request: Request, received: datetime) -> None:
        """Record that answering ended in an error of the server."""
        facts = _facts(request)
        verdict = self._policy.judge(facts)
        if verdict.level != NONE:
            self._write(self._event(request, facts, verdict, received), verdict, PANIC, 500)

    def metrics(self) -> Iterator[str]:
        """Yield the counters for Prometheus, under kube-apiserver's names."""
        yield from family(
            "apiserver_audit_event_total", "counter", "Events written to the audit log.", self._sink.n_written
        )
        yield from family(
            "apiserver_audit_error_total",
            "counter",
            "Events that the audit log lost.",
            [({"plugin": "log"}, self._sink.n_lost)],
        )

    def _followed(
        self, body: AsyncIterator[bytes], event: JsonObject, verdict: Verdict, code: int
    ) -> EndingStream:
        return EndingStream(body, lambda: self._write(event, verdict, RESPONSE_COMPLETE, code))

    def _event(
        self, request: Request, facts: RequestFacts, verdict: Verdict, received: datetime
    ) -> JsonObject:
        sender = request.sender or _NOBODY
        event: JsonObject = {
            "kind": "Event",
            "apiVersion": API_VERSION,
            "level": LEVEL_NAMES[verdict.level],
            "auditID": self._new_uid(),
            "stage": "",
            "requestURI": _uri(request),
            "verb": facts.verb,
            "user": sender.info(),
        }
        if request.user is not None and request.user is not sender:
            event["impersonatedUser"] = request.user.info()
        if request.remote:
            event["sourceIPs"] = [request.remote]
        agent = request.header("user-agent")
        if agent:
            event["userAgent"] = agent[:MAX_TEXT]
        if facts.is_resource:
            event["objectRef"] = _reference(request, facts)
        event["requestReceivedTimestamp"] = format_microtime(received)
        if request.sender is not None:
            decision = "allow" if request.is_permitted else "forbid"
            event["annotations"] = {"authorization.k8s.io/decision": decision}
        return event

    def _write(self, event: JsonObject, verdict: Verdict, stage: str, code: int) -> None:
        if stage in verdict.omitted_stages:
            return
        event["stage"] = stage
        event["responseStatus"] = {"metadata": {}, **event.get("responseStatus", {}), "code": code}
        event["stageTimestamp"] = format_microtime(self.now())
        self._sink.add(msgspec.json.encode(event) + b"\n")


def _facts(request: Request) -> RequestFacts:
    user = (
        request.sender or _NOBODY
    )  # as in kube-apiserver, rules are about who asks, not whom they impersonate
    path = split_path(request.path)
    if path is None or not path.resource:
        return RequestFacts(user, request.method.lower(), False, request.path)
    return RequestFacts(
        user,
        verb_of(request, path) or request.method.lower(),
        True,
        request.path,
        path.group,
        path.resource,
        path.subresource,
        path.namespace,
        path.name,
    )


def _uri(request: Request) -> str:
    path = quote(request.path)
    return (f"{path}?{urlencode(request.query)}" if request.query else path)[:MAX_TEXT]


def _reference(request: Request, facts: RequestFacts) -> JsonObject:
    path = split_path(request.path)
    reference = {
        "resource": facts.resource,
        "namespace": facts.namespace,
        "name": facts.name,
        "apiGroup": facts.group,
        "apiVersion": path.version if path is not None else "",
        "subresource": facts.subresource,
    }
    return {name: value for name, value in reference.items() if value}


def _objects(
    request: Request, response: Response, facts: RequestFacts, verdict: Verdict
) -> tuple[JsonObject, list[str]]:
    """Return the members of an event that come from bodies, and the names of those that are left out."""
    found: JsonObject = {}
    omitted: list[str] = []
    answer = response.body if isinstance(response.body, bytes) else b""
    if response.status >= 400:
        found["responseStatus"] = _status(answer)
    if not facts.is_resource:
        return found, omitted
    if facts.verb == "create" and response.status < 300 and not facts.subresource:
        found["objectRef"] = {**_reference(request, facts), **_names(answer)}
    level = min(verdict.level, METADATA) if _is_secret(facts) else verdict.level
    for least, name, body in (
        (REQUEST, "requestObject", request.body),
        (REQUEST_RESPONSE, "responseObject", answer),
    ):
        if not body or verdict.level < least:
            continue
        value = _recorded(body, verdict.omits_managed_fields) if level >= least else None
        if value is None:
            omitted.append(name)
        else:
            found[name] = value
    return found, omitted


def _is_secret(facts: RequestFacts) -> bool:
    whole = f"{facts.resource}/{facts.subresource}" if facts.subresource else facts.resource
    return (facts.group, whole) in _SECRET or (facts.group, facts.resource) == ("", "secrets")


def _recorded(body: bytes, omits_managed_fields: bool) -> Any:
    """Return a body as a value; None when it is too large or not JSON."""
    try:
        value = load_json(body, max_bytes=MAX_OBJECT)
    except ParseError:
        return None
    if omits_managed_fields and isinstance(value, dict):
        for each in [value, *(value.get("items") or [])]:
            metadata = each.get("metadata") if isinstance(each, dict) else None
            if isinstance(metadata, dict):
                metadata.pop("managedFields", None)
    return value


def _names(answer: bytes) -> JsonObject:
    try:
        names = load_json(answer, _Named).metadata
    except ParseError:
        return {}
    found = {"name": names.name, "uid": names.uid, "resourceVersion": names.resource_version}
    return {key: value for key, value in found.items() if value}


def _status(answer: bytes) -> JsonObject:
    """Return what a Status says, without its details."""
    try:
        value = load_json(answer, max_bytes=MAX_OBJECT)
    except ParseError:
        return {}
    if not isinstance(value, dict) or value.get("kind") != "Status":
        return {}
    kept = {name: value[name] for name in ("status", "reason") if isinstance(value.get(name), str)}
    message = value.get("message")
    return {**kept, "message": message[:MAX_TEXT]} if isinstance(message, str) else kept
