"""Paths below an object: status, scale, binding, eviction, token, logs.

`status` (and `finalize`) are the object itself with other rights, so they share
the handlers of whole objects. The others are small requests with bodies of their
own kinds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.kinds import AUTHENTICATION, kind_of
from dray.api.label_selectors import format_selector
from dray.api.media_types import JSON_TYPE
from dray.api.schema import schema_of
from dray.api.validation.fields import FieldError, invalid, not_supported, required
from dray.server.auth import TokenIssuer
from dray.server.objects import pod_strategy
from dray.server.objects.create_and_update import MOST_ATTEMPTS
from dray.server.objects.deletion import check_preconditions
from dray.server.objects.disruption_budgets import DisruptionBudgets
from dray.server.objects.patch_requests import Patcher
from dray.server.objects.stored_objects import key_of
from dray.server.objects.verb_handlers import Handlers, success
from dray.server.requests import (
    Call,
    Response,
    Route,
    compute,
    copy_json,
    delete_options,
    errors,
    json_response,
    parse_body,
    read_object,
    write_options,
)
from dray.server.store import WriteConflict

Proxy = Callable[[Call, JsonObject], Awaitable[Response]]
_SAME_AS_OBJECT = ("status", "finalize", "ephemeralcontainers", "resize", "resourceclaims")


class Subresources:
    """Answers requests on subresources."""

    def __init__(
        self,
        handlers: Handlers,
        patcher: Patcher,
        issuer: TokenIssuer | None,
        disruptions: DisruptionBudgets,
        node_proxy: Proxy,
    ) -> None:
        self._handlers = handlers
        self._patcher = patcher
        self._issuer = issuer
        self._disruptions = disruptions
        self._node_proxy = node_proxy

    async def handle(self, call: Call) -> Response:
        """Answer one request."""
        route = call.route
        match route.subresource:
            case "scale":
                return await self._scale(call)
            case "binding":
                return await self.bind(call, route.name)
            case "eviction":
                return await self._evict(call)
            case "token":
                return await self._token(call)
            case "log":
                return await self._node_proxy(call, self._found(call))
            case "exec" | "attach" | "portforward":
                pod = self._found(call)
                await self._admit_connection(call)
                return await self._node_proxy(call, pod)
        if route.subresource in _SAME_AS_OBJECT:
            match route.verb:
                case "get":
                    return await self._handlers.get(call)
                case "update":
                    return await self._handlers.update(call)
                case "patch":
                    return await self._patcher.patch(call)
        raise errors.ApiError(
            501,
            "NotImplemented",
            f"{route.kind.plural}/{route.subresource} needs a streaming connection to the node, which this server "
            "does not offer; use the node agent's own tools",
        )

    async def _admit_connection(self, call: Call) -> None:
        """Let webhooks and policies judge a connection to a pod."""
        part = call.route.kind.subresource(call.route.subresource)
        assert part is not None
        options: JsonObject = {"kind": part.kind, "apiVersion": part.version}
        for name in ("stdin", "stdout", "stderr", "tty"):
            if call.request.first(name) in ("true", "1"):
                options[name] = True
        if call.request.first("container"):
            options["container"] = call.request.first("container")
        if call.request.all("command"):
            options["command"] = list(call.request.all("command"))
        ports = [int(port) for port in call.request.all("ports") if port.isascii() and port.isdigit()]
        if ports:
            options["ports"] = ports
        own_kind = (part.group, part.version, part.kind)
        await self._handlers.writer.configured.admit_body(call, "CONNECT", options, own_kind)

    # --- pods ----------------------------------------------------------------

    async def bind(self, call: Call, name: str) -> Response:
        """Assign a pod to a node; `name` is the pod's in the path, or "" for /bindings."""
        options = write_options(call.request, "CreateOptions")
        binding = await self._body(call, "", "Binding", options.field_validation)
        metadata, target = binding["metadata"], binding.get("target") or {}
        name = name or metadata.get("name") or ""
        if name != metadata.get("name"):
            raise errors.bad_request("name in URL does not match name in Binding object")
        problems = _binding_problems(target)
        if problems:
            raise errors.plain_failure(500, ", ".join(problem.message() for problem in problems))
        await self._handlers.writer.configured.admit_body(
            call, "CREATE", binding, ("", "v1", "Binding"), dry_run=options.dry_run
        )
        kind = kind_of("", "Pod")
        assert kind is not None
        namespace = call.route.namespace
        key = key_of(kind, namespace, name)
        objects = self._handlers.objects
        for _ in range(MOST_ATTEMPTS):
            record = objects.store.get(key)
            if record is None:
                raise errors.not_found("", "pods", name)
            pod = objects.decoded(kind, record)
            unmet = _unmet_precondition(metadata, pod)
            if unmet:
                raise errors.conflict("", "pods", name, unmet)
            why = pod_strategy.why_not_bindable(pod)
            if why:
                raise errors.conflict("", "pods/binding", name, why)
            annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
            bound = pod_strategy.bound(
                pod, target["name"], annotations, labels, self._handlers.environment.timestamp()
            )
            if options.dry_run:
                break
            try:
                await objects.put(kind, key, bound, record.revision)
                break
            except WriteConflict:
                continue
        return json_response(201, success(code=201))

    async def _evict(self, call: Call) -> Response:
        options = write_options(call.request, "CreateOptions")
        eviction = await self._body(call, "policy", "Eviction", options.field_validation)
        if eviction["metadata"].get("name") != call.route.name:
            raise errors.bad_request("name in URL does not match name in Eviction object")
        pod = self._found(call)
        await self._handlers.writer.configured.admit_body(
            call, "CREATE", eviction, ("policy", "v1", "Eviction"), dry_run=options.dry_run
        )
        deletion = delete_options(call.request, eviction.get("deleteOptions") or {})
        deletion.dry_run = deletion.dry_run or options.dry_run
        check_preconditions(call.route.kind, pod, deletion)
        await self._disruptions.allow(pod, dry_run=deletion.dry_run)
        if not deletion.dry_run:
            await self._disruptions.mark(call.route.kind, pod)
            deletion.resource_version = None  # was met; the mark changed it
        await self._handlers.deleter.delete(call, call.route.name, deletion)
        return json_response(201, success(code=201))

    # --- scale ---------------------------------------------------------------

    async def _scale(self, call: Call) -> Response:
        route = call.route
        declared = self._handlers.versions.custom.scale_paths(route.kind, route.version)
        paths = declared if declared[0] else _BUILT_IN
        if route.verb == "get":
            return json_response(200, scale_of(self._found(call), paths))
        if route.verb == "patch":
            patcher_options = write_options(call.request, "PatchOptions", is_patch=True)
            media_type = self._patcher.media_type(call)
            patch = await compute(call.size, parse_body, None, call.request.body, JSON_TYPE)

            def wanted_of(old: JsonObject) -> JsonObject:
                return self._patcher.apply_to(
                    _scale_or_none(old, paths), media_type, patch, "autoscaling", "Scale"
                )

            dry_run = patcher_options.dry_run
        else:
            options = write_options(call.request, "UpdateOptions")
            scale = await self._body(call, "autoscaling", "Scale", options.field_validation)

            def wanted_of(old: JsonObject) -> JsonObject:
                return scale

            dry_run = options.dry_run

        def transform(old: JsonObject | None) -> JsonObject:
            assert old is not None
            return _scaled(old, wanted_of(old), route.name, paths)

        plain = Call(call.request, _without_subresource(route), call.user, call.warnings)
        stored, _ = await self._handlers.writer.update(plain, transform, dry_run=dry_run)
        return json_response(200, scale_of(stored, paths))

    # --- service accounts ----------------------------------------------------

    async def _token(self, call: Call) -> Response:
        if self._issuer is None:
            raise errors.unknown_resource()
        options = write_options(call.request, "CreateOptions")
        body = await self._body(call, AUTHENTICATION, "TokenRequest", options.field_validation)
        # A node may ask only for tokens of pods that run on it; admission knows.
        self._handlers.writer.admission.mutate(call, "CREATE", body, None)
        now = self._handlers.environment.now()
        return json_response(201, self._issuer.request(call.route.namespace, call.route.name, body, now))

    # --- shared --------------------------------------------------------------

    def _found(self, call: Call) -> JsonObject:
        route = call.route
        obj = self._handlers.objects.find(route.kind, route.namespace, route.name)
        if obj is None:
            raise errors.not_found(route.kind.group, route.kind.plural, route.name)
        return obj

    async def _body(self, call: Call, group: str, kind: str, validation: str) -> JsonObject:
        return await compute(call.size, self._read_body, call, group, kind, validation)

    def _read_body(self, call: Call, group: str, kind: str, validation: str) -> JsonObject:
        schema = schema_of(group, "v1", kind)
        value: Any = parse_body(schema, call.request.body, call.request.header("content-type"), kind)
        api_version = f"{group}/v1" if group else "v1"
        obj = read_object(call, schema, value, kind=kind, api_version=api_version, validation=validation)
        namespace = obj["metadata"].get("namespace")
        if namespace and namespace != call.route.namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        return obj


def _without_subresource(route: Route) -> Route:
    return Route(route.kind, route.version, "update", route.namespace, route.name)


def _binding_problems(target: JsonObject) -> list[FieldError]:
    problems: list[FieldError] = []
    if target.get("kind") and target["kind"] != "Node":
        problems.append(not_supported("target.kind", target["kind"], ["Node", "<empty>"]))
    if not target.get("name"):
        problems.append(required("target.name"))
    return problems


def _unmet_precondition(metadata: JsonObject, pod: JsonObject) -> str:
    for part, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        wanted, found = metadata.get(part), pod["metadata"].get(part)
        if wanted and wanted != found:
            return f"Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {found}"
    return ""


ScalePaths = tuple[str, str, str]  # replicas wanted, replicas present, label selector (as text)
_BUILT_IN: ScalePaths = (".spec.replicas", ".status.replicas", "")


def scale_of(obj: JsonObject, paths: ScalePaths = _BUILT_IN) -> JsonObject:
    """Return the Scale of a workload."""
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    wanted, present = _at(obj, paths[0]), _at(obj, paths[1])
    if paths is not _BUILT_IN and wanted is None:
        raise errors.internal(f'the spec replicas field "{paths[0]}" does not exist')
    selector = _at(obj, paths[2]) if paths[2] else format_selector((obj.get("spec") or {}).get("selector"))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {part: metadata[part] for part in kept if part in metadata},
        "spec": {"replicas": wanted} if wanted else {},
        "status": {"replicas": present or 0, **({"selector": selector} if selector else {})},
    }


def _scale_or_none(obj: JsonObject, paths: ScalePaths) -> JsonObject:
    """Return the Scale of an object that may not say how many replicas it wants yet."""
    if _at(obj, paths[0]) is None:
        paths = (".metadata.generation", *paths[1:])
        return {**scale_of(obj, paths), "spec": {}}
    return scale_of(obj, paths)


def _at(obj: JsonObject, path: str) -> Any:
    value: Any = obj
    for part in path.strip(".").split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _scaled(old: JsonObject, scale: JsonObject, name: str, paths: ScalePaths) -> JsonObject:
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    if replicas < 0:
        problem = invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise errors.invalid("autoscaling", "Scale", name, [problem])
    new: JsonObject = copy_json(old)
    holder = new
    *way, last = paths[0].strip(".").split(".")
    for part in way:
        holder = holder.setdefault(part, {})
    holder[last] = replicas
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        new["metadata"]["resourceVersion"] = version
    else:
        new["metadata"].pop("resourceVersion", None)
    return new
