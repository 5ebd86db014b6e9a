"""What is special about writing each kind.

Generic rules hold for every kind: the server owns identity and times, status has
its own path, `generation` counts changes of what is wanted. A `Strategy` states
where a kind differs: who may write what, whether it is deleted gracefully, what
deletion answers. One writer per field is enforced here: the functions below take
from the old object whatever a request may not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dray.api.json_types import JsonObject
from dray.api.kinds import COORDINATION, NEW_EVENTS, RBAC, RESOURCE, SCHEDULING, STORAGE, Kind, kind_of
from dray.api.validation.equality import is_same
from dray.api.well_known import NAMESPACE_NAME_LABEL
from dray.server.objects import pod_strategy, workload_strategies

# Metadata that a status request may not touch in kinds whose status has several writers.
_SHARED_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
_NOT_SPEC = ("kind", "apiVersion", "metadata", "status")


def _nothing(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Leave the object as it is."""


Prepare = Callable[[JsonObject, JsonObject | None, str], None]  # new (changed in place), old, now


@dataclass(frozen=True, slots=True)
class Strategy:
    """The peculiarities of one kind."""

    returns_deleted: bool = False  # DELETE answers the object, not a Status
    status_when_deleted: tuple[str, ...] = ()  # versions in which it answers a Status all the same
    creates_on_update: bool = False  # PUT to a free name creates
    dependents: str = "background"  # default propagation: background, orphan or unsupported
    graceful: bool = False  # deleted in two steps, with time in between
    keeps_status_on_create: bool = False
    status_protects: tuple[str, ...] = ()  # metadata that /status may not change
    counts_generation: bool = True  # where there is a generation: raise it with every change
    annotations_count: bool = False  # generation counts changes of annotations too
    prepare: Prepare = _nothing  # after the generic part, on create and update
    prepare_status: Prepare = _nothing


def _namespace(new: JsonObject, old: JsonObject | None, now: str) -> None:
    metadata = new["metadata"]
    # Generated names are known only now, after defaults were set.
    metadata["labels"] = {
        **(metadata.get("labels") or {}),
        NAMESPACE_NAME_LABEL: metadata.get("name") or "",
    }
    if old is None:
        new["status"] = {"phase": "Active"}
        finalizers = (new.get("spec") or {}).get("finalizers") or []
        if "kubernetes" not in finalizers:
            new["spec"] = {**(new.get("spec") or {}), "finalizers": [*finalizers, "kubernetes"]}
    else:
        spec = dict(new.get("spec") or {})
        spec.pop("finalizers", None)
        old_finalizers = (old.get("spec") or {}).get("finalizers")
        if old_finalizers:
            spec["finalizers"] = old_finalizers
        new["spec"] = spec


def _node(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Keep podCIDR and podCIDRs two spellings of one thing."""
    spec = new.get("spec") or {}
    if spec.get("podCIDR") and not spec.get("podCIDRs"):
        new["spec"] = {**spec, "podCIDRs": [spec["podCIDR"]]}


def _lease(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Drop what belongs to coordinated leader election, a gate that is off."""
    spec, before = new.get("spec") or {}, (old or {}).get("spec") or {}
    gone = [part for part in ("strategy", "preferredHolder") if part in spec and part not in before]
    if gone:
        new["spec"] = {part: value for part, value in spec.items() if part not in gone}


def _taint_rule(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Keep timeAdded true to its meaning: when this effect began."""
    if old is None:
        return
    taint, before = ((rule.get("spec") or {}).get("taint") or {} for rule in (new, old))
    if taint.get("effect") != before.get("effect") and taint.get("timeAdded") == before.get("timeAdded"):
        new["spec"] = {**new["spec"], "taint": {**taint, "timeAdded": now}}


def _claim_status(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Forget the devices of an allocation that is gone."""
    status, before = new.get("status") or {}, (old or {}).get("status") or {}
    if not before.get("allocation") or not status.get("devices"):
        return
    kept = {_device_of(result) for result in _results(status)}
    gone = {_device_of(result) for result in _results(before)} - kept
    devices = [device for device in status["devices"] if _device_of(device) not in gone]
    status = {key: value for key, value in status.items() if key != "devices"}
    new["status"] = {**status, "devices": devices} if devices else status


def _results(status: JsonObject) -> list[JsonObject]:
    return ((status.get("allocation") or {}).get("devices") or {}).get("results") or []


def _device_of(entry: JsonObject) -> tuple[str, ...]:
    return tuple(str(entry.get(part) or "") for part in ("driver", "pool", "device", "shareID"))


def _volume(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Give a new volume its first phase."""
    if old is None:
        new["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now}


def _volume_claim(new: JsonObject, old: JsonObject | None, now: str) -> None:
    """Give a new claim for a volume its first phase."""
    if old is None:
        new["status"] = {"phase": "Pending"}


_RESOURCE = Strategy(status_protects=_SHARED_METADATA)
_RETURNED = Strategy(returns_deleted=True)
_STRATEGIES: dict[tuple[str, str], Strategy] = {
    ("", "pods"): Strategy(
        returns_deleted=True,
        graceful=True,
        status_protects=("ownerReferences",),
        prepare=pod_strategy.prepare,
        prepare_status=pod_strategy.prepare_status,
    ),
    ("", "nodes"): Strategy(keeps_status_on_create=True, prepare=_node),
    ("", "namespaces"): Strategy(returns_deleted=True, prepare=_namespace),
    ("", "events"): Strategy(creates_on_update=True, dependents="unsupported"),
    (NEW_EVENTS, "events"): Strategy(creates_on_update=True, dependents="unsupported"),
    ("", "limitranges"): Strategy(creates_on_update=True, prepare=workload_strategies.prepare_limit_range),
    ("", "resourcequotas"): _RETURNED,
    ("", "persistentvolumes"): Strategy(returns_deleted=True, prepare=_volume),
    ("", "persistentvolumeclaims"): Strategy(returns_deleted=True, prepare=_volume_claim),
    (STORAGE, "csidrivers"): _RETURNED,
    (STORAGE, "csinodes"): _RETURNED,
    (STORAGE, "storageclasses"): _RETURNED,
    (STORAGE, "volumeattachments"): _RETURNED,
    ("", "serviceaccounts"): _RETURNED,
    (COORDINATION, "leases"): Strategy(creates_on_update=True, prepare=_lease),
    (RBAC, "roles"): Strategy(creates_on_update=True),
    (RBAC, "rolebindings"): Strategy(creates_on_update=True),
    (RBAC, "clusterroles"): Strategy(creates_on_update=True),
    (RBAC, "clusterrolebindings"): Strategy(creates_on_update=True),
    ("batch", "jobs"): Strategy(dependents="orphan", prepare=workload_strategies.prepare_job),
    ("apps", "daemonsets"): Strategy(
        prepare=workload_strategies.prepare_daemon_set,
        prepare_status=workload_strategies.keep_template_generation,
    ),
    ("apps", "deployments"): Strategy(status_protects=("labels",), annotations_count=True),
    (RESOURCE, "resourceclaims"): Strategy(
        returns_deleted=True, status_protects=_SHARED_METADATA, prepare_status=_claim_status
    ),
    (RESOURCE, "resourceclaimtemplates"): _RETURNED,
    (RESOURCE, "resourceslices"): _RETURNED,
    (RESOURCE, "deviceclasses"): _RETURNED,
    (RESOURCE, "devicetaintrules"): Strategy(
        returns_deleted=True,
        status_when_deleted=("v1",),
        status_protects=_SHARED_METADATA,
        prepare=_taint_rule,
    ),
    (RESOURCE, "resourcepoolstatusrequests"): Strategy(
        returns_deleted=True, status_protects=_SHARED_METADATA
    ),
    (SCHEDULING, "podgroups"): _RESOURCE,
    (SCHEDULING, "priorityclasses"): Strategy(counts_generation=False),
}
_PLAIN = Strategy()
_CUSTOM = Strategy(status_protects=_SHARED_METADATA)


def strategy_of(kind: Kind) -> Strategy:
    """Return the peculiarities of a kind."""
    found = _STRATEGIES.get((kind.group, kind.plural))
    if found is None:
        return _CUSTOM if kind_of(kind.group, kind.kind) is None else _PLAIN
    return found


def reset_fields(kind: Kind, subresource: str) -> dict[str, dict[str, object]]:
    """Return the fields (as a field set) that a request cannot write, whatever it says."""
    if subresource == "status":
        protected = strategy_of(kind).status_protects
        if protected == _SHARED_METADATA:
            return {"f:spec": {}, "f:metadata": {}}
        if protected == ("labels",):
            return {"f:spec": {}, "f:metadata": {"f:labels": {}}}
        return {"f:spec": {}}
    return {"f:status": {}} if kind.has_status else {}


def prepare_create(kind: Kind, new: JsonObject, now: str) -> None:
    """Make a new object the server's own: no status, first generation."""
    strategy = strategy_of(kind)
    if kind.has_status and not strategy.keeps_status_on_create:
        new.pop("status", None)
    if kind.keeps_generation:
        new["metadata"]["generation"] = 1
    strategy.prepare(new, None, now)


def prepare_update(kind: Kind, new: JsonObject, old: JsonObject, now: str) -> None:
    """Keep what an update of the object may not change, and count the generation."""
    strategy = strategy_of(kind)
    if kind.has_status:
        _take(new, old, "status")
    strategy.prepare(new, old, now)
    if kind.keeps_generation and strategy.counts_generation and _wants_something_else(new, old, strategy):
        new["metadata"]["generation"] = (old["metadata"].get("generation") or 0) + 1


def prepare_status(kind: Kind, new: JsonObject, old: JsonObject, now: str) -> None:
    """Keep everything but the status (and, for some kinds, labels and annotations)."""
    strategy = strategy_of(kind)
    for part in {*new, *old} - set(_NOT_SPEC):
        _take(new, old, part)
    metadata = new["metadata"]
    for part in strategy.status_protects:
        _take(metadata, old["metadata"], part)
    strategy.prepare_status(new, old, now)


def prepare_finalize(new: JsonObject, old: JsonObject) -> None:
    """Keep everything of a namespace but its finalizers (in spec)."""
    _take(new, old, "status")


def prepare_resize(kind: Kind, new: JsonObject, old: JsonObject) -> None:
    """Keep everything of a pod but the resources of its containers, and count the generation."""
    pod_strategy.prepare_resize(new, old)
    if _wants_something_else(new, old, strategy_of(kind)):
        new["metadata"]["generation"] = (old["metadata"].get("generation") or 0) + 1


def prepare_pod_claims(kind: Kind, new: JsonObject, old: JsonObject) -> None:
    """Keep everything of a pod but its claims, and count the generation."""
    pod_strategy.prepare_claims(new, old)
    if _wants_something_else(new, old, strategy_of(kind)):
        new["metadata"]["generation"] = (old["metadata"].get("generation") or 0) + 1


def _wants_something_else(new: JsonObject, old: JsonObject, strategy: Strategy) -> bool:
    parts = {*new, *old} - set(_NOT_SPEC)
    if any(not is_same(new.get(part), old.get(part)) for part in parts):
        return True
    if strategy.annotations_count:
        return not is_same(new["metadata"].get("annotations"), old["metadata"].get("annotations"))
    return False


def _take(new: JsonObject, old: JsonObject, part: str) -> None:
    if part in old:
        new[part] = old[part]
    else:
        new.pop(part, None)
