"""What all bombs are made of: where they go, and who sends them."""

from __future__ import annotations

import json
from typing import Any

from attack.custom_kinds import GROUP
from attack.servers import NOBODY
from attack.vocabulary import JSON, PROTOBUF
from attack.wire import ADMIN, Request
from dray.api.protobuf import MAGIC, encode_field

Json = Any
HOME = "corpus"  # the namespace in which objects of every kind exist
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CORE = f"/api/v1/namespaces/{HOME}"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{HOME}/resourceclaims"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
WIDGETS = f"/apis/{GROUP}/v1/namespaces/{HOME}/widgets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
LIMIT = 3 * 1024 * 1024 - 4096  # a little below what the server takes

Bomb = tuple[str, Request]


def send(
    method: str, target: str, body: bytes | str | Json, content: str = JSON, token: str = ADMIN
) -> Request:
    """Return a request; a body that is neither text nor bytes becomes JSON."""
    if not isinstance(body, bytes):
        body = (body if isinstance(body, str) else json.dumps(body)).encode("utf-8", "surrogatepass")
    return Request(method, target, {"Content-Type": content}, body, token)


def review(body: bytes | str, content: str = JSON) -> Request:
    """Return a request that every authenticated user may send."""
    return send("POST", REVIEW, body, content, NOBODY)


def review_protobuf(message: bytes) -> Request:
    """Return a protobuf body around a message."""
    body = (
        MAGIC
        + encode_field(
            1, encode_field(1, b"authorization.k8s.io/v1") + encode_field(2, b"SelfSubjectAccessReview")
        )
        + encode_field(2, message)
    )
    return Request("POST", REVIEW, {"Content-Type": PROTOBUF}, body, NOBODY)
