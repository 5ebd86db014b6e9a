"""What the API server fills in where a client said nothing.

Theory of operation: defaults belong to structs, wherever those appear: a Probe gets its
period in a Pod and in the template of a Deployment alike. So there is one small function
for each struct that has defaults, and one walk over object and schema that finds them.
Subtrees in which no struct has defaults are skipped. Values that the schema itself states
(`default(TCP)`) are filled in by the same walk.

Objects must have been read (see `reading`): absent and zero are then the same for
fields without a pointer. Defaults that admission adds (tolerations, priority, service
account) are the server's business, not ours.

Invariant (tests/unit/api/test_api_defaults.py): applying defaults twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, Final

from dray.api.json_types import JsonObject
from dray.api.kinds import RBAC
from dray.api.quantity import Quantity, QuantityError, parse_quantity
from dray.api.schema import schema_of
from dray.api.schema.types import LIST, MAP, STRUCT, Type
from dray.api.times import format_time
from dray.api.well_known import NAMESPACE_NAME_LABEL

__all__ = ["apply_defaults", "latest_is_pulled_always"]

Defaulter = Callable[[JsonObject, str], None]  # the struct, and the time now as text

_DEFAULTERS: dict[tuple[str, str], Defaulter] = {}  # (schema file, struct name)
_MILLI: Final = 10**6


def apply_defaults(group: str, version: str, kind: str, obj: JsonObject, now: datetime) -> None:
    """Fill in the defaults of an object, in place."""
    schema = schema_of(group, version, kind)
    if _has_defaults(schema):
        _walk(schema, obj, format_time(now))


def _defaults_of(file: str, *names: str) -> Callable[[Defaulter], Defaulter]:
    def register(function: Defaulter) -> Defaulter:
        for name in names:
            _DEFAULTERS[file, name] = function
        return function

    return register


# --- the walk -----------------------------------------------------------------


class _Plan:
    """What to do about the values of one type, found out once."""

    __slots__ = ("defaulter", "element", "is_list", "members", "stated")

    def __init__(self, schema: Type) -> None:
        self.is_list = schema.kind == LIST
        self.element = schema.element if schema.kind in (LIST, MAP) else None
        self.defaulter = _DEFAULTERS.get((schema.group, schema.name)) if schema.kind == STRUCT else None
        self.stated = _stated(schema)
        # Structs may contain themselves, so the plans of members are found on the way.
        self.members = tuple(
            (field.name, None if _is_resource_list(schema, field.type) else field.type)
            for field in schema.fields.values()
            if _is_resource_list(schema, field.type) or _has_defaults(field.type)
        )


_plan_of: Callable[[Type], _Plan] = cache(_Plan)


def _walk(schema: Type, value: Any, now: str) -> None:
    """Fill in the defaults of a value whose type has some."""
    plan = _plan_of(schema)
    element = plan.element
    if element is not None:
        for item in value if plan.is_list else value.values():
            if item is not None:
                _walk(element, item, now)
        return
    if plan.defaulter is not None:
        plan.defaulter(value, now)
    for name, default, pointer in plan.stated:
        # Behind a pointer zero is a value of its own; validation will judge it.
        if value.get(name) is None or not (pointer or value[name]):
            value[name] = default
    for name, member in plan.members:
        found = value.get(name)
        if found is not None:
            if member is None:
                _round_to_milli(found)
            else:
                _walk(member, found, now)


def _is_resource_list(owner: Type, member: Type) -> bool:
    """Return whether a field is a core ResourceList, whose amounts are whole thousandths."""
    return (
        owner.group == "core"
        and member.kind == MAP
        and member.element is not None
        and member.element.kind == "quantity"
    )


@cache
def _stated(schema: Type) -> tuple[tuple[str, Any, bool], ...]:
    """Return the defaults that the schema states itself: field, value, whether behind a pointer."""
    return tuple(
        (
            field.name,
            int(field.default) if field.type.kind.startswith("int") else field.default,
            field.pointer,
        )
        for field in schema.fields.values()
        if field.default
    )


@cache
def _has_defaults(schema: Type) -> bool:
    """Return whether any struct within a type has defaults."""
    while schema.element is not None:
        schema = schema.element
    for struct in schema.structs():
        if (struct.group, struct.name) in _DEFAULTERS or _stated(struct):
            return True
        if any(_is_resource_list(struct, field.type) for field in struct.fields.values()):
            return True
    return False


def _round_to_milli(amounts: JsonObject) -> None:
    for name, text in amounts.items():
        try:
            quantity = parse_quantity(text)
        except QuantityError:
            continue
        if quantity.nanos % _MILLI:
            amounts[name] = str(Quantity(quantity.milli_value() * _MILLI, quantity.notation))


# --- resource.k8s.io ----------------------------------------------------------


@_defaults_of("resource", "ExactDeviceRequest", "DeviceSubRequest")
def _request(request: JsonObject, now: str) -> None:
    request.setdefault("allocationMode", "ExactCount")
    if request["allocationMode"] == "ExactCount" and not request.get("count"):
        request["count"] = 1


@_defaults_of("resource", "DeviceRequest")
def _flat_request(request: JsonObject, now: str) -> None:
    # Only v1beta1 has the class here; a request with alternatives has none.
    if request.get("deviceClassName"):
        _request(request, now)


@_defaults_of("resource", "DeviceTaint")
def _device_taint(taint: JsonObject, now: str) -> None:
    taint.setdefault("timeAdded", now)


# --- admissionregistration.k8s.io ---------------------------------------------


@_defaults_of("admissionregistration", "ValidatingWebhook", "MutatingWebhook")
def _webhook(hook: JsonObject, now: str) -> None:
    hook.setdefault("failurePolicy", "Fail")
    hook.setdefault("timeoutSeconds", 10)
    _match_resources(hook, now)


@_defaults_of("admissionregistration", "MutatingWebhook")
def _mutating_webhook(hook: JsonObject, now: str) -> None:
    _webhook(hook, now)
    hook.setdefault("reinvocationPolicy", "Never")


@_defaults_of("admissionregistration", "MatchResources")
def _match_resources(match: JsonObject, now: str) -> None:
    match.setdefault("matchPolicy", "Equivalent")
    match.setdefault("namespaceSelector", {})
    match.setdefault("objectSelector", {})


@_defaults_of("admissionregistration", "RuleWithOperations", "NamedRuleWithOperations")
def _rule(rule: JsonObject, now: str) -> None:
    rule.setdefault("scope", "*")


@_defaults_of("admissionregistration", "ServiceReference")
def _webhook_service(service: JsonObject, now: str) -> None:
    service.setdefault("port", 443)


@_defaults_of("admissionregistration", "ValidatingAdmissionPolicySpec")
def _policy_spec(spec: JsonObject, now: str) -> None:
    spec.setdefault("failurePolicy", "Fail")


# --- volumes -------------------------------------------------------------------


@_defaults_of("core", "PersistentVolumeSpec")
def _volume_spec(spec: JsonObject, now: str) -> None:
    if not spec.get("persistentVolumeReclaimPolicy"):
        spec["persistentVolumeReclaimPolicy"] = "Retain"
    spec.setdefault("volumeMode", "Filesystem")


@_defaults_of("core", "PersistentVolumeClaimSpec")
def _volume_claim_spec(spec: JsonObject, now: str) -> None:
    spec.setdefault("volumeMode", "Filesystem")


@_defaults_of("core", "PersistentVolumeStatus", "PersistentVolumeClaimStatus")
def _volume_status(status: JsonObject, now: str) -> None:
    if not status.get("phase"):
        status["phase"] = "Pending"


@_defaults_of("storage", "StorageClass")
def _storage_class(found: JsonObject, now: str) -> None:
    found.setdefault("reclaimPolicy", "Delete")
    found.setdefault("volumeBindingMode", "Immediate")


@_defaults_of("storage", "CSIDriverSpec")
def _csi_driver(spec: JsonObject, now: str) -> None:
    spec.setdefault("attachRequired", True)
    for name in (
        "podInfoOnMount",
        "preventPodSchedulingIfMissing",
        "requiresRepublish",
        "seLinuxMount",
        "storageCapacity",
    ):
        spec.setdefault(name, False)
    spec.setdefault("fsGroupPolicy", "ReadWriteOnceWithFSType")
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = ["Persistent"]


# --- core ---------------------------------------------------------------------


@_defaults_of("core", "Pod")
def _pod(pod: JsonObject, now: str) -> None:
    spec = pod["spec"]
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    spec.setdefault("enableServiceLinks", True)
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container["resources"]
        limits = resources.get("limits")
        if limits:
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
        if spec.get("hostNetwork"):
            for port in container.get("ports", ()):
                port.setdefault("hostPort", port["containerPort"])


@_defaults_of("core", "PodSpec")
def _pod_spec(spec: JsonObject, now: str) -> None:
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")


@_defaults_of("core", "PodStatus")
def _pod_status(status: JsonObject, now: str) -> None:
    address, addresses = status.get("podIP"), status.get("podIPs")
    if address and (not addresses or addresses[0].get("ip") != address):
        status["podIPs"] = [{"ip": address}]
    elif addresses and not address and addresses[0].get("ip"):
        status["podIP"] = addresses[0]["ip"]


@_defaults_of("core", "Container", "EphemeralContainer")
def _container(container: JsonObject, now: str) -> None:
    policy = "Always" if latest_is_pulled_always(container.get("image", "")) else "IfNotPresent"
    container.setdefault("imagePullPolicy", policy)
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")


def latest_is_pulled_always(image: str) -> bool:
    """Return whether an image name means the tag `latest`, written or not."""
    name, at, _ = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag == "latest" if tag else bool(name) and not at


@_defaults_of("core", "Probe")
def _probe(probe: JsonObject, now: str) -> None:
    for name, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        probe.setdefault(name, value)


@_defaults_of("core", "HTTPGetAction")
def _http_get(action: JsonObject, now: str) -> None:
    action.setdefault("path", "/")
    action.setdefault("scheme", "HTTP")


@_defaults_of("core", "GRPCAction")
def _grpc(action: JsonObject, now: str) -> None:
    action["service"] = action.get("service") or ""


@_defaults_of("core", "Volume")
def _volume(volume: JsonObject, now: str) -> None:
    if not volume.keys() - {"name"}:
        volume["emptyDir"] = {}
    image = volume.get("image")
    if image is not None:
        always = latest_is_pulled_always(image.get("reference", ""))
        image.setdefault("pullPolicy", "Always" if always else "IfNotPresent")


@_defaults_of(
    "core", "SecretVolumeSource", "ConfigMapVolumeSource", "DownwardAPIVolumeSource", "ProjectedVolumeSource"
)
def _file_mode(source: JsonObject, now: str) -> None:
    source.setdefault("defaultMode", 0o644)


@_defaults_of("core", "HostPathVolumeSource")
def _host_path(source: JsonObject, now: str) -> None:
    source.setdefault("type", "")


@_defaults_of("core", "ServiceAccountTokenProjection")
def _token_projection(projection: JsonObject, now: str) -> None:
    projection.setdefault("expirationSeconds", 3600)


@_defaults_of("core", "ObjectFieldSelector")
def _field_selector(selector: JsonObject, now: str) -> None:
    selector.setdefault("apiVersion", "v1")


@_defaults_of("core", "Namespace")
def _namespace(namespace: JsonObject, now: str) -> None:
    name = namespace["metadata"].get("name")
    if name:
        namespace["metadata"].setdefault("labels", {})[NAMESPACE_NAME_LABEL] = name


@_defaults_of("core", "NamespaceStatus")
def _namespace_status(status: JsonObject, now: str) -> None:
    status.setdefault("phase", "Active")


@_defaults_of("core", "NodeStatus")
def _node_status(status: JsonObject, now: str) -> None:
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


@_defaults_of("core", "Secret")
def _secret(secret: JsonObject, now: str) -> None:
    secret.setdefault("type", "Opaque")


@_defaults_of("core", "LimitRangeItem")
def _limit(item: JsonObject, now: str) -> None:
    if item.get("type") != "Container":
        return
    default = {**(item.get("max") or {}), **(item.get("default") or {})}
    request = {**(item.get("min") or {}), **default, **(item.get("defaultRequest") or {})}
    if default:
        item["default"] = default
    if request:
        item["defaultRequest"] = request


# --- others -------------------------------------------------------------------


@_defaults_of("apps", "DeploymentSpec")
def _deployment(spec: JsonObject, now: str) -> None:
    spec.setdefault("replicas", 1)
    strategy = spec["strategy"]
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


@_defaults_of("apps", "DaemonSetSpec")
def _daemon_set(spec: JsonObject, now: str) -> None:
    strategy = spec["updateStrategy"]
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)


@_defaults_of("apps", "ReplicaSetSpec")
def _replica_set(spec: JsonObject, now: str) -> None:
    spec.setdefault("replicas", 1)


@_defaults_of("autoscaling", "HorizontalPodAutoscalerSpec")
def _pod_autoscaler(spec: JsonObject, now: str) -> None:
    spec.setdefault("minReplicas", 1)
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    behavior = spec.get("behavior")
    if behavior is None:
        return
    # The window of scaling down is not filled in: it is an option of the controller.
    up = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max"}
    up["policies"] = [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ]
    down = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}
    for direction, rules in (("scaleUp", up), ("scaleDown", down)):
        behavior[direction] = {**rules, **(behavior.get(direction) or {})}


@_defaults_of("batch", "Job")
def _job(job: JsonObject, now: str) -> None:
    spec = job["spec"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    spec.setdefault("manualSelector", False)
    labels = spec["template"]["metadata"].get("labels")
    if labels and not job["metadata"].get("labels"):
        job["metadata"]["labels"] = dict(labels)


@_defaults_of("batch", "PodFailurePolicyOnPodConditionsPattern")
def _pod_condition_pattern(pattern: JsonObject, now: str) -> None:
    pattern["status"] = pattern.get("status") or "True"


@_defaults_of("rbac", "ClusterRoleBinding", "RoleBinding")
def _role_binding(binding: JsonObject, now: str) -> None:
    role = binding["roleRef"]
    role["apiGroup"] = role.get("apiGroup") or RBAC


@_defaults_of("rbac", "Subject")
def _subject(subject: JsonObject, now: str) -> None:
    if subject.get("kind") in ("User", "Group"):
        subject.setdefault("apiGroup", RBAC)


@_defaults_of("scheduling", "PriorityClass")
def _priority_class(priority_class: JsonObject, now: str) -> None:
    priority_class.setdefault("preemptionPolicy", "PreemptLowerPriority")


@_defaults_of("scheduling", "PodGroupSpec")
def _pod_group(spec: JsonObject, now: str) -> None:
    spec.setdefault("disruptionMode", {"single": {}})


@_defaults_of("authentication", "TokenRequestSpec")
def _token_request(spec: JsonObject, now: str) -> None:
    spec.setdefault("expirationSeconds", 3600)


@_defaults_of("apiextensions", "CustomResourceDefinition")
def _definition(definition: JsonObject, now: str) -> None:
    spec, status = definition["spec"], definition["status"]
    names = spec["names"]
    kind = names.get("kind", "")
    if kind:
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", kind + "List")
    spec.setdefault("conversion", {"strategy": "None"})
    stored = [version["name"] for version in spec.get("versions") or () if version.get("storage")]
    if not status.get("storedVersions") and stored:
        status["storedVersions"] = stored[:1]


@_defaults_of("apiextensions", "ServiceReference")
def _service_reference(reference: JsonObject, now: str) -> None:
    reference.setdefault("port", 443)
