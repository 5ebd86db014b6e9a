"""A whole server in memory, without sockets, for tests of its verbs."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dray.api.features import Features
from dray.server.assembly import Cluster, Settings
from dray.server.requests.calls import Environment
from dray.server.requests.messages import Request
from dray.server.requests.users import User
from dray.server.store import MemoryStore

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


class Reply:
    """An answer: code, document and warnings."""

    def __init__(self, code: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        self.code = code
        self.body = body
        self.warnings = [value for name, value in headers if name == "Warning"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def fields(self) -> list[str]:
        return sorted(cause.get("field", "") for cause in self.json["details"]["causes"])


class Client:
    """Calls the server as a superuser, or as whoever a token belongs to."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def call(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        content: str = "",
        token: str = "admin",
        accept: str = "",
    ) -> Reply:
        response = await self._respond(method, target, body, content, token, accept)
        body = response.body
        if not isinstance(body, bytes):  # a long list; for watches there is `watch`
            body = b"".join([piece async for piece in body])
            assert response.length in (None, len(body))
        return Reply(response.status, body, response.headers)

    async def watch(self, target: str, events: int, seconds: float = 60.0) -> list[dict[str, Any]]:
        response = await self._respond("GET", target, None, "", "admin", "")
        assert not isinstance(response.body, bytes)
        seen: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(seconds):
                async for piece in response.body:
                    seen += [json.loads(line) for line in piece.splitlines()]
                    if len(seen) >= events:
                        break
        except TimeoutError:
            pass
        await response.body.aclose()
        return seen

    async def _respond(self, method, target, body, content, token, accept):
        parts = urlsplit(target)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        if accept:
            headers["accept"] = accept
        headers["user-agent"] = "tester/1"
        if body is not None:
            headers["content-type"] = content or "application/json"
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        query = tuple(parse_qsl(parts.query, keep_blank_values=True))
        return await self.cluster.server.handle(Request(method, parts.path, query, headers, raw))


@asynccontextmanager
async def running_cluster(**settings: Any) -> AsyncIterator[Client]:
    """Run a server whose clock stands still and whose uids count up."""
    numbers = itertools.count(1)
    environment = settings.pop("environment", None) or Environment(
        now=lambda: datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC),
        new_uid=lambda: f"00000000-0000-4000-8000-{next(numbers):012d}",
        new_suffix=lambda: f"{next(numbers):05d}",
    )
    tokens = {
        "admin": User("admin", groups=("system:masters",)),
        "guest": User("guest", groups=("system:authenticated",)),
    }
    chosen = {
        "features": Features.everything(),
        "disabled_admission": frozenset({"ServiceAccount"}),
        **settings,
    }
    cluster = Cluster(MemoryStore(), Settings(static_tokens=tokens, environment=environment, **chosen))
    await cluster.start()
    try:
        yield Client(cluster)
    finally:
        await cluster.stop()


def claim(name: str = "c", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
    }


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "image:1"}], **spec},
    }
