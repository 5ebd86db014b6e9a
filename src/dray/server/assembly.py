"""Putting a server together: from settings to something that answers requests.

Every part gets what it needs handed in; nobody reaches for a global. `Cluster` is
what a process (or a test, or the simulator) holds: a server without sockets.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from dray.api.features import Features
from dray.api.gating import drop_disabled_fields
from dray.api.json_types import JsonObject
from dray.api.kinds import (
    ADMISSION,
    APIEXTENSIONS,
    AUTHENTICATION,
    AUTHORIZATION,
    COORDINATION,
    RESOURCE,
    Kind,
)
from dray.api.runtime_config import RuntimeConfig, ServedVersions
from dray.api.schema import schema_of
from dray.api.validation import Accepted, ValidationContext
from dray.server.admission import AdmissionChain, DynamicAdmission, admission_cel
from dray.server.audit import DEFAULT_POLICY, AuditFile, AuditLog, AuditPolicy, parse_policy
from dray.server.auth import Authenticator, Authorizer, TokenIssuer, TokenVerifier
from dray.server.auth.access_reviews import (
    local_subject_access_review,
    self_subject_access_review,
    self_subject_review,
    self_subject_rules_review,
    subject_access_review,
    token_review,
)
from dray.server.auth.authentication import bearer_token
from dray.server.auth.browser_sessions import BrowserSessions
from dray.server.auth.login import Login
from dray.server.custom import CustomKinds
from dray.server.http import (
    ApiServer,
    Flow,
    Handle,
    Health,
    Limits,
    Metrics,
    NodeAgents,
    WebhookTransport,
    feature_gates,
)
from dray.server.objects import (
    AdmissionForms,
    Applier,
    CrossObjectRules,
    Deleter,
    DisruptionBudgets,
    FieldManagers,
    Handlers,
    Objects,
    Patcher,
    ResponseForms,
    Selectors,
    ServedKinds,
    Subresources,
    UserNamespaces,
    Versions,
    Writer,
    ensure_bootstrap_objects,
    expire_events,
    storage_of,
)
from dray.server.openapi import Discovery, OpenApi
from dray.server.requests import (
    Call,
    Environment,
    Request,
    Response,
    User,
    compute,
    json_response,
    parse_body,
    read_object,
)
from dray.server.store import Event, Store, keep_history_bounded
from dray.server.tables import Tables

# Written often, and no index depends on them.
_UNOBSERVED = frozenset(
    {
        (COORDINATION, "leases"),
        ("core", "events"),
        ("core", "nodes"),
        (RESOURCE, "resourceslices"),
    }
)

log = logging.getLogger("dray.server")


@dataclass(slots=True)
class Settings:
    """What can be chosen about a server."""

    features: Features = field(default_factory=Features.default)
    runtime_config: RuntimeConfig = field(default_factory=RuntimeConfig)  # which versions are served
    static_tokens: Mapping[str, User] = field(default_factory=dict)
    anonymous: bool = True
    allow_everything: bool = False  # authorization mode AlwaysAllow
    disabled_admission: frozenset[str] = frozenset()
    token_key: ec.EllipticCurvePrivateKey | None = None
    limits: Limits = field(default_factory=Limits)
    node_client: ssl.SSLContext | None = (
        None  # how to speak to node agents; None: plain HTTPS without a certificate
    )
    audit_policy: AuditPolicy | None = None  # None: DEFAULT_POLICY
    audit_file: AuditFile | None = None  # None: nothing is recorded
    login: Login | None = None  # None: there is no `dray login`
    sessions: BrowserSessions = field(default_factory=BrowserSessions)
    environment: Environment = field(default_factory=Environment)


class Cluster:
    """A whole API server in one object: store, handlers, background work."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.settings = settings
        self.store = store
        built_in = ServedVersions(settings.runtime_config, settings.features)
        self.catalogue = ServedKinds(built_in)
        self.versions = Versions()
        self.objects = Objects(store, self.catalogue.stored, self.versions.stored_schema)
        self._selectors = Selectors(settings.features)
        self._accepted = Accepted()
        self.custom = CustomKinds(self.objects, self._serve_custom_kinds)
        self.versions.custom = self.custom
        self.discovery = Discovery(built_in=built_in)
        self.nodes = NodeAgents(self.objects, settings.node_client)
        self.metrics = Metrics()
        self.metrics.parts.append(lambda: feature_gates(settings.features))
        self._background: list[asyncio.Task[None]] = []
        self.server = self._assemble()

    async def start(self) -> None:
        """Create what every cluster has and begin background work."""
        await ensure_bootstrap_objects(self.objects, self.settings.environment)
        self.custom.load()
        self._background.append(asyncio.create_task(keep_history_bounded(self.store)))
        self._background.append(asyncio.create_task(expire_events(self.objects, self.settings.environment)))
        if self.settings.audit_file is not None:
            self._background.append(asyncio.create_task(self.settings.audit_file.run()))

    async def stop(self) -> None:
        """End watches and background work, and close the store."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.custom.close()
        await self.nodes.close()
        await self.configured.close()
        if self.settings.audit_file is not None:
            self.settings.audit_file.close()
        self.store.close()

    # --- parts ---------------------------------------------------------------

    def _assemble(self) -> ApiServer:
        settings, objects, environment = self.settings, self.objects, self.settings.environment
        issuer = verifier = None
        if settings.token_key is not None:
            issuer = TokenIssuer(settings.token_key, objects)
            verifier = TokenVerifier([settings.token_key.public_key()], objects)
        authenticator = Authenticator(environment.now, settings.static_tokens, verifier, settings.anonymous)
        authenticator.sessions = settings.sessions
        authorizer = Authorizer(objects, allow_everything=settings.allow_everything)
        admission = AdmissionChain.standard(
            objects,
            authorizer,
            settings.disabled_admission,
            environment.now,
            lambda name: authenticator.local_users.account(name),
        )
        configured = self.configured = DynamicAdmission(
            objects,
            AdmissionForms(self.versions, environment),
            authorizer.authorize,
            self.catalogue.named,
            environment.new_uid,
            WebhookTransport(),
            settings.disabled_admission,
        )
        self._follow_writes(authorizer, admission, configured)
        owners = FieldManagers(self.versions, environment)
        writer = Writer(
            objects,
            admission,
            configured,
            CrossObjectRules(objects, authorizer, settings.features),
            owners,
            self._context,
            environment,
            self.versions.complete,
            self._prepare_special,
            self.versions.drop_empties,
            self.catalogue.is_custom,
            self.custom.validate,
            lambda kind: kind.group == ADMISSION or self.custom.takes_long(kind),
        )
        deleter = Deleter(objects, admission, configured, environment)
        handlers = Handlers(
            objects,
            self.versions,
            writer,
            deleter,
            ResponseForms(Tables(environment.now, self.custom.columns)),
            environment,
        )
        patcher = Patcher(handlers, Applier(handlers, owners), self.catalogue.is_custom)
        subresources = Subresources(
            handlers, patcher, issuer, DisruptionBudgets(objects, environment), self.nodes.forward
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
        openapi = OpenApi(self.discovery, self.custom.schema)
        responders = [self._health().respond, self.discovery.respond, openapi.respond, self.metrics.respond]
        return ApiServer(
            authenticator,
            authorizer,
            self.catalogue,
            verbs,
            subresources.handle,
            responders,
            self.versions.warning,
            Flow(self.metrics, settings.limits),
            UserNamespaces(objects, environment).ensure,
            self._login,
            _reviews(authenticator, authorizer, environment, subresources),
            self._audit(),
        )

    def _audit(self) -> AuditLog | None:
        settings = self.settings
        if settings.audit_file is None:
            return None
        environment = settings.environment
        policy = settings.audit_policy or parse_policy(DEFAULT_POLICY)
        audit = AuditLog(policy, settings.audit_file, environment.now, environment.new_uid)
        self.metrics.parts.append(audit.metrics)
        return audit

    def _login(self, request: Request, user: User) -> Response | None:
        settings, now = self.settings, self.settings.environment.now()
        answer = settings.login.respond(request, user, now) if settings.login is not None else None
        code = bearer_token(request.header("authorization"))
        return answer or settings.sessions.respond(request, user, code, now)

    def _serve_custom_kinds(self, kinds: list[Kind]) -> None:
        self.catalogue.use_custom_kinds(kinds)
        self.discovery.use_custom_kinds(kinds)

    def _prepare_special(self, kind: Kind, new: JsonObject, old: JsonObject | None) -> None:
        if kind.kind == "CustomResourceDefinition" and kind.group == APIEXTENSIONS:
            self.custom.prepare_definition(new, old, self.settings.environment.timestamp())
        group, _ = storage_of(kind)
        drop_disabled_fields(group, kind.kind, new, old, self.settings.features)

    def _follow_writes(
        self, authorizer: Authorizer, admission: AdmissionChain, configured: DynamicAdmission
    ) -> None:
        """Keep the indexes of authorisation and admission in step with the store."""

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
            configured.observe(group, resource)

        self.store.observe(observe)

    def _health(self) -> Health:
        def is_well() -> str:
            return ""

        checks = {"ping": is_well, "log": is_well, "etcd": self.store.trouble}
        only_ready = {"etcd-readiness": self.store.trouble, "informer-sync": is_well, "shutdown": is_well}
        return Health(checks, only_ready)

    def _context(self, call: Call) -> ValidationContext:
        return ValidationContext(
            self.settings.features, self._selectors, call.route.version, self._accepted, admission_cel
        )


def _reviews(
    authenticator: Authenticator, authorizer: Authorizer, environment: Environment, subresources: Subresources
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

    def answer(review: Callable[[Call, JsonObject], JsonObject]) -> Handle:
        async def handle(call: Call) -> Response:
            return json_response(201, review(call, await compute(call.size, read_body, call)))

        return handle

    async def bind(call: Call) -> Response:
        return await subresources.bind(call, "")

    questions: dict[tuple[str, str], Callable[[Call, JsonObject], JsonObject]] = {
        (AUTHENTICATION, "SelfSubjectReview"): lambda call, body: self_subject_review(call.user, body, environment.timestamp()),
        (AUTHENTICATION, "TokenReview"): lambda call, body: token_review(authenticator, body),
        (AUTHORIZATION, "SelfSubjectAccessReview"): lambda call, body: self_subject_access_review(authorizer, call.user, body),
        (AUTHORIZATION, "SubjectAccessReview"): lambda call, body: subject_access_review(authorizer, body),
        (AUTHORIZATION, "LocalSubjectAccessReview"): lambda call, body: local_subject_access_review(authorizer, call.route.namespace, body),
        (AUTHORIZATION, "SelfSubjectRulesReview"): lambda call, body: self_subject_rules_review(authorizer, call.user, body),
    }  # fmt: skip
    return {("", "Binding"): bind, **{kind: answer(review) for kind, review in questions.items()}}
