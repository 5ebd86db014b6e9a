"""Who may call the node agent's HTTPS port: authentication and authorisation, as kubelet does both.

A pod's processes can be reached through this port (`/exec`, `/containerLogs`), so
knowing who calls is not enough: every call is also authorised by the API server.

Authentication: a client certificate of the client CA (user = common name, groups =
organisations), else a bearer token, which the API server judges (TokenReview). There
is no anonymous access, not even to `/healthz`.

Authorisation: the path becomes a subresource of this node's Node object
(`subresources_of`, kubelet's table), the HTTP method a verb (`verb_of`), and the API
server answers a SubjectAccessReview for each subresource until one is allowed.

Answers are cached for kubelet's default times. Both caches are bounded, and so is the
number of reviews under way, so callers without rights cannot use the agent to flood
the API server. When the API server cannot be asked, only cached answers count:
everything else is refused.

Invariants (tests/unit/node/test_node_access.py): every path and method is in the
table of the test; an unreachable API server never allows.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dray.api.caching import BoundedMap
from dray.client import Client, ClientError

log = logging.getLogger("dray.node")

AUTHENTICATED = "system:authenticated"
TOKEN_SECONDS = 120.0  # kubelet's authentication.webhook.cacheTTL
ALLOWED_SECONDS = 300.0  # kubelet's authorization.webhook.cacheAuthorizedTTL
DENIED_SECONDS = 30.0  # kubelet's authorization.webhook.cacheUnauthorizedTTL
_CACHE_ENTRIES = 1024
_CACHED_CHARACTERS = 10_000  # answers about longer identities are not kept
_REVIEWS_AT_ONCE = 16
_REVIEW_SECONDS = 10.0
_TOKEN_CHARACTERS = 16_384

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_VERBS = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# Paths with a subresource of their own, and whether nodes/proxy is enough, too.
_SUBRESOURCES = (
    ("/allocatedPods", "pods", True),
    ("/pods", "pods", True),
    ("/healthz", "healthz", True),
    ("/configz", "configz", True),
    ("/runningpods", "pods", True),
    ("/stats", "stats", False),
    ("/metrics", "metrics", False),
    ("/logs", "log", False),
    ("/checkpoint", "checkpoint", False),
    ("/statusz", "statusz", False),
    ("/flagz", "configz", False),
)

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, in the words of a SubjectAccessReview."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def n_characters(self) -> int:
        """Return how long the identity is, all parts together."""
        extras = sum(len(key) + sum(map(len, values)) for key, values in self.extra)
        return len(self.name) + len(self.uid) + sum(map(len, self.groups)) + extras


class AccessError(Exception):
    """The caller is refused: `status` is the HTTP status, the text is for the caller."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def verb_of(method: str) -> str:
    """Return the API verb of an HTTP method; empty for methods that have none, which only `*` allows."""
    return _VERBS.get(method, "")


def subresources_of(path: str) -> tuple[str, ...]:
    """Return the subresources of `nodes` of which a caller must have one, in the order of asking.

    >>> subresources_of("/pods"), subresources_of("/metrics/cadvisor"), subresources_of("/exec/a/b/c")
    (('pods', 'proxy'), ('metrics',), ('proxy',))
    """
    for known, subresource, has_proxy in _SUBRESOURCES:
        if path == known or path.startswith(known + "/"):
            return (subresource, "proxy") if has_proxy else (subresource,)
    return ("proxy",)


def caller_of_certificate(certificate: Mapping[str, Any] | None) -> Caller | None:
    """Return whom a verified client certificate names (as `ssl` shows it); None without a common name."""
    subject = [pair for part in (certificate or {}).get("subject", ()) for pair in part]
    names = [value for key, value in subject if key == "commonName"]
    if not names or not names[-1]:
        return None
    groups = [value for key, value in subject if key == "organizationName"]
    return Caller(names[-1], _with_authenticated(groups))


def _with_authenticated(groups: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*groups, AUTHENTICATED]))


class ExpiringCache(Generic[Key, Value]):
    """A bounded map whose entries end; the one that was used least recently leaves first."""

    def __init__(self, n_entries: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: BoundedMap[Key, tuple[float, Value]] = BoundedMap(n_entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return what is known and still valid."""
        entry = self._entries.use(key)
        if entry is None:
            return None
        if entry[0] <= self._clock():
            del self._entries[key]
            return None
        return entry[1]

    def put(self, key: Key, value: Value, seconds: float) -> None:
        """Keep a value for some seconds."""
        self._entries[key] = (self._clock() + seconds, value)
        self._entries.move_to_end(key)


class Access:
    """Decides about the callers of one node's port; see the module's text."""

    def __init__(self, client: Client, node_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._node_name = node_name
        # digest of the token -> its caller, or False when it is nobody's
        self._callers: ExpiringCache[bytes, Caller | bool] = ExpiringCache(_CACHE_ENTRIES, clock)
        self._decisions: ExpiringCache[tuple[Caller, str, str], bool] = ExpiringCache(_CACHE_ENTRIES, clock)
        self._slots = asyncio.Semaphore(_REVIEWS_AT_ONCE)

    async def check(
        self, method: str, path: str, certificate: Mapping[str, Any] | None, authorization: str
    ) -> Caller:
        """Return the caller when the call is allowed, else raise AccessError."""
        caller = caller_of_certificate(certificate) or await self._by_token(authorization)
        if caller is None:
            raise AccessError(401, "Unauthorized")
        verb, subresources = verb_of(method), subresources_of(path)
        for subresource in subresources:
            try:
                is_allowed = await self._is_allowed(caller, verb, subresource)
            except (ClientError, TimeoutError, ValueError) as error:
                log.warning("cannot ask the API server whether %s may call %s: %s", caller.name, path, error)
                what = f"user={caller.name}, verb={verb}, resource=nodes, subresource={subresource}"
                raise AccessError(500, f"Authorization error ({what})") from error
            if is_allowed:
                return caller
        listed = " ".join(subresources)
        what = f"user={caller.name}, verb={verb}, resource=nodes, subresource(s)=[{listed}]"
        raise AccessError(403, f"Forbidden ({what})\n")

    async def _by_token(self, authorization: str) -> Caller | None:
        scheme, _, token = authorization.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _TOKEN_CHARACTERS:
            return None
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        known = self._callers.get(digest)
        if known is None:
            try:
                known = await self._review(lambda: self._review_token(token))
            except (ClientError, TimeoutError, ValueError) as error:
                log.warning("cannot ask the API server whose token a caller shows: %s", error)
                return None
            self._callers.put(digest, known, TOKEN_SECONDS)
        return known if isinstance(known, Caller) else None

    async def _review_token(self, token: str) -> Caller | bool:
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        status = _status_of(await self._client.call("POST", _TOKEN_REVIEWS, review))
        user = status.get("user")
        if status.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
            return False
        extra = tuple((str(key), tuple(values)) for key, values in sorted((user.get("extra") or {}).items()))
        groups = _with_authenticated(list(user.get("groups") or ()))
        return Caller(str(user["username"]), groups, str(user.get("uid") or ""), extra)

    async def _is_allowed(self, caller: Caller, verb: str, subresource: str) -> bool:
        key = (caller, verb, subresource)
        known = self._decisions.get(key)
        if known is not None:
            return known
        is_allowed = await self._review(lambda: self._review_access(caller, verb, subresource))
        if caller.n_characters <= _CACHED_CHARACTERS:
            self._decisions.put(key, is_allowed, ALLOWED_SECONDS if is_allowed else DENIED_SECONDS)
        return is_allowed

    async def _review_access(self, caller: Caller, verb: str, subresource: str) -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": caller.name,
                "uid": caller.uid,
                "groups": list(caller.groups),
                "extra": {key: list(values) for key, values in caller.extra},
                "resourceAttributes": {
                    "verb": verb,
                    "version": "v1",
                    "resource": "nodes",
                    "subresource": subresource,
                    "name": self._node_name,
                },
            },
        }
        status = _status_of(await self._client.call("POST", _ACCESS_REVIEWS, review))
        return status.get("allowed") is True and status.get("denied") is not True

    async def _review(self, ask: Callable[[], Awaitable[Value]]) -> Value:
        # The time limit covers the wait for a slot: a caller is answered within it in any case.
        async with asyncio.timeout(_REVIEW_SECONDS), self._slots:
            return await ask()


def _status_of(answer: Any) -> Mapping[str, Any]:
    status = answer.get("status") if isinstance(answer, dict) else None
    if not isinstance(status, dict):
        raise ValueError("the API server's answer to the review has no status")  # noqa: TRY004 (bad data)
    return status
