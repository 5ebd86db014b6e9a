"""One pod: from counted resources to a claim.

What a device plugin does with counts, a claim does with requests:
  * every container that asked for devices gets a request of its own, so that it sees
    its devices and no others;
  * a plain init container runs before the others and used to be given the same devices:
    it shares the request of a container that has as many; a sidecar runs along and has
    its own;
  * conditions on node labels that describe devices become selectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.parsing import ParseError, load_yaml
from dray.api.quantity import QuantityError, parse_quantity
from dray.drivers.driver_names import NVIDIA
from dray.workbench.conversion.labels import (
    ABOUT_DEVICES,
    IMPLIED,
    OF_CLOUD,
    RULES,
    expression_for,
    is_implied,
)
from dray.workbench.conversion.resources import (
    HAMI,
    SHARES,
    WITHOUT_COUNTERPART,
    DeviceRequest,
    looks_like_a_device,
    request_for,
)
from dray.workbench.conversion.yaml_texts import as_yaml
from dray.workbench.pod_templates import containers_of, mappings


@dataclass(slots=True)
class Wanted:
    """Devices that one container asked for."""

    resource: str
    request: DeviceRequest
    count: int
    container: JsonObject
    is_init: bool  # runs before the others, and gives the devices back
    request_name: str = ""


@dataclass(slots=True)
class PodChange:
    """What became of a pod."""

    requests: list[JsonObject] = field(default_factory=list)  # of the claim; empty: nothing to convert
    classes: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # what could not be carried over


def convert_pod(
    spec: JsonObject, template_name: str, mapped: dict[str, str], *, is_step: bool = False
) -> PodChange:
    """Change a pod's spec in place to use a claim from the named template.

    `is_step`: the spec is a template of Argo Workflows, whose pods get claims by `podSpecPatch`.
    """
    change = PodChange()
    if is_step and not _is_patchable(spec):
        who = f"template {spec.get('name')}"
        change.lost.append(
            f"{who} stays: its podSpecPatch is a template that cannot be extended; add claims there"
        )
        return change
    unreadable = _unreadable(spec)
    if unreadable:
        change.lost.append(f"{unreadable} is not a list: put in its values first")
        return change
    wanted = _collect(spec, mapped, change)
    if not wanted:
        return change
    drivers = {entry.request.driver for entry in wanted}
    selectors = _take_conditions(spec, drivers, change)
    _name_requests(wanted, change)
    entry_name = _free_name(spec)
    for entry in wanted:
        if not any(request["name"] == entry.request_name for request in change.requests):
            change.requests.append(_claim_request(entry, selectors))
            change.classes.add(entry.request.device_class)
        claims = entry.container.setdefault("resources", {}).setdefault("claims", [])
        claims.append({"name": entry_name, "request": entry.request_name})
    entry_of_pod = {"name": entry_name, "resourceClaimTemplateName": template_name}
    if is_step:
        patch = _patch_of(spec)
        patch.setdefault("resourceClaims", []).append(entry_of_pod)
        spec["podSpecPatch"] = as_yaml(patch)
    else:
        spec.setdefault("resourceClaims", []).append(entry_of_pod)
    _remark(spec, wanted, change)
    return change


def _unreadable(spec: JsonObject) -> str:
    """Return the path of a list to which a claim would be added and which is something else; empty: there is none."""
    if not isinstance(spec.get("resourceClaims") or [], list):
        return "spec.resourceClaims"
    for path, container in containers_of(spec):
        resources = container.get("resources")
        if isinstance(resources, dict) and not isinstance(resources.get("claims", []), list):
            return f"spec.{path}.resources.claims"
    return ""


def _patch_of(spec: JsonObject) -> JsonObject:
    found = load_yaml(str(spec.get("podSpecPatch") or "{}"))
    return found if isinstance(found, dict) else {}


def _is_patchable(spec: JsonObject) -> bool:
    """Return whether a `podSpecPatch` can be read: it may hold parameters of the workflow."""
    text = str(spec.get("podSpecPatch") or "")
    if "{{" in text:
        return False
    try:
        return isinstance(load_yaml(text or "{}"), dict)
    except ParseError:
        return False


# --- counting -------------------------------------------------------------------------------


def _collect(spec: JsonObject, mapped: dict[str, str], change: PodChange) -> list[Wanted]:
    wanted: list[Wanted] = []
    for path, container in containers_of(spec):
        is_init = path.startswith("initContainers") and container.get("restartPolicy") != "Always"
        resources = container.get("resources")
        if not isinstance(resources, dict):
            continue
        limits, requests = _amounts(resources, "limits"), _amounts(resources, "requests")
        who = f"container {container.get('name', path)}"
        shares = _take_shares(limits, requests)
        for resource in dict.fromkeys([*limits, *requests]):
            if not looks_like_a_device(str(resource)):
                continue
            request = request_for(resource, mapped)
            if request is None:
                reason = WITHOUT_COUNTERPART.get(
                    resource, "no DRA driver is known for it; name one with --map"
                )
                change.lost.append(f"{who}: {resource} stays: {reason}")
                continue
            count = _count(limits.pop(resource, None), requests.pop(resource, None), resource, who, change)
            if shares and request.driver == NVIDIA:
                request = replace(
                    request, device_class=HAMI, driver=HAMI, capacity=dict(shares), selectors=()
                )
            if count:
                change.notes += [note for note in request.notes if note not in change.notes]
                wanted.append(Wanted(resource, request, count, container, is_init))
        _tidy(container, resources)
    return wanted


def _amounts(resources: JsonObject, word: str) -> JsonObject:
    found = resources.get(word)
    return found if isinstance(found, dict) else {}


def _take_shares(limits: JsonObject, requests: JsonObject) -> dict[str, str]:
    """Take the amounts of shared devices out of a container's resources."""
    shares = {}
    for resource, (name, form) in SHARES.items():
        given = limits.pop(resource, None)
        asked = requests.pop(resource, None)
        value = given if given is not None else asked
        if value is not None:
            shares[name] = form.format(value)
    return shares


def _count(limit: Any, request: Any, resource: str, who: str, change: PodChange) -> int:
    if limit is not None and request is not None and str(limit) != str(request):
        change.notes.append(
            f"{who}: requests and limits of {resource} differ ({request}, {limit}); took the limit"
        )
    value = limit if limit is not None else request
    try:
        amount = parse_quantity(str(value))
    except QuantityError:
        change.lost.append(f"{who}: {resource}: {value!r} is not a number of devices")
        return 0
    number = amount.as_approximate_float()
    if number != int(number) or number < 0:
        change.lost.append(f"{who}: {resource}: {value} is not a whole number of devices")
        return 0
    return int(number)


def _tidy(container: JsonObject, resources: JsonObject) -> None:
    for word in ("limits", "requests"):
        if resources.get(word) == {}:
            del resources[word]
    if not resources:
        container.pop("resources", None)


# --- naming ---------------------------------------------------------------------------------


def _name_requests(wanted: list[Wanted], change: PodChange) -> None:
    """Give every container's devices a request, init containers one that they can share."""
    running = [entry for entry in wanted if not entry.is_init]
    bases = [entry.request.name for entry in running]
    for entry in running:
        base = entry.request.name
        alone = bases.count(base) == 1
        entry.request_name = _unique(
            base if alone else _label(f"{entry.container.get('name', 'main')}-{base}"),
            [other.request_name for other in running],
        )
    used: list[str] = [entry.request_name for entry in running]
    for entry in wanted:
        if not entry.is_init:
            continue
        same = [other for other in running if other.request == entry.request]
        fitting = [other for other in same if other.count >= entry.count]
        who = f"init container {entry.container.get('name')}"
        if fitting:
            chosen = min(fitting, key=lambda other: other.count)
            entry.request_name = chosen.request_name
            if chosen.count > entry.count:
                change.notes.append(
                    f"{who} asked for {entry.count} of {entry.resource} and will see the {chosen.count} "
                    f"of request {chosen.request_name}"
                )
        else:
            entry.request_name = _unique(
                _label(f"{entry.container.get('name', 'init')}-{entry.request.name}"), used
            )
            if same:
                change.notes.append(
                    f"{who} needs more {entry.resource} than any one container: it has a request of its own, "
                    "and the pod holds both until it ends"
                )
        used.append(entry.request_name)


def _label(text: str) -> str:
    return text[:63].strip("-")


def _unique(name: str, taken: list[str]) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"


def _free_name(spec: JsonObject) -> str:
    entries = mappings(spec.get("resourceClaims"))
    if spec.get("podSpecPatch"):
        entries += mappings(_patch_of(spec).get("resourceClaims"))
    taken = [str(entry.get("name")) for entry in entries]
    return _unique("devices", taken)


def _claim_request(entry: Wanted, conditions: dict[str, list[str]]) -> JsonObject:
    exactly: JsonObject = {"deviceClassName": entry.request.device_class}
    expressions = [*entry.request.selectors, *conditions.get(entry.request.driver, [])]
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": text}} for text in expressions]
    if entry.count != 1:
        exactly["count"] = entry.count
    if entry.request.capacity:
        exactly["capacity"] = {"requests": dict(entry.request.capacity)}
    return {"name": entry.request_name, "exactly": exactly}


# --- node labels ------------------------------------------------------------------------------


def _take_conditions(spec: JsonObject, drivers: set[str], change: PodChange) -> dict[str, list[str]]:
    """Move conditions on device labels out of the pod; return the expressions by driver."""
    found: dict[str, list[str]] = {}
    selector = spec.get("nodeSelector")
    if isinstance(selector, dict):
        for label in list(selector):
            outcome = _translate(str(label), "In", [str(selector[label])], drivers, change)
            if outcome is not None:
                del selector[label]
                _keep(found, outcome)
        if not selector:
            del spec["nodeSelector"]
    _take_affinity(spec, drivers, change, found)
    return found


def _keep(found: dict[str, list[str]], outcome: tuple[str, str]) -> None:
    driver, expression = outcome
    if expression and expression not in found.setdefault(driver, []):
        found[driver].append(expression)


def _translate(
    label: str, operator: str, values: list[str], drivers: set[str], change: PodChange
) -> tuple[str, str] | None:
    """Return driver and expression (empty: implied by the claim), or None when the label stays."""
    if is_implied(label, operator, values, drivers):
        return IMPLIED[label], ""
    expression = expression_for(label, operator, values, drivers)
    if expression is not None:
        if label == "nvidia.com/gpu.product" and any(value.endswith("-SHARED") for value in values):
            change.lost.append(f"node label {label}={','.join(values)} stays: it speaks of time slices")
            return None
        return RULES[label].driver, expression
    if OF_CLOUD.match(label):
        change.notes.append(f"the node label {label} stays: the cloud sets it, with claims as without")
        return None
    if ABOUT_DEVICES.match(label):
        shown = f"{label} {operator} {','.join(values)}".strip()
        change.lost.append(f"the condition on the node label ({shown}) stays: no attribute says the same")
    return None


def _take_affinity(
    spec: JsonObject, drivers: set[str], change: PodChange, found: dict[str, list[str]]
) -> None:
    affinity = spec.get("affinity")
    node_affinity = affinity.get("nodeAffinity") if isinstance(affinity, dict) else None
    if not isinstance(node_affinity, dict):
        return
    for preference in mappings(node_affinity.get("preferredDuringSchedulingIgnoredDuringExecution")):
        term = preference.get("preference")
        expressions = term.get("matchExpressions") if isinstance(term, dict) else None
        keys = [str(expression.get("key")) for expression in mappings(expressions)]
        if any(ABOUT_DEVICES.match(key) for key in keys):
            change.lost.append(
                f"the preference for nodes with {', '.join(keys)} stays: "
                "to prefer devices, list alternatives in firstAvailable"
            )
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = mappings(required.get("nodeSelectorTerms") if isinstance(required, dict) else None)
    if len(terms) == 1:
        _take_term(terms[0], drivers, change, found)
        if not terms[0]:
            del node_affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    elif len(terms) > 1:
        _take_alternatives(node_affinity, terms, drivers, change, found)
    if not node_affinity and isinstance(affinity, dict):
        del affinity["nodeAffinity"]
        if not affinity:
            del spec["affinity"]


def _take_term(term: JsonObject, drivers: set[str], change: PodChange, found: dict[str, list[str]]) -> None:
    left = []
    for expression in mappings(term.get("matchExpressions")):
        outcome = _translate(*_parts(expression), drivers, change)
        if outcome is None:
            left.append(expression)
        else:
            _keep(found, outcome)
    term.pop("matchExpressions", None)
    if left:
        term["matchExpressions"] = left


def _take_alternatives(
    node_affinity: JsonObject,
    terms: list[JsonObject],
    drivers: set[str],
    change: PodChange,
    found: dict[str, list[str]],
) -> None:
    """Translate terms that exclude each other only if all of them can be said of the device."""
    alternatives: list[str] = []
    owners: set[str] = set()
    trial = PodChange()
    for term in terms:
        outcomes = [_translate(*_parts(e), drivers, trial) for e in mappings(term.get("matchExpressions"))]
        if not outcomes or term.get("matchFields") or any(outcome is None for outcome in outcomes):
            if any(
                ABOUT_DEVICES.match(_parts(e)[0])
                for each in terms
                for e in mappings(each.get("matchExpressions"))
            ):
                change.lost.append(
                    "the node affinity with several terms stays: not all of it can be said of a device"
                )
            return
        owners |= {outcome[0] for outcome in outcomes if outcome is not None}
        parts = [outcome[1] for outcome in outcomes if outcome is not None and outcome[1]]
        alternatives.append(" && ".join(parts) if parts else "true")
    if len(owners) != 1:
        change.lost.append("the node affinity stays: its terms speak of devices of several drivers")
        return
    _keep(found, (owners.pop(), " || ".join(f"({text})" if "&&" in text else text for text in alternatives)))
    del node_affinity["requiredDuringSchedulingIgnoredDuringExecution"]


def _parts(expression: JsonObject) -> tuple[str, str, list[str]]:
    given = expression.get("values")
    values = [str(value) for value in given] if isinstance(given, list) else []
    return str(expression.get("key")), str(expression.get("operator")), values


# --- remarks ----------------------------------------------------------------------------------


def _remark(spec: JsonObject, wanted: list[Wanted], change: PodChange) -> None:
    """Note what the pod may have relied on beside its resources."""
    tolerations = mappings(spec.get("tolerations"))
    keys = {str(toleration.get("key")) for toleration in tolerations}
    everything = any(each.get("operator") == "Exists" and not each.get("key") for each in tolerations)
    for resource in dict.fromkeys(entry.resource for entry in wanted):
        if resource not in keys and not everything:
            change.notes.append(
                f"if nodes are tainted {resource}, add a toleration: the admission plugin that tolerates it by itself "
                "(ExtendedResourceToleration) looks at extended resources only"
            )
        elif resource in keys:
            change.notes.append(
                f"the toleration of {resource} stays: it is about node taints; device taints are tolerated in the claim"
            )
    for _, container in containers_of(spec):
        names = {str(entry.get("name")) for entry in mappings(container.get("env"))}
        if "NVIDIA_VISIBLE_DEVICES" in names:
            change.notes.append(
                f"container {container.get('name')} sets NVIDIA_VISIBLE_DEVICES: remove it, devices come through CDI"
            )
    if spec.get("runtimeClassName"):
        change.notes.append(
            f"runtimeClassName {spec['runtimeClassName']} stays; devices of claims come through CDI and need none"
        )
