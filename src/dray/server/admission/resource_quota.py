"""ResourceQuota: a namespace may hold only so much.

Theory of operation: what a namespace holds is computed from its objects, not read
from `status.used`, which a controller writes later. A ledger keeps the charge of
every object of a namespace that has a quota; it is filled at the first question
and follows every committed write.

Between the judgement and the commit of a write lies an `await`, in which other
writes are judged. So a judged creation is counted at once as pending; the entry
becomes real when the object is committed, or lapses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dray.api.json_types import JsonObject
from dray.api.kinds import COORDINATION, RESOURCE
from dray.api.label_selectors import object_holds
from dray.api.pod_resources import add_amounts
from dray.api.quantity import Quantity
from dray.api.quota_charges import Amounts
from dray.server.admission.admission_plugin import BasePlugin, Kept, refused, target_of
from dray.server.admission.pod_amounts import amounts_of
from dray.server.admission.quota_usage import PODS, concerns, container_names_set, usage_of
from dray.server.requests import Call, Reader

# Long enough for the slowest commit, short enough that a failed write frees its share soon.
PENDING_LIFE = timedelta(seconds=5)
_MUST_SPECIFY = {"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"}

# Written often and told to nobody: counted afresh when a quota names them.
_NOT_FOLLOWED = frozenset({("", "events"), (COORDINATION, "leases")})


@dataclass(slots=True)
class Entry:
    """One object that counts against a namespace's quota."""

    thing: JsonObject
    usage: Amounts
    lapses: datetime | None = None  # set while the write is pending


@dataclass(slots=True)
class ResourceQuota(BasePlugin):
    """Refuse what exceeds a quota of its namespace."""

    reader: Reader
    now: Callable[[], datetime]
    name: str = "ResourceQuota"
    _entries: dict[tuple[str, str, str], dict[str, Entry]] = field(
        default_factory=dict
    )  # (ns, group, resource)

    _quotas: Kept = field(init=False)

    def __post_init__(self) -> None:
        self._quotas = Kept(self.reader, "", "resourcequotas")

    def validate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Judge a creation, or an update that asks for more."""
        namespace = call.route.namespace
        group, resource, subresource = target_of(call)
        if not namespace or subresource not in ("", "resize"):
            return
        quotas = self._quotas.list(namespace)
        if not quotas or (
            operation == "UPDATE" and (group, resource) not in (PODS, (RESOURCE, "resourceclaims"))
        ):
            return
        placed = {**new, "metadata": {**(new.get("metadata") or {}), "namespace": namespace}}
        usage = usage_of(group, resource, placed, self.reader)
        entries = self._entries_of(namespace, group, resource)
        name = placed["metadata"].get("name", "")
        charged, others = usage, [entry for key, entry in entries.items() if key != name]
        if operation == "UPDATE" and old is not None:
            # Only what is asked for in addition is judged: a full quota must not stop other changes.
            charged, others = (
                _growth(usage, usage_of(group, resource, old, self.reader)),
                list(entries.values()),
            )
        for quota in quotas:
            self._check(call, quota, placed, charged, others)
        if operation == "CREATE" and not call.request.has("dryRun") and name not in entries:
            entries[name] = Entry(placed, usage, self.now() + PENDING_LIFE)

    def observe(self, group: str, resource: str, old: JsonObject | None, new: JsonObject | None) -> None:
        """Add a committed write to the usage that is kept."""
        self._quotas.observe(group, resource)
        metadata = (new or old or {}).get("metadata") or {}
        entries = self._entries.get((metadata.get("namespace", ""), group, resource))
        if entries is None:
            return
        if new is None:
            entries.pop(metadata.get("name", ""), None)
        else:
            entries[metadata["name"]] = Entry(new, usage_of(group, resource, new, self.reader))

    def _entries_of(self, namespace: str, group: str, resource: str) -> dict[str, Entry]:
        key = (namespace, group, resource)
        entries = self._entries.get(key)
        if entries is None:
            entries = {
                thing["metadata"]["name"]: Entry(thing, usage_of(group, resource, thing, self.reader))
                for thing in self.reader.list(group, resource, namespace)
            }
            if (group, resource) not in _NOT_FOLLOWED:
                self._entries[key] = entries
            return entries
        now = self.now()
        lapsed = [name for name, entry in entries.items() if entry.lapses is not None and entry.lapses < now]
        for name in lapsed:
            del entries[name]
        return entries

    def _check(
        self, call: Call, quota: JsonObject, new: JsonObject, usage: Amounts, others: Iterable[Entry]
    ) -> None:
        group, resource, _ = target_of(call)
        hard = amounts_of((quota.get("spec") or {}).get("hard"))
        names = concerns(group, resource, hard, self.reader)
        if not names or not _in_scope(quota, group, resource, new):
            return
        quota_name = quota["metadata"]["name"]
        if (group, resource) == PODS:
            missing = _unspecified(new.get("spec") or {}, set(names) & _MUST_SPECIFY)
            if missing:
                raise refused(call, new, f"failed quota: {quota_name}: must specify {missing}")
        requested = {name: usage[name] for name in names if usage.get(name)}
        if not requested:
            return
        used: Amounts = {name: Quantity.of(0) for name in requested}
        for entry in others:
            if _in_scope(quota, group, resource, entry.thing):
                add_amounts(used, {name: entry.usage[name] for name in requested if name in entry.usage})
        exceeded = sorted(name for name in requested if used[name] + requested[name] > hard[name])
        if exceeded:
            shown = ", ".join(
                f"{part}: {_listed(amounts, exceeded)}"
                for part, amounts in (("requested", requested), ("used", used), ("limited", hard))
            )
            raise refused(call, new, f"exceeded quota: {quota_name}, {shown}")


def _growth(after: Amounts, before: Amounts) -> Amounts:
    growth = {name: amount - before[name] if name in before else amount for name, amount in after.items()}
    return {name: amount for name, amount in growth.items() if amount.sign > 0}


def _listed(amounts: Amounts, names: Iterable[str]) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)


def _unspecified(spec: JsonObject, required: set[str]) -> str:
    if spec.get("resources"):
        return ""  # asked for as a pod
    missing: dict[str, set[str]] = {}
    for part in ("containers", "initContainers"):
        for container in spec.get(part) or ():
            for name in required - container_names_set(container):
                missing.setdefault(name, set()).add(container.get("name", ""))
    return "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))


def _in_scope(quota: JsonObject, group: str, resource: str, thing: JsonObject) -> bool:
    spec = quota.get("spec") or {}
    scopes = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    scopes += (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    if not scopes:
        return True
    if (group, resource) != PODS:
        return False  # scopes speak of pods only
    return all(_pod_matches(scope, thing.get("spec") or {}) for scope in scopes)


def _pod_matches(scope: JsonObject, spec: JsonObject) -> bool:
    name = scope.get("scopeName", "")
    if name == "PriorityClass":
        return _class_matches(scope, spec.get("priorityClassName") or "")
    terminating = spec.get("activeDeadlineSeconds") is not None
    best_effort = not any(
        (container.get("resources") or {}).get(side)
        for part in ("containers", "initContainers")
        for container in spec.get(part) or ()
        for side in ("requests", "limits")
    )
    answers = {
        "Terminating": terminating,
        "NotTerminating": not terminating,
        "BestEffort": best_effort,
        "NotBestEffort": not best_effort,
        "CrossNamespacePodAffinity": _reaches_other_namespaces(spec.get("affinity") or {}),
    }
    return answers.get(name, False)


def _class_matches(scope: JsonObject, class_name: str) -> bool:
    return object_holds({**scope, "key": "class"}, {"class": class_name} if class_name else {})


def _reaches_other_namespaces(affinity: JsonObject) -> bool:
    for part in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(part) or {}
        required = terms.get("requiredDuringSchedulingIgnoredDuringExecution") or []
        preferred = terms.get("preferredDuringSchedulingIgnoredDuringExecution") or []
        for term in [*required, *(weighted.get("podAffinityTerm") or {} for weighted in preferred)]:
            if term.get("namespaces") or term.get("namespaceSelector") is not None:
                return True
    return False
