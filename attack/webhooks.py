"""Admission webhooks that answer with anything but a verdict: whoever may configure one chooses its address and its answers.

One TLS server plays all of them; the path says how it behaves. Some behave as hostile node agents do (floods, redirects,
silence, see `agents`), the others read the review and answer with a review that is wrong in one place. A configuration is made for
each, for config maps with a label of its name, so that no webhook is asked about anything else.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attack.agents import BEHAVIOURS
from attack.wire import HOST, Request, json_request
from dray.certificates import make_self_signed_certificate

Json = Any
NAMESPACE = "default"
LABEL = "attack-hook"
SECONDS = 2  # that a webhook may take, as its configuration says
_GROUP = "/apis/admissionregistration.k8s.io/v1"
_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


def _steps(*steps: Json) -> Json:
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(steps).encode()).decode()}


def _set(path: str, value: Json) -> Json:
    return _steps({"op": "add", "path": path, "value": value})


def _deep(levels: int) -> Json:
    value: Json = "x"
    for _ in range(levels):
        value = {"a": value}
    return value


def _denied(**status: Json) -> Json:
    return {"allowed": False, "status": status}


_COPIES = [{"op": "copy", "from": "/data", "path": f"/data/{number}"} for number in range(30)]
RESPONSES: dict[str, Json] = {
    "allowed-odd": {"allowed": "yes"}, "allowed-null": {"allowed": None}, "nothing": {}, "status-text": {"allowed": False, "status": "no"},
    "denied": _denied(code=403, message="no"), "denied-long": _denied(message="x" * 5_000_000), "denied-lines": _denied(message="a\r\nSet-Cookie: a=b\r\n\r\n"),
    "denied-null": _denied(code=None, message=None, reason=None, details=None), "denied-code-odd": _denied(code=10**30), "denied-code-true": _denied(code=True),
    "denied-code-599": _denied(code=599), "denied-code-text": _denied(code="403"), "denied-reason-odd": _denied(reason={"a": 1}, message=["x"]),
    "denied-surrogate": _denied(message="\ud800"), "denied-zero": _denied(message="\x00"),
    "details-odd": _denied(details={"causes": [None, 1, {"field": {}}], "name": 5, "retryAfterSeconds": "x", "uid": []}), "details-deep": _denied(details=_deep(150)),
    "details-many": _denied(details={"causes": [{"message": "m"}] * 100_000}), "details-unknown": _denied(details={"x" * 100_000: 1}),
    "warnings-odd": {"warnings": [None, 1, {}, "x\r\nSet-Cookie: a=b", "é\ud800", "\x00"]}, "warnings-long": {"warnings": ["w" * 60_000] * 80}, "warnings-many": {"warnings": ["w"] * 500_000},
    "annotations-long": {"auditAnnotations": {"k" * 1_000_000: "v" * 1_000_000}}, "annotations-odd": {"auditAnnotations": {"": None, "a": [1]}},
    "patch-not-base64": {"patchType": "JSONPatch", "patch": "é"}, "patch-number": {"patchType": "JSONPatch", "patch": 7}, "patch-type": {"patchType": [], "patch": "W10="},
    "patch-not-json": {"patchType": "JSONPatch", "patch": base64.b64encode(b"[").decode()}, "patch-null": _steps(None), "patch-empty-step": _steps({}), "patch-odd-step": _steps({"op": 1, "path": []}),
    "patch-nested": {"patchType": "JSONPatch", "patch": base64.b64encode(b"[" * 100_000).decode()}, "patch-everything": _set("", None), "patch-text": _set("", "x"), "patch-list": _set("", []),
    "patch-metadata": _set("/metadata", None), "patch-name": _set("/metadata/name", "other"), "patch-namespace": _set("/metadata/namespace", "kube-system"), "patch-kind": _set("/kind", "Secret"),
    "patch-version": _set("/apiVersion", "v9"), "patch-uid": _set("/metadata/uid", {}), "patch-owners": _set("/metadata/ownerReferences", [None]), "patch-managed": _set("/metadata/managedFields", [{"fieldsV1": 1}]),
    "patch-labels": _set("/metadata/labels", {"a": 1}), "patch-data": _set("/data", ["x"]), "patch-deep": _set("/data", _deep(190)), "patch-large": _set("/data/b", "x" * 4_000_000),
    "patch-generation": _set("/metadata/generation", 10**30), "patch-deleted": _set("/metadata/deletionTimestamp", "x"), "patch-finalizers": _set("/metadata/finalizers", [None, "x" * 1_000_000]),
    "patch-copies": _steps(*_COPIES, *_COPIES), "patch-many-steps": _steps(*[{"op": "test", "path": "/kind", "value": "ConfigMap"}] * 100_000), "patch-surrogate": _set("/data/s", "\ud800"),
}  # fmt: skip


def _review(name: str, uid: str) -> bytes:
    response = {"uid": uid, "allowed": True, **RESPONSES[name]}
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    ).encode()


BODIES: dict[str, Callable[[str], bytes]] = {
    "empty": lambda _: b"", "not-json": lambda _: b"<html>", "list": lambda _: b"[]", "nested-body": lambda _: b"[" * 1_000_000,
    "other-uid": lambda _: _review("nothing", "other"), "number-uid": lambda uid: _review("nothing", uid).replace(b'"' + uid.encode() + b'"', b"1e999"),
    "other-kind": lambda uid: _review("nothing", uid).replace(b"AdmissionReview", b"Pod"), "long": lambda _: b'{"a":"' + b"x" * 7_000_000 + b'"}',
    "keys": lambda _: b"{" + b",".join(b'"%d":1' % number for number in range(400_000)) + b"}", "same-key": lambda _: b"{" + b",".join([b'"a":1'] * 400_000) + b"}",
    **{name: lambda uid, name=name: _review(name, uid) for name in RESPONSES},  # type: ignore[misc]
}  # fmt: skip
FLOODS = (
    "redirect-302-https", "endless-log", "endless-error", "endless-head", "endless-line", "endless-continue", "endless-chunk-size", "silent", "closes", "half-head", "garbage",
    "status-0", "status-999", "length-lies", "two-lengths", "chunk-minus", "gzip-bomb", "cookies", "upgrade",
)  # fmt: skip
NAMES = (*BODIES, *FLOODS)


class Webhooks:
    """The hostile webhooks, running."""

    def __init__(self, folder: Path) -> None:
        pair = make_self_signed_certificate("webhook", [HOST], datetime.now(UTC))
        (folder / "webhook.pem").write_bytes(pair.certificate_pem + pair.key_pem)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "webhook.pem")
        self.authorities = base64.b64encode(pair.certificate_pem).decode()
        self.port = 0
        self.asked = 0

    async def __aenter__(self) -> Webhooks:
        """Listen."""
        self._server = await asyncio.start_server(self._answer, HOST, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SECONDS * 4):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    name = head.split(" ")[1].partition("?")[0].rpartition("/")[2]
                    length = int(head.lower().partition("content-length:")[2].partition("\r\n")[0] or 0)
                    review = json.loads(await reader.readexactly(length))
                    self.asked += 1
                    if name in FLOODS:
                        await BEHAVIOURS[name](reader, writer, 1)
                        return
                    body = BODIES[name](review["request"]["uid"])
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # whoever asked has heard enough, or the run is over
        finally:
            writer.transport.abort()

    def configuration(self, name: str, *, mutating: bool) -> Request:
        """Return the request that makes a webhook, for config maps that carry its name as a label."""
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "resources": ["configmaps"],
            "operations": ["CREATE"],
        }
        hook = {
            "name": "a.attack.example.com", "clientConfig": {"url": f"https://{HOST}:{self.port}/{name}", "caBundle": self.authorities}, "rules": [rule],
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": SECONDS, "objectSelector": {"matchLabels": {LABEL: name}},
        }  # fmt: skip
        return json_request("POST", _path(mutating), {"metadata": {"name": f"h-{name}"}, "webhooks": [hook]})

    def removal(self, name: str, *, mutating: bool) -> Request:
        """Return the request that removes it."""
        return Request("DELETE", f"{_path(mutating)}/h-{name}")


def _path(mutating: bool) -> str:
    return f"{_GROUP}/{'mutating' if mutating else 'validating'}webhookconfigurations"


def questions(name: str) -> Iterator[Request]:
    """Yield writes that the webhook of a name is asked about, answered as JSON and as protobuf."""
    for number, accept in enumerate(("application/json", "application/vnd.kubernetes.protobuf")):
        body = {"metadata": {"name": f"asked{number}", "labels": {LABEL: name}}, "data": {"k": "v" * 1_000}}
        made = json_request("POST", f"{_MAPS}?dryRun=All", body)
        made.headers["Accept"] = accept
        made.shape = f"webhook {name}"
        yield made
