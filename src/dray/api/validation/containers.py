"""Containers of a pod: names, images, ports, environment, mounts, probes, security.

Regular containers and sidecars (init containers that restart always) may have
probes and lifecycle hooks; other init containers may not, because they end.
What defaulting fills in (termination message policy, protocol) is judged only
if it is there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dray.api.json_types import JsonMapping
from dray.api.validation.fields import (
    FieldError,
    Path,
    duplicate,
    forbidden,
    invalid,
    invalid_each,
    not_found,
    not_supported,
    required,
)
from dray.api.validation.formats import (
    config_key,
    dns_subdomain,
    env_name,
    label_key,
    port_name,
    port_number,
)
from dray.api.validation.names import validate_label, validate_subdomain
from dray.api.validation.resource_lists import validate_requirements

_INT32_MAX = 2**31 - 1
_NOT_FOR_INIT = "may not be set for init containers without restartPolicy=Always"
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_FIELD_PATHS = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    }
)
# Fields that exist in the downward API, though not for every use of it.
_KNOWN_FIELD_PATHS = _FIELD_PATHS | {
    "metadata.annotations",
    "metadata.labels",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.host",
    "status.phase",
}


def validate_containers(
    containers: list[JsonMapping], path: Path, *, volume_names: Collection[str], claim_names: Collection[str]
) -> list[FieldError]:
    """Check the regular containers of a pod; there must be one."""
    if not containers:
        return [required(path)]
    errors: list[FieldError] = []
    seen: set[str] = set()
    for number, container in enumerate(containers):
        here = path.at(number)
        errors += _validate_container(container, here, volume_names, claim_names)
        name = container.get("name") or ""
        if name in seen:
            errors.append(duplicate(here.child("name"), name))
        seen.add(name)
        errors += _validate_life(container, here)
        errors += _validate_restart_policy(container, here)
    return errors + _validate_host_ports(containers, path)


def validate_init_containers(
    containers: list[JsonMapping],
    regular: list[JsonMapping],
    path: Path,
    *,
    volume_names: Collection[str],
    claim_names: Collection[str],
) -> list[FieldError]:
    """Check the init containers of a pod; names are unique over both lists."""
    errors: list[FieldError] = []
    seen = {container.get("name") or "" for container in regular}
    for number, container in enumerate(containers):
        here = path.at(number)
        errors += _validate_container(container, here, volume_names, claim_names)
        name = container.get("name") or ""
        if name in seen:
            errors.append(duplicate(here.child("name"), name))
        elif name:
            seen.add(name)
        errors += _validate_host_ports([container], path)
        errors += _validate_restart_policy(container, here)
        if container.get("restartPolicy") == "Always":
            errors += _validate_life(container, here)
        else:
            fields = ("lifecycle", *_PROBES)
            errors += [
                forbidden(here.child(field), _NOT_FOR_INIT)
                for field in fields
                if container.get(field) is not None
            ]
    return errors


def _validate_container(
    container: JsonMapping, path: Path, volume_names: Collection[str], claim_names: Collection[str]
) -> list[FieldError]:
    name = container.get("name") or ""
    errors = validate_label(name, path.child("name")) if name else [required(path.child("name"))]
    if not container.get("image"):
        errors.append(required(path.child("image")))
    policy = container.get("terminationMessagePolicy")
    if policy and policy not in ("File", "FallbackToLogsOnError"):
        here = path.child("terminationMessagePolicy")
        errors.append(not_supported(here, policy, ("File", "FallbackToLogsOnError")))
    errors += _validate_ports(container.get("ports") or [], path.child("ports"))
    errors += _validate_environment(container.get("env") or [], path.child("env"))
    errors += _validate_environment_sources(container.get("envFrom") or [], path.child("envFrom"))
    errors += _validate_mounts(container, path, volume_names)
    pull_policy = container.get("imagePullPolicy")
    if pull_policy and pull_policy not in ("Always", "IfNotPresent", "Never"):
        here = path.child("imagePullPolicy")
        errors.append(not_supported(here, pull_policy, ("Always", "IfNotPresent", "Never")))
    errors += validate_requirements(container.get("resources") or {}, path.child("resources"), claim_names)
    return errors + _validate_security(container.get("securityContext") or {}, path.child("securityContext"))


# --- ports -------------------------------------------------------------------------------


def _validate_ports(ports: list[JsonMapping], path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for number, port in enumerate(ports):
        here = path.at(number)
        name, protocol = port.get("name") or "", port.get("protocol") or ""
        if name:
            problems = port_name(name)
            errors += invalid_each(here.child("name"), name, problems)
            if not problems and name in names:
                errors.append(duplicate(here.child("name"), name))
            names.add(name)
        container_port, host_port = port.get("containerPort") or 0, port.get("hostPort") or 0
        if container_port == 0:
            errors.append(required(here.child("containerPort")))
        else:
            errors += invalid_each(here.child("containerPort"), container_port, port_number(container_port))
        if host_port:
            errors += invalid_each(here.child("hostPort"), host_port, port_number(host_port))
        if protocol and protocol not in ("SCTP", "TCP", "UDP"):
            errors.append(not_supported(here.child("protocol"), protocol, ("SCTP", "TCP", "UDP")))
    return errors


def _validate_host_ports(containers: list[JsonMapping], path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    taken: set[str] = set()
    for number, container in enumerate(containers):
        for position, port in enumerate(container.get("ports") or []):
            if not port.get("hostPort"):
                continue
            key = f"{port.get('protocol') or 'TCP'}/{port.get('hostIP') or ''}/{port['hostPort']}"
            if key in taken:
                errors.append(duplicate(path.at(number).child("ports").at(position).child("hostPort"), key))
            taken.add(key)
    return errors


# --- environment and mounts --------------------------------------------------------------


def _validate_environment(variables: list[JsonMapping], path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    for number, variable in enumerate(variables):
        here = path.at(number)
        name = variable.get("name") or ""
        errors += (
            invalid_each(here.child("name"), name, env_name(name)) if name else [required(here.child("name"))]
        )
        source = variable.get("valueFrom")
        if source is not None:
            errors += _validate_value_source(source, variable.get("value") or "", here.child("valueFrom"))
    return errors


def _validate_value_source(source: JsonMapping, value: str, path: Path) -> list[FieldError]:
    kinds = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
    given = [kind for kind in kinds if source.get(kind) is not None]
    errors: list[FieldError] = []
    for kind in given:
        if kind in ("configMapKeyRef", "secretKeyRef"):
            errors += _validate_key_reference(source[kind], path.child(kind))
        elif kind == "fieldRef":
            errors += validate_field_reference(source[kind], path.child(kind))
    if not given:
        detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        errors.append(invalid(path, "", detail))
    elif value:
        errors.append(invalid(path, "", "may not be specified when `value` is not empty"))
    elif len(given) > 1:
        errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors


def _validate_key_reference(reference: JsonMapping, path: Path) -> list[FieldError]:
    name, key = reference.get("name") or "", reference.get("key") or ""
    errors = invalid_each(path.child("name"), name, dns_subdomain(name))
    return errors + (
        invalid_each(path.child("key"), key, config_key(key)) if key else [required(path.child("key"))]
    )


def validate_field_reference(
    reference: JsonMapping, path: Path, allowed: frozenset[str] = _FIELD_PATHS
) -> list[FieldError]:
    """Check a reference to a field of the pod itself."""
    field_path, version = reference.get("fieldPath") or "", reference.get("apiVersion") or "v1"
    if not field_path:
        return [required(path.child("fieldPath"))]
    if version != "v1":
        detail = f"error converting fieldPath: unsupported pod version: {version}"
        return [invalid(path.child("fieldPath"), field_path, detail)]
    subject, bracket, key = field_path.partition("['")
    if bracket and key.endswith("']"):
        key = key.removesuffix("']")
        if subject == "metadata.annotations":
            return invalid_each(path, key.lower(), label_key(key.lower()))
        if subject == "metadata.labels":
            return invalid_each(path, key, label_key(key))
        detail = f"error converting fieldPath: field label does not support subscript: {field_path}"
        return [invalid(path.child("fieldPath"), field_path, detail)]
    if field_path in allowed:
        return []
    if field_path not in _KNOWN_FIELD_PATHS:
        detail = f"error converting fieldPath: field label not supported: {field_path}"
        return [invalid(path.child("fieldPath"), field_path, detail)]
    return [not_supported(path.child("fieldPath"), field_path, sorted(allowed))]


def _validate_environment_sources(sources: list[JsonMapping], path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    for number, source in enumerate(sources):
        here = path.at(number)
        if source.get("prefix"):
            errors += invalid_each(here.child("prefix"), source["prefix"], env_name(source["prefix"]))
        given = [kind for kind in ("configMapRef", "secretRef") if source.get(kind) is not None]
        for kind in given:
            name = source[kind].get("name") or ""
            place = here.child(kind).child("name")
            errors += validate_subdomain(name, place) if name else [required(place)]
        if not given:
            # Reported on the list, not on its item.
            errors.append(invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(given) > 1:
            errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors


def _validate_mounts(container: JsonMapping, path: Path, volume_names: Collection[str]) -> list[FieldError]:
    mounts, devices = container.get("volumeMounts") or [], container.get("volumeDevices") or []
    errors: list[FieldError] = []
    for field, entries, place in (
        ("volumeMounts", mounts, "mountPath"),
        ("volumeDevices", devices, "devicePath"),
    ):
        places: set[str] = set()
        for number, entry in enumerate(entries):
            here = path.child(field).at(number)
            name, where = entry.get("name") or "", entry.get(place) or ""
            if not name:
                errors.append(required(here.child("name")))
            if name not in volume_names:
                errors.append(not_found(here.child("name"), name))
            if not where:
                errors.append(required(here.child(place)))
            if where in places:
                errors.append(invalid(here.child(place), where, "must be unique"))
            places.add(where)
            if entry.get("subPath"):
                # The index is missing on purpose: that is where the reference reports it.
                errors += validate_descending_path(entry["subPath"], path.child(field, "subPath"))
    return errors


def validate_descending_path(text: str, path: Path) -> list[FieldError]:
    """Check a relative path that stays below its start."""
    errors = []
    if text.startswith("/"):
        errors.append(invalid(path, text, "must be a relative path"))
    if ".." in text.replace("\\", "/").split("/"):
        errors.append(invalid(path, text, "must not contain '..'"))
    return errors


# --- life --------------------------------------------------------------------------------


def _validate_life(container: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    lifecycle = container.get("lifecycle") or {}
    for hook in ("postStart", "preStop"):
        if lifecycle.get(hook) is not None:
            errors += _validate_handler(lifecycle[hook], path.child("lifecycle", hook))
    for kind in _PROBES:
        if container.get(kind) is not None:
            errors += _validate_probe(kind, container[kind], path.child(kind))
    return errors


def _validate_probe(kind: str, probe: JsonMapping, path: Path) -> list[FieldError]:
    errors = _validate_handler(probe, path)
    for field in (
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ):
        value = probe.get(field) or 0
        if value < 0:
            errors.append(invalid(path.child(field), value, "must be greater than or equal to 0"))
    grace = probe.get("terminationGracePeriodSeconds")
    if kind == "readinessProbe":
        if grace is not None:
            errors.append(
                invalid(
                    path.child("terminationGracePeriodSeconds"), grace, "must not be set for readinessProbes"
                )
            )
    else:
        if grace is not None and grace <= 0:
            errors.append(
                invalid(path.child("terminationGracePeriodSeconds"), grace, "must be greater than 0")
            )
        if (probe.get("successThreshold") or 1) != 1:
            errors.append(invalid(path.child("successThreshold"), probe["successThreshold"], "must be 1"))
    return errors


def _validate_handler(handler: JsonMapping, path: Path) -> list[FieldError]:
    given = [kind for kind in _HANDLERS if handler.get(kind) is not None]
    if not given:
        return [required(path, "must specify a handler type")]
    errors = [forbidden(path.child(kind), "may not specify more than 1 handler type") for kind in given[1:]]
    kind, action, here = given[0], handler[given[0]], path.child(given[0])
    if kind == "exec" and not action.get("command"):
        errors.append(required(here.child("command")))
    if kind == "httpGet":
        if not action.get("path"):
            errors.append(required(here.child("path")))
        scheme = action.get("scheme")
        if scheme and scheme not in ("HTTP", "HTTPS"):
            errors.append(not_supported(here.child("scheme"), scheme, ("HTTP", "HTTPS")))
    if kind in ("httpGet", "tcpSocket", "grpc"):
        errors += _validate_port_reference(action.get("port"), here.child("port"))
    return errors


def _validate_port_reference(port: Any, path: Path) -> list[FieldError]:
    if isinstance(port, str):
        return invalid_each(path, port, port_name(port))
    return invalid_each(path, port or 0, port_number(port or 0))


def _validate_restart_policy(container: JsonMapping, path: Path) -> list[FieldError]:
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules") or []
    known = ("Always", "Never", "OnFailure")
    if policy is None:
        if rules:
            detail = "must specify restartPolicy when restart rules are used"
            return [required(path.child("restartPolicy"), detail)]
        return []
    return [] if policy in known else [not_supported(path.child("restartPolicy"), policy, known)]


def _validate_security(context: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    for field in ("runAsUser", "runAsGroup"):
        value = context.get(field)
        if value is not None and not 0 <= value <= _INT32_MAX:
            errors.append(invalid(path.child(field), value, f"must be between 0 and {_INT32_MAX}, inclusive"))
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            errors.append(invalid(path, dict(context), detail))
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or []):
            detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            errors.append(invalid(path, dict(context), detail))
    return errors
