"""The API server: one function from request to response.

The chain is kube-apiserver's: who asks, may they, which path, then the verb. The
parts are handed in by `assembly`; this module only says in which order they act.
Everything up to the verb is decided from the head of a request. Its body is waited for
when the request is known to be permitted, and never for anybody else.

    dashboard pages (static)
    authenticate -> impersonate -> authorise -> health, discovery, OpenAPI
                 -> route -> verb -> warnings
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from dray.api.kinds import Kind
from dray.server import dashboard
from dray.server.audit import AuditLog
from dray.server.auth import ANONYMOUS, MASTERS_GROUP, Attributes, Authenticator, Authorizer, impersonated
from dray.server.http.flow_control import Flow
from dray.server.objects import ServedKinds
from dray.server.requests import (
    LARGE,
    Call,
    Request,
    ResourcePath,
    Response,
    Route,
    User,
    compute,
    errors,
    find_route,
    parse_field_selector,
    split_path,
    text_response,
    verb_of,
)
from dray.server.store import StoreUnavailable

log = logging.getLogger("dray.server")

_READING = ("GET", "HEAD")
# Websockets begin with a GET, but running a command in a pod does more than read: `create` is needed as well.
_CONNECTING = frozenset({"exec", "attach", "portforward"})

Responder = Callable[[Request], Response | None]
Handle = Callable[[Call], Awaitable[Response]]


@dataclass(slots=True)
class ApiServer:
    """Answers requests; knows no sockets."""

    authenticator: Authenticator
    authorizer: Authorizer
    catalogue: ServedKinds
    verbs: dict[str, Handle]  # verb -> handler of whole objects
    subresource: Handle
    responders: Sequence[Responder]  # paths that are not resources: health, discovery, OpenAPI, metrics
    deprecation: Callable[[Kind, str], str]
    flow: Flow
    prepare_user: Callable[[User], Awaitable[None]] | None = None  # before the request of a user is judged
    login: Callable[[Request, User], Response | None] | None = (
        None  # answers `dray login` and `dray dashboard`
    )
    reviews: dict[tuple[str, str], Handle] = field(default_factory=dict)  # (group, kind) -> handler
    audit: AuditLog | None = None

    async def handle(self, request: Request) -> Response:
        """Answer one request; what a client did wrong becomes a Status."""
        # The dashboard's pages hold no data, so they need no permission; what they show does.
        page = dashboard.respond(request.method, request.path, request.header("if-none-match"))
        if page is not None:
            return _without_body(page) if request.method == "HEAD" else page
        if self.audit is None:
            return await self._handle(request)
        received = self.audit.now()
        try:
            response = await self._handle(request)
        except Exception:
            self.audit.failed(request, received)
            raise
        self.audit.answered(request, response, received)
        return response

    async def _handle(self, request: Request) -> Response:
        try:
            response = await self._answer(request)
        except errors.ApiError as problem:
            response = problem.response()
        except StoreUnavailable as problem:
            log.error("%s", problem)
            response = errors.internal(str(problem)).response()
        if request.method == "HEAD":
            if not isinstance(response.body, bytes):
                await response.body.aclose()  # type: ignore[attr-defined]
            _without_body(response)
        return response

    async def _answer(self, request: Request) -> Response:
        user = self.authenticator.authenticate(request)
        request.sender = request.user = user
        request.is_identified = user.name != ANONYMOUS.name
        if self.prepare_user is not None:
            await self.prepare_user(user)
        if request.pending_body is not None and self._wants_body(request, user):
            # Not yet in flight: a slow sender must not keep others from being answered.
            await request.load_body()
        exempt = MASTERS_GROUP in user.groups
        return await self.flow.run(request, exempt, lambda: self._answer_user(request, user))

    def _wants_body(self, request: Request, user: User) -> bool:
        """Return whether the body matters: it does not when the answer is a refusal or a document."""
        path = split_path(request.path)
        if path is None or not path.resource:
            return False
        try:
            user = impersonated(request, user, self.authorizer)
            self.authorizer.check(self.attributes(request, path, user))
            route = self._route(request, path)
        except errors.ApiError:
            return False  # `_answer_user` refuses it the same way, and counts the refusal
        return route is not None

    async def _answer_user(self, request: Request, user: User) -> Response:
        request.user = user = impersonated(request, user, self.authorizer)
        path = split_path(request.path)
        if path is None or not path.resource:
            self.authorizer.check(Attributes(user, request.method.lower(), path=request.path))
            request.is_permitted = True
            answer = self.login(request, user) if self.login is not None else None
            return answer if answer is not None else await self._other(request, path)
        asked = self.attributes(request, path, user)
        self.authorizer.check(asked)
        if (
            asked.verb == "get"
            and asked.resource == "pods"
            and not asked.group
            and asked.subresource in _CONNECTING
        ):
            self.authorizer.check(asked._replace(verb="create"))
        request.is_permitted = True
        route = self._route(request, path)
        if route is None:
            return text_response(404, "404 page not found\n")
        call = Call(request, route, user)
        warning = self.deprecation(route.kind, route.version)
        if warning:
            call.warn(warning)
        try:
            response = await self._handler(route)(call)
        except errors.ApiError as problem:
            problem.headers = [*problem.headers, *call.warning_headers()]
            raise
        response.headers.extend(call.warning_headers())
        return response

    def _route(self, request: Request, path: ResourcePath) -> Route | None:
        """Return the route, None for plain 404 paths; raises 404 and 405 inside known groups."""
        route = find_route(request, path, self.catalogue.find, self.catalogue.serves_group(path.group))
        if route is not None and not self.catalogue.serves_subresource(route.kind, route.subresource):
            raise errors.unknown_resource()
        return route

    def _handler(self, route: Route) -> Handle:
        if route.subresource:
            return self.subresource
        review = self.reviews.get((route.kind.group, route.kind.kind))
        return review or self.verbs[route.verb]

    async def _other(self, request: Request, path: ResourcePath | None) -> Response:
        if request.method not in _READING and self._is_document(request.path.rstrip("/")):
            raise errors.method_not_allowed()
        for respond in self.responders:
            # OpenAPI documents take a third of a second to make, and every change of a custom kind makes them stale.
            response = await compute(LARGE if request.path.startswith("/openapi/") else 0, respond, request)
            if response is not None:
                return response
        if path is not None and self.catalogue.serves_group(path.group):
            raise errors.unknown_resource()
        return text_response(404, "404 page not found\n")

    def _is_document(self, path: str) -> bool:
        """Return whether a path is one of the documents that refuse other methods than GET."""
        parts = path.split("/")[1:]
        if parts[0] == "api":
            return len(parts) == 2
        if parts[0] == "apis":
            return len(parts) in (2, 3) and self.catalogue.serves_group(parts[1])
        return path == "/version"

    def attributes(self, request: Request, path: ResourcePath, user: User) -> Attributes:
        """Return what authorisation has to decide about a resource request."""
        verb = verb_of(request, path) or request.method.lower()
        name, fields = path.name, ()
        selector = request.first("fieldSelector")
        pinned: tuple[tuple[str, str, str], ...] = fields
        if selector and verb in ("list", "watch", "deletecollection"):
            try:
                parsed = parse_field_selector(selector, lambda _: "")
            except errors.ApiError:
                parsed = ()  # refused later, with its own error
            pinned = tuple((part.field, "=" if part.equal else "!=", part.value) for part in parsed)
            # A selector on one name asks for that object, so rules about names apply.
            names = [part.value for part in parsed if part.field == "metadata.name" and part.equal]
            name = names[0] if names else name
        return Attributes(
            user,
            verb,
            path.group,
            path.resource,
            path.subresource,
            path.namespace,
            name,
            version=path.version,
            field_selector=pinned,
        )


def _without_body(response: Response) -> Response:
    response.body, response.length = b"", None
    return response
