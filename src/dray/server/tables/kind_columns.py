"""Columns and rows of the served kinds, one line of columns each.

A column is written `Name[:type][:format]`, with a trailing `+` when only wide
output shows it. The first column of nearly every kind is its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dray.api.conditions import is_true_in
from dray.api.json_types import JsonObject
from dray.api.kinds import APIEXTENSIONS, COORDINATION, NEW_EVENTS, RBAC, RESOURCE, SCHEDULING
from dray.api.quantity import QuantityError, canonical_quantity
from dray.server.tables import workload_cells
from dray.server.tables.ages import UNKNOWN, Since, age

NONE = workload_cells.NONE
Cells = list[Any]
CellsOf = Callable[[JsonObject], Cells]  # a cell that depends on the time is a `Since`
ROLE_LABEL = "node-role.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0  # above 0: only in wide output
    description: str = ""

    def definition(self) -> JsonObject:
        """Return the column as tables carry it."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description or f"{self.name} of the object.",
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True)
class Layout:
    """How objects of a kind become rows."""

    columns: tuple[Column, ...]
    cells: CellsOf


def columns(text: str) -> tuple[Column, ...]:
    """Read columns from a line.

    >>> [(c.name, c.type, c.priority) for c in columns("Name, Count:integer, IP+")]
    [('Name', 'string', 0), ('Count', 'integer', 0), ('IP', 'string', 1)]
    """
    made = []
    for word in text.split(","):
        name, _, kind = word.strip().partition(":")
        wide = name.endswith("+") or kind.endswith("+")
        name, kind = name.rstrip("+"), kind.rstrip("+")
        made.append(Column(name, kind or "string", "name" if name == "Name" else "", int(wide)))
    return tuple(made)


def name_and_age(thing: JsonObject) -> Cells:
    """Return the row of kinds that have nothing else to show."""
    return [_name(thing), _age(thing)]


def name_and_creation(thing: JsonObject) -> Cells:
    """Return the row of kinds that clients date themselves."""
    return [_name(thing), thing["metadata"].get("creationTimestamp")]


def _name(thing: JsonObject) -> str:
    return str(thing["metadata"].get("name", ""))


def _age(thing: JsonObject) -> Since | str:
    return age(thing["metadata"].get("creationTimestamp"))


def _node(thing: JsonObject) -> Cells:
    status = thing.get("status") or {}
    info = status.get("nodeInfo") or {}
    ready = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), None)
    states = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if (thing.get("spec") or {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    addresses = {found.get("type"): found.get("address") for found in reversed(status.get("addresses") or ())}
    kernel = info.get("kernelVersion") or UNKNOWN
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"
    return [
        _name(thing),
        ",".join(states),
        ",".join(_roles(thing)) or NONE,
        _age(thing),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or NONE,
        addresses.get("ExternalIP") or NONE,
        info.get("osImage") or UNKNOWN,
        kernel,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _roles(thing: JsonObject) -> list[str]:
    labels = thing["metadata"].get("labels") or {}
    roles = {key.removeprefix(ROLE_LABEL) for key in labels if key.startswith(ROLE_LABEL)}
    return sorted({*roles, labels.get("kubernetes.io/role", "")} - {""})


def _namespace(thing: JsonObject) -> Cells:
    return [_name(thing), (thing.get("status") or {}).get("phase", ""), _age(thing)]


def _config_map(thing: JsonObject) -> Cells:
    count = len(thing.get("data") or {}) + len(thing.get("binaryData") or {})
    return [_name(thing), count, _age(thing)]


def _secret(thing: JsonObject) -> Cells:
    return [_name(thing), thing.get("type", ""), len(thing.get("data") or {}), _age(thing)]


def _quota(thing: JsonObject) -> Cells:
    status = thing.get("status") or {}
    used = status.get("used") or {}
    sides: dict[bool, list[str]] = {True: [], False: []}
    for name, hard in sorted((status.get("hard") or {}).items()):
        sides[name.startswith("limits.")].append(f"{name}: {_quantity(used.get(name))}/{_quantity(hard)}")
    return [_name(thing), ", ".join(sides[False]), ", ".join(sides[True]), _age(thing)]


def _quantity(value: Any) -> str:
    try:
        return canonical_quantity(value) if isinstance(value, str | int | float) else "0"
    except QuantityError:
        return str(value)


def _event(thing: JsonObject) -> Cells:
    """Show an event of either group: what one calls message, the other calls note."""
    target = thing.get("involvedObject") or thing.get("regarding") or {}
    source = thing.get("source") or thing.get("deprecatedSource") or {}
    component = (
        source.get("component") or thing.get("reportingComponent") or thing.get("reportingController") or ""
    )
    instance = source.get("host") or thing.get("reportingInstance") or ""
    first = age(
        thing.get("firstTimestamp") or thing.get("deprecatedFirstTimestamp") or thing.get("eventTime")
    )
    last_seen = thing.get("lastTimestamp") or thing.get("deprecatedLastTimestamp")
    last = age(last_seen) if last_seen else first
    count = thing.get("count") or thing.get("deprecatedCount") or 1
    series = thing.get("series")
    if series:
        last, count = age(series.get("lastObservedTime")), series.get("count", 0)
    kind = target.get("kind", "").lower()
    return [
        last,
        thing.get("type", ""),
        thing.get("reason", ""),
        f"{kind}/{target['name']}" if target.get("name") else kind,
        target.get("fieldPath", ""),
        f"{component}, {instance}" if instance else component,
        (thing.get("message") or thing.get("note") or "").strip(),
        first,
        count,
        _name(thing),
    ]


def _lease(thing: JsonObject) -> Cells:
    return [_name(thing), (thing.get("spec") or {}).get("holderIdentity") or "", _age(thing)]


def _budget(thing: JsonObject) -> Cells:
    spec = thing.get("spec") or {}
    bounds = [
        "N/A" if spec.get(part) is None else str(spec[part]) for part in ("minAvailable", "maxUnavailable")
    ]
    return [_name(thing), *bounds, (thing.get("status") or {}).get("disruptionsAllowed", 0), _age(thing)]


def _binding(thing: JsonObject) -> Cells:
    role = thing.get("roleRef") or {}
    by_kind: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in thing.get("subjects") or ():
        name = subject.get("name", "")
        if subject.get("kind") == "ServiceAccount":
            name = f"{subject.get('namespace', '')}/{name}"
        by_kind.setdefault(subject.get("kind", ""), []).append(name)
    shown = [", ".join(by_kind[kind]) for kind in ("User", "Group", "ServiceAccount")]
    return [_name(thing), f"{role.get('kind', '')}/{role.get('name', '')}", _age(thing), *shown]


def _definition(thing: JsonObject) -> Cells:
    spec = thing.get("spec") or {}
    names = spec.get("names") or {}
    versions = sorted(
        version.get("name", "") + ("(storage)" if version.get("storage") else "")
        for version in spec.get("versions") or ()
        if version.get("served")
    )
    established = is_true_in(thing.get("status") or {}, "Established")
    return [
        _name(thing),
        spec.get("scope", ""),
        ",".join(versions),
        thing["metadata"].get("creationTimestamp"),
        spec.get("group", ""),
        names.get("kind", ""),
        ",".join(names.get("shortNames") or ()),
        established,
    ]


def _claim(thing: JsonObject) -> Cells:
    status, deleted = thing.get("status") or {}, bool(thing["metadata"].get("deletionTimestamp"))
    states = ["deleted"] if deleted else []
    if status.get("allocation") is not None:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    elif not deleted:
        states.append("pending")
    return [_name(thing), ",".join(states), _age(thing)]


def _resource_slice(thing: JsonObject) -> Cells:
    spec = thing.get("spec") or {}
    pool = (spec.get("pool") or {}).get("name", "")
    return [_name(thing), spec.get("nodeName") or "", spec.get("driver", ""), pool, _age(thing)]


def _taint_rule(thing: JsonObject) -> Cells:
    taint = (thing.get("spec") or {}).get("taint") or {}
    added = age(taint["timeAdded"]) if taint.get("timeAdded") else ""
    shown = [taint.get(part, "") for part in ("key", "value", "effect")]
    return [_name(thing), *shown, added, _age(thing)]


def _pool_status(thing: JsonObject) -> Cells:
    driver = (thing.get("spec") or {}).get("driver", "")
    status = thing.get("status")
    if status is None:
        return [_name(thing), driver, "-", "-", "-", "-", "-", 0, "Pending", NONE]
    pools, state = status.get("pools") or [], "Pending"
    completed: Since | str = NONE
    for condition in status.get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            state = condition["type"]
            if state == "Complete":
                completed = age(condition.get("lastTransitionTime"))
            break
    count = status.get("poolCount") or 0
    sums = ["-"] * 5
    if state != "Failed":
        parts = ("totalDevices", "availableDevices", "allocatedDevices", "unavailableDevices")
        sums = [str(sum(pool.get(part) or 0 for pool in pools)) for part in parts]
        sums.append(str(sum(pool.get("validationError") is not None for pool in pools)))
    if state == "Complete" and count > len(pools):
        state = f"Complete ({len(pools)}/{count} pools)"
    return [_name(thing), driver, *sums, count, state, completed]


def _priority_class(thing: JsonObject) -> Cells:
    return [
        _name(thing),
        thing.get("value", 0),
        bool(thing.get("globalDefault")),
        _age(thing),
        thing.get("preemptionPolicy") or "",
    ]


def _pod_group(thing: JsonObject) -> Cells:
    spec = thing.get("spec") or {}
    conditions = {c.get("type"): c for c in (thing.get("status") or {}).get("conditions") or ()}
    state = "Pending"
    scheduled = conditions.get("PodGroupInitiallyScheduled")
    if scheduled is not None:
        state = "Scheduled" if scheduled.get("status") == "True" else "Unschedulable"
    if "DisruptionTarget" in conditions:
        state = conditions["DisruptionTarget"].get("reason", "")
    policy = "Gang" if (spec.get("schedulingPolicy") or {}).get("gang") is not None else "Basic"
    workload = (spec.get("workloadRef") or {}).get("workloadName") or NONE
    return [_name(thing), policy, workload, state, _age(thing)]


NAME_AND_AGE = Layout(columns("Name, Age"), name_and_age)
NAME_AND_CREATION = Layout(columns("Name, Created At:date"), name_and_creation)
_EVENTS = Layout(
    columns(
        "Last Seen, Type, Reason, Object, Subobject+, Source+, Message, First Seen+, Count+, Name+",
    ),
    _event,
)
_BINDINGS = Layout(columns("Name, Role, Age, Users+, Groups+, ServiceAccounts+"), _binding)

LAYOUTS: dict[tuple[str, str], Layout] = {
    ("", "configmaps"): Layout(columns("Name, Data, Age"), _config_map),
    ("", "events"): _EVENTS,
    (NEW_EVENTS, "events"): _EVENTS,
    ("", "namespaces"): Layout(columns("Name, Status, Age"), _namespace),
    ("", "nodes"): Layout(
        columns(
            "Name, Status, Roles, Age, Version, Internal-IP+, External-IP+, OS-Image+, Kernel-Version+, "
            "Container-Runtime+"
        ),
        _node,
    ),
    ("", "pods"): Layout(
        columns("Name, Ready, Status, Restarts, Age, IP+, Node+, Nominated Node+, Readiness Gates+"),
        workload_cells.pod_cells,
    ),
    ("", "resourcequotas"): Layout(columns("Name, Request, Limit, Age"), _quota),
    ("", "secrets"): Layout(columns("Name, Type, Data, Age"), _secret),
    ("", "serviceaccounts"): NAME_AND_AGE,
    (APIEXTENSIONS, "customresourcedefinitions"): Layout(
        columns(
            "Name, Scope, Versions, Created At:date, Group+, Kind+, ShortNames+, Established:boolean+",
        ),
        _definition,
    ),
    ("apps", "daemonsets"): Layout(
        columns(
            "Name, Desired:integer, Current:integer, Ready:integer, Up-to-date:integer, Available:integer, "
            "Node Selector, Age, Containers+, Images+, Selector+"
        ),
        workload_cells.daemon_set_cells,
    ),
    ("apps", "deployments"): Layout(
        columns("Name, Ready, Up-to-date, Available, Age, Containers+, Images+, Selector+"),
        workload_cells.deployment_cells,
    ),
    ("apps", "replicasets"): Layout(
        columns(
            "Name, Desired:integer, Current:integer, Ready:integer, Age, Containers+, Images+, Selector+"
        ),
        workload_cells.replica_set_cells,
    ),
    ("autoscaling", "horizontalpodautoscalers"): Layout(
        columns("Name, Reference, Targets, MinPods, MaxPods, Replicas, Age"),
        workload_cells.pod_autoscaler_cells,
    ),
    ("batch", "jobs"): Layout(
        columns("Name, Status, Completions, Duration, Age, Containers+, Images+, Selector+"),
        workload_cells.job_cells,
    ),
    (COORDINATION, "leases"): Layout(columns("Name, Holder, Age"), _lease),
    ("policy", "poddisruptionbudgets"): Layout(
        columns("Name, Min Available, Max Unavailable, Allowed Disruptions:integer, Age"), _budget
    ),
    (RBAC, "clusterrolebindings"): _BINDINGS,
    (RBAC, "rolebindings"): _BINDINGS,
    (RESOURCE, "deviceclasses"): NAME_AND_AGE,
    (RESOURCE, "devicetaintrules"): Layout(columns("Name, Key, Value, Effect, TimeAdded, Age"), _taint_rule),
    (RESOURCE, "resourceclaims"): Layout(columns("Name, State, Age"), _claim),
    (RESOURCE, "resourceclaimtemplates"): NAME_AND_AGE,
    (RESOURCE, "resourcepoolstatusrequests"): Layout(
        columns(
            "Name, Driver, Total, Available, Allocated, Unavailable, Errors, Pools:integer, Status, Completed"
        ),
        _pool_status,
    ),
    (RESOURCE, "resourceslices"): Layout(columns("Name, Node, Driver, Pool, Age"), _resource_slice),
    (SCHEDULING, "podgroups"): Layout(columns("Name, Policy, Workload, Status, Age"), _pod_group),
    (SCHEDULING, "priorityclasses"): Layout(
        columns("Name, Value:integer, Global-Default:boolean, Age, PreemptionPolicy"), _priority_class
    ),
    (SCHEDULING, "workloads"): NAME_AND_AGE,
}
