"""Putting a server together: from settings to something that answers requests.

Every part gets what it needs handed in; nobody reaches for a global. `Cluster` is
what a process (or a test, or the simulator) holds: a server without sockets.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from dray.api.features import Features
from dray.api.gating import drop_disabled_fields
from dray.api.json_types import JsonObject
from dray.api.kinds import Kind
from dray.api.schema import schema_of
from dray.api.validation import Accepted, ValidationContext
from dray.server import reviews
from dray.server.admission import AdmissionChain
from dray.server.applying import Applier, FieldBooks
from dray.server.authn import Authenticator
from dray.server.authz import Authorizer
from dray.server.bodies import parse_body, read_object
from dray.server.bootstrap import ensure_bootstrap_objects
from dray.server.calls import Call, World
from dray.server.catalogue import Catalogue
from dray.server.custom import CustomKinds
from dray.server.deleting import Deleter
from dray.server.discovery import Discovery
from dray.server.disruptions import Disruptions
from dray.server.expiry import expire_events
from dray.server.flow import Flow, Limits
from dray.server.handlers import Handlers
from dray.server.health import Health
from dray.server.large_requests import compute
from dray.server.metrics import Metrics
from dray.server.node_agents import NodeAgents
from dray.server.objects import Objects, storage_of
from dray.server.openapi import OpenApi
from dray.server.patching import Patcher
from dray.server.requests import Response, json_response
from dray.server.retention import keep_history_bounded
from dray.server.rules import Selectors, Surroundings
from dray.server.server import ApiServer, Handle
from dray.server.shapes import Shapes
from dray.server.store import Event, Store
from dray.server.subresources import Subresources
from dray.server.tables import Tables
from dray.server.tokens import TokenIssuer, TokenVerifier, User
from dray.server.versions import Versions
from dray.server.writing import Writer

# Written often, and nobody's books depend on them.
_UNOBSERVED = frozenset(
    {
        ("coordination.k8s.io", "leases"),
        ("core", "events"),
        ("core", "nodes"),
        ("resource.k8s.io", "resourceslices"),
    }
)

log = logging.getLogger("dray.server")


@dataclass(slots=True)
class Settings:
    """What can be chosen about a server."""

    features: Features = field(default_factory=Features.default)
    static_tokens: Mapping[str, User] = field(default_factory=dict)
    anonymous: bool = True
    allow_everything: bool = False  # authorization mode AlwaysAllow
    disabled_admission: frozenset[str] = frozenset()
    token_key: ec.EllipticCurvePrivateKey | None = None
    limits: Limits = field(default_factory=Limits)
    node_client: ssl.SSLContext | None = (
        None  # how to speak to node agents; None: plain HTTPS without a certificate
    )
    world: World = field(default_factory=World)


class Cluster:
    """A whole API server in one object: store, handlers, background work."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.settings = settings
        self.store = store
        self.catalogue = Catalogue()
        self.versions = Versions()
        self.objects = Objects(store, self.catalogue.stored, self.versions.stored_schema)
        self._selectors = Selectors(settings.features)
        self._accepted = Accepted()
        self.custom = CustomKinds(self.objects, settings.world, self._serve_custom_kinds)
        self.versions.custom = self.custom
        self.discovery = Discovery()
        self.nodes = NodeAgents(self.objects, settings.node_client)
        self._background: list[asyncio.Task[None]] = []
        self.server = self._assemble()

    async def start(self) -> None:
        """Create what every cluster has and begin background work."""
        await ensure_bootstrap_objects(self.objects, self.settings.world)
        self.custom.load()
        self._background.append(asyncio.create_task(keep_history_bounded(self.store)))
        self._background.append(asyncio.create_task(expire_events(self.objects, self.settings.world)))

    async def stop(self) -> None:
        """End watches and background work, and close the store."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.custom.close()
        await self.nodes.close()
        self.store.close()

    # --- parts ---------------------------------------------------------------

    def _assemble(self) -> ApiServer:
        settings, objects, world = self.settings, self.objects, self.settings.world
        issuer = verifier = None
        if settings.token_key is not None:
            issuer = TokenIssuer(settings.token_key, objects)
            verifier = TokenVerifier([settings.token_key.public_key()], objects)
        authenticator = Authenticator(world.now, settings.static_tokens, verifier, settings.anonymous)
        authorizer = Authorizer(objects, allow_everything=settings.allow_everything)
        admission = AdmissionChain.standard(objects, authorizer, settings.disabled_admission, world.now)
        self._follow_writes(authorizer, admission)
        owners = FieldBooks(self.versions, world)
        writer = Writer(
            objects,
            admission,
            Surroundings(objects, authorizer, settings.features),
            owners,
            self._context,
            world,
            self.versions.complete,
            self._prepare_special,
            self.versions.drop_empties,
            self.catalogue.is_custom,
            self.custom.validate,
        )
        deleter = Deleter(objects, admission, world)
        handlers = Handlers(
            objects, self.versions, writer, deleter, Shapes(Tables(world.now, self.custom.columns)), world
        )
        patcher = Patcher(handlers, Applier(handlers, owners), self.catalogue.is_custom)
        subresources = Subresources(
            handlers, patcher, issuer, Disruptions(objects, world), self.nodes.forward
        )
        verbs: dict[str, Handle] = {
            "get": handlers.get,
            "list": handlers.list,
            "watch": handlers.watch,
            "create": handlers.create,
            "update": handlers.update,
            "patch": patcher.patch,
            "delete": handlers.delete,
            "deletecollection": handlers.deletecollection,
        }
        metrics = Metrics()
        openapi = OpenApi(self.discovery, self.custom.schema)
        responders = [self._health().respond, self.discovery.respond, openapi.respond, metrics.respond]
        return ApiServer(
            authenticator,
            authorizer,
            self.catalogue,
            verbs,
            subresources.handle,
            responders,
            self.versions.warning,
            Flow(metrics, settings.limits),
            _reviews(authenticator, authorizer, world, subresources),
        )

    def _serve_custom_kinds(self, kinds: list[Kind]) -> None:
        self.catalogue.use_custom_kinds(kinds)
        self.discovery.use_custom_kinds(kinds)

    def _prepare_special(self, kind: Kind, new: JsonObject, old: JsonObject | None) -> None:
        if kind.kind == "CustomResourceDefinition" and kind.group == "apiextensions.k8s.io":
            self.custom.prepare_definition(new, old, self.settings.world.timestamp())
        group, _ = storage_of(kind)
        drop_disabled_fields(group, kind.kind, new, old, self.settings.features)

    def _follow_writes(self, authorizer: Authorizer, admission: AdmissionChain) -> None:
        """Keep the books of authorisation and admission in step with the store."""

        def observe(event: Event) -> None:
            self.custom.observe(event)
            _, group, resource, *_ = event.key.split("/", 3)
            if (group, resource) in _UNOBSERVED:
                return
            group = "" if group == "core" else group
            kind = self.catalogue.stored(group, resource)
            if kind is None:
                return
            old = new = None
            if event.record is not None:
                new = self.objects.decoded(kind, event.record)
            elif event.previous is not None:
                old = self.objects.decoded_past(kind, event.previous)
            authorizer.observe(group, resource, old, new)
            admission.observe(group, resource, old, new)

        self.store.observe(observe)

    def _health(self) -> Health:
        def is_well() -> str:
            return ""

        checks = {"ping": is_well, "log": is_well, "etcd": self.store.trouble}
        only_ready = {"etcd-readiness": self.store.trouble, "informer-sync": is_well, "shutdown": is_well}
        return Health(checks, only_ready)

    def _context(self, call: Call) -> ValidationContext:
        return ValidationContext(self.settings.features, self._selectors, call.route.version, self._accepted)


def _reviews(
    authenticator: Authenticator, authorizer: Authorizer, world: World, subresources: Subresources
) -> dict[tuple[str, str], Handle]:
    """Return the handlers of kinds that are questions, not objects."""

    def read_body(call: Call) -> JsonObject:
        kind = call.route.kind
        schema = schema_of(kind.group, call.route.version, kind.kind)
        value: Any = parse_body(schema, call.request.body, call.request.header("content-type"), kind.kind)
        validation = call.request.first("fieldValidation")
        api_version = kind.api_version(call.route.version)
        return read_object(
            call, schema, value, kind=kind.kind, api_version=api_version, validation=validation
        )

    async def body_of(call: Call) -> JsonObject:
        return await compute(call.size, read_body, call)

    async def self_review(call: Call) -> Response:
        return json_response(
            201, reviews.self_subject_review(call.user, await body_of(call), world.timestamp())
        )

    async def token_review(call: Call) -> Response:
        return json_response(201, reviews.token_review(authenticator, await body_of(call)))

    async def self_access(call: Call) -> Response:
        return json_response(
            201, reviews.self_subject_access_review(authorizer, call.user, await body_of(call))
        )

    async def access(call: Call) -> Response:
        return json_response(201, reviews.subject_access_review(authorizer, await body_of(call)))

    async def local_access(call: Call) -> Response:
        namespace = call.route.namespace
        return json_response(
            201, reviews.local_subject_access_review(authorizer, namespace, await body_of(call))
        )

    async def rules(call: Call) -> Response:
        return json_response(
            201, reviews.self_subject_rules_review(authorizer, call.user, await body_of(call))
        )

    async def bind(call: Call) -> Response:
        return await subresources.bind(call, "")

    authentication, authorization = "authentication.k8s.io", "authorization.k8s.io"
    return {
        (authentication, "SelfSubjectReview"): self_review,
        (authentication, "TokenReview"): token_review,
        (authorization, "SelfSubjectAccessReview"): self_access,
        (authorization, "SubjectAccessReview"): access,
        (authorization, "LocalSubjectAccessReview"): local_access,
        (authorization, "SelfSubjectRulesReview"): rules,
        ("", "Binding"): bind,
    }
