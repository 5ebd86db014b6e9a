"""The examination of a cluster: facts in, findings out.

Pure: `collecting` reads the facts through the API with the rights of the user, this module judges them. A
fact that could not be read is None (or left out of the snapshot) and is not judged; `collecting` reports it
once as `not-permitted`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.times import parse_time
from dray.api.well_known import SCHEDULER_LEASE_PREFIX
from dray.api.wording import join_names
from dray.devices import is_complete, newest_generation, slices_by_pool
from dray.sim.snapshot import Snapshot
from dray.workbench.doctor.classes import check_classes
from dray.workbench.doctor.findings import Finding, limited
from dray.workbench.inventory import DeviceRow, Inventory

OLDEST_MINOR_WITH_V1 = 34  # resource.k8s.io/v1 and the kubelet's v1 gRPC service are GA in 1.34
_KUBELET_MINORS_BEHIND = 3  # the version skew policy of Kubernetes
_STUCK_AFTER = timedelta(minutes=5)
_CONTROLLER_AFTER = timedelta(minutes=1)
_LEASE_SECONDS = 15
_DEFAULT_SCHEDULER = "default-scheduler"
_KUBE_SCHEDULER_LEASE = "kube-scheduler"
# kubelet's folder is /var/lib/kubelet, or one of that name elsewhere (k0s, MicroK8s).
_PLUGIN_FOLDER = re.compile(r"/kubelet(/plugins(_registry)?(/.{1,1000})?)?/?$")


@dataclass(slots=True)
class ClusterFacts:
    """What is known of a cluster."""

    now: datetime
    version: str = ""  # of the API server, such as v1.37.1
    resource_versions: tuple[str, ...] = ()  # in which resource.k8s.io is served
    gates: Mapping[str, bool] | None = None  # None means: could not be read
    snapshot: Snapshot = field(default_factory=Snapshot)
    leases: Sequence[JsonObject] | None = (
        None  # of all namespaces, or of kube-system where only those may be read
    )
    webhooks: Sequence[JsonObject] | None = None  # ValidatingWebhookConfigurations
    ready_endpoints: Mapping[str, int] = field(default_factory=dict)  # namespace/service -> ready addresses
    forbidden: Mapping[str, str] = field(default_factory=dict)  # what -> why it could not be read


def check_cluster(facts: ClusterFacts) -> list[Finding]:
    """Return what is wrong with a cluster, in the order in which a claim would meet it."""
    return [finding for check in CHECKS for finding in limited(check(facts))]


# --- versions -------------------------------------------------------------------


def minor_of(version: str) -> int | None:
    """Return the minor version of Kubernetes 1.x, None when the text is not one.

    >>> minor_of("v1.37.1"), minor_of("1.34.0-rc.1+k3s1"), minor_of("unknown")
    (37, 34, None)
    """
    found = re.match(r"v?1\.(\d{1,4})\b", version)
    return int(found[1]) if found else None


def _check_api(facts: ClusterFacts) -> Iterator[Finding]:
    if not facts.resource_versions:
        yield Finding(
            "api-not-served",
            "API server",
            f"version {facts.version or 'unknown'}; /apis/resource.k8s.io is not found",
            "upgrade to Kubernetes 1.34 or newer, or remove --runtime-config=resource.k8s.io/v1=false",
        )
    elif "v1" not in facts.resource_versions:
        yield Finding(
            "api-beta-only",
            "API server",
            f"version {facts.version or 'unknown'} serves {', '.join(facts.resource_versions)}",
            "upgrade to Kubernetes 1.34 or newer: dray uses resource.k8s.io/v1",
        )


_OPTIONAL_GATES = (
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
)


def _check_gates(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.gates is None:
        return
    if facts.gates.get("DynamicResourceAllocation") is False:
        yield Finding(
            "gate-off",
            "API server",
            'its metrics say kubernetes_feature_enabled{name="DynamicResourceAllocation"} 0',
            "remove DynamicResourceAllocation=false from --feature-gates of every component",
        )
    off = [gate for gate in _OPTIONAL_GATES if facts.gates.get(gate) is False]
    if off:
        yield Finding(
            "optional-gate-off",
            "API server",
            f"off: {', '.join(off)}",
            "fields of these features are dropped silently; switch on what you need with --feature-gates",
        )


# --- nodes ----------------------------------------------------------------------


def _nodes(facts: ClusterFacts) -> dict[str, JsonObject]:
    return {_name(obj): obj for obj in facts.snapshot.objects if obj.get("kind") == "Node"}


def _pods(facts: ClusterFacts) -> list[JsonObject]:
    return [obj for obj in facts.snapshot.objects if obj.get("kind") == "Pod"]


def _device_nodes(facts: ClusterFacts) -> set[str]:
    """Return the nodes for which devices are published."""
    return {each.spec.node_name for each in facts.snapshot.slices if each.spec.node_name}


def _check_nodes(facts: ClusterFacts) -> Iterator[Finding]:
    with_devices = _device_nodes(facts)
    server = minor_of(facts.version)
    for name, node in _nodes(facts).items():
        info = _at(node, "status", "nodeInfo") or {}
        kubelet = str(info.get("kubeletVersion", ""))
        minor = minor_of(kubelet)
        if name in with_devices:
            yield from _not_ready(name, node)
            if minor is not None and minor < OLDEST_MINOR_WITH_V1:
                yield Finding(
                    "kubelet-too-old",
                    f"node {name}",
                    f"kubelet {kubelet}",
                    "upgrade the node to 1.34 or newer",
                )
            yield from _runtime(name, str(info.get("containerRuntimeVersion", "")))
        if server is not None and minor is not None and not -_KUBELET_MINORS_BEHIND <= minor - server <= 0:
            yield Finding(
                "kubelet-skew",
                f"node {name}",
                f"kubelet {kubelet}, API server {facts.version}",
                "upgrade the API server first, and keep kubelets within three minor versions of it",
            )


def _not_ready(name: str, node: JsonObject) -> Iterator[Finding]:
    for condition in _at(node, "status", "conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            reason = condition.get("message") or condition.get("reason") or "no reason given"
            yield Finding(
                "node-not-ready",
                f"node {name}",
                f"Ready is {condition.get('status')}: {reason}",
                f"look at the kubelet's log on {name}; `kubectl describe node {name}` shows the conditions",
            )


def _runtime(name: str, text: str) -> Iterator[Finding]:
    """Judge a container runtime by its name and version, such as `containerd://2.1.4`."""
    runtime, _, version = text.partition("://")
    number = tuple(int(part) for part in re.findall(r"\d{1,6}", version)[:2])
    if runtime == "docker" or (runtime == "containerd" and number and number < (1, 7)):
        yield Finding(
            "runtime-without-cdi",
            f"node {name}",
            f"container runtime {text}",
            "use containerd 2.0 or newer, or CRI-O: without CDI no device reaches a container",
        )
    elif runtime == "containerd" and number and number < (2, 0):
        yield Finding(
            "runtime-cdi-by-setting",
            f"node {name}",
            f"container runtime {text}: CDI is off unless its configuration has enable_cdi = true",
            "set enable_cdi = true for the CRI plugin in /etc/containerd/config.toml, or use containerd 2.0",
        )


# --- drivers --------------------------------------------------------------------


def _check_pools(facts: ClusterFacts) -> Iterator[Finding]:
    snapshot = facts.snapshot
    if "v1" not in facts.resource_versions:
        return  # nothing was read; `_check_api` says so
    if not snapshot.slices:
        if "resourceslices" not in facts.forbidden:
            yield Finding(
                "no-devices",
                "cluster",
                "there are no ResourceSlices",
                "install a driver (docs/drivers.md lists those of dray), then look at the logs of its pods",
            )
        return
    nodes = _nodes(facts)
    for pool, slices in slices_by_pool(snapshot.slices).items():
        newest = newest_generation(slices)
        if not is_complete(newest):
            first = newest[0].spec.pool
            yield Finding(
                "pool-incomplete",
                f"pool {pool.driver}/{pool.pool}",
                f"generation {first.generation} announces {first.resource_slice_count} slices, {len(newest)} are there",
                "nothing is allocated from it until the rest is published: look at the log of the driver",
            )
        node = newest[0].spec.node_name
        if node and nodes and node not in nodes:
            yield Finding(
                "pool-of-unknown-node",
                f"pool {pool.driver}/{pool.pool}",
                f"it is published for node {node}, which does not exist",
                f"delete the slices: kubectl delete resourceslices --field-selector spec.nodeName={node}",
            )


def _check_devices(facts: ClusterFacts) -> Iterator[Finding]:
    by_pool: dict[tuple[str, str], list[DeviceRow]] = defaultdict(list)
    versions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in Inventory(facts.snapshot).devices.values():
        by_pool[row.driver, row.pool].append(row)
        version = row.attribute("driverVersion")
        if version and row.node and row.node not in versions[row.driver][version]:
            versions[row.driver][version].append(row.node)
    for (driver, pool), rows in by_pool.items():
        blocked = [
            taint for row in rows for taint in row.taints if taint.effect in ("NoSchedule", "NoExecute")
        ]
        if rows and all(any(t.effect in ("NoSchedule", "NoExecute") for t in row.taints) for row in rows):
            keys = sorted({taint.key for taint in blocked})
            yield Finding(
                "devices-all-tainted",
                f"pool {driver}/{pool}",
                f"{len(rows)} of {len(rows)} devices have a taint: {join_names(keys)}",
                "repair the hardware, or remove the DeviceTaintRule (`kubectl get devicetaintrules`)",
            )
    for driver, nodes_by_version in versions.items():
        if len(nodes_by_version) > 1:
            seen = "; ".join(f"{v} on {join_names(nodes)}" for v, nodes in sorted(nodes_by_version.items()))
            yield Finding(
                "driver-versions-differ",
                f"driver {driver}",
                seen,
                "finish the upgrade, or select by driverVersion",
            )


def is_driver_pod(pod: JsonObject) -> bool:
    """Return whether a pod is a kubelet plugin: it mounts kubelet's plugin folders from its node."""
    return any(
        _PLUGIN_FOLDER.search(str(_at(volume, "hostPath", "path") or ""))
        for volume in _at(pod, "spec", "volumes") or ()
    )


def _check_driver_pods(facts: ClusterFacts) -> Iterator[Finding]:
    published = _device_nodes(facts)
    for pod in _pods(facts):
        if not is_driver_pod(pod):
            continue
        name, node = _full_name(pod), str(_at(pod, "spec", "nodeName") or "")
        problem = _container_problem(pod)
        if problem:
            yield Finding(
                "driver-pod-failing",
                f"pod {name}",
                f"on node {node or '(none)'}: {problem}",
                f"kubectl logs -n {name.partition('/')[0]} {name.partition('/')[2]} --previous",
            )
        elif _at(pod, "status", "phase") == "Running" and node and node not in published:
            yield Finding(
                "driver-publishes-nothing",
                f"pod {name}",
                f"it runs on node {node}, for which there is no ResourceSlice",
                "read its log; on the node, `dray doctor --machine` examines sockets and kernel drivers",
            )


def _container_problem(pod: JsonObject) -> str:
    """Return why a container of a pod does not run, empty if all do or have ended well."""
    for status in _at(pod, "status", "containerStatuses") or ():
        waiting = _at(status, "state", "waiting") or {}
        if waiting.get("reason") in (None, "ContainerCreating", "PodInitializing"):
            continue
        ended = _at(status, "lastState", "terminated") or {}
        last = str(ended.get("message") or ended.get("reason") or "").strip().splitlines()
        detail = f"; it ended with exit code {ended.get('exitCode')}" if "exitCode" in ended else ""
        return f"container {status.get('name')}: {waiting['reason']}{detail}{f' ({last[-1][:200]})' if last else ''}"
    return ""


# --- claims ---------------------------------------------------------------------


def _check_claims(facts: ClusterFacts) -> Iterator[Finding]:
    inventory = Inventory(facts.snapshot)
    for device, use in inventory.lost if "resourceslices" not in facts.forbidden else ():
        pool_is_known = any(row.key.pool_id == device.pool_id for row in inventory.devices.values())
        yield Finding(
            "claim-device-gone",
            f"claim {use.claim}",
            f"it holds {device}; that {'device' if pool_is_known else 'pool'} is not published any more",
            "delete the pods that use the claim; the driver of the node must run to release it",
        )
    for obj in facts.snapshot.objects:
        if obj.get("kind") != "ResourceClaim":
            continue
        since = _time(_at(obj, "metadata", "deletionTimestamp"))
        if since is not None and facts.now - since > _STUCK_AFTER:
            users = [str(each.get("name")) for each in _at(obj, "status", "reservedFor") or ()]
            yield Finding(
                "claim-deletion-stuck",
                f"claim {_full_name(obj)}",
                f"deleted {int((facts.now - since).total_seconds() // 60)} minutes ago, "
                + (f"still reserved for {join_names(users)}" if users else "its finalizer is still there"),
                "delete those pods"
                if users
                else "is the driver of its node running? it must unprepare the claim",
            )


def _check_controller(facts: ClusterFacts) -> Iterator[Finding]:
    """Find pods whose templates nobody turned into claims."""
    waiting = []
    for pod in _pods(facts):
        made = {str(each.get("name")) for each in _at(pod, "status", "resourceClaimStatuses") or ()}
        wanted = {
            str(each.get("name"))
            for each in _at(pod, "spec", "resourceClaims") or ()
            if each.get("resourceClaimTemplateName")
        }
        created = _time(_at(pod, "metadata", "creationTimestamp"))
        is_old = created is not None and facts.now - created > _CONTROLLER_AFTER
        if wanted - made and is_old and _at(pod, "status", "phase") in (None, "", "Pending"):
            waiting.append((_full_name(pod), pod))
    templates = {(t.metadata.namespace, t.metadata.name) for t in facts.snapshot.templates}
    with_template = [name for name, pod in waiting if _templates_exist(pod, templates)]
    if with_template:
        yield Finding(
            "claim-not-created",
            join_names(f"pod {name}" for name in with_template),
            "the pods are older than a minute and their templates exist, but there are no claims for them",
            "start kube-controller-manager (its resourceclaim controller) or `dray controllers`",
        )


def _templates_exist(pod: JsonObject, templates: set[tuple[str, str]]) -> bool:
    namespace = str(_at(pod, "metadata", "namespace") or "default")
    return all(
        (namespace, str(each["resourceClaimTemplateName"])) in templates
        for each in _at(pod, "spec", "resourceClaims") or ()
        if each.get("resourceClaimTemplateName")
    )


# --- schedulers -----------------------------------------------------------------


def _waits(pod: JsonObject) -> bool:
    return (
        not _at(pod, "spec", "nodeName")
        and not _at(pod, "spec", "schedulingGates")
        and _at(pod, "status", "phase") in (None, "", "Pending")
        and not _at(pod, "metadata", "deletionTimestamp")
    )


@dataclass(frozen=True, slots=True)
class _SchedulerLease:
    """The lease that the replicas of one scheduler share."""

    scheduler: str  # as pods name it
    lease: str  # namespace/name
    is_live: bool  # renewed within its duration


def _scheduler_leases(facts: ClusterFacts) -> list[_SchedulerLease]:
    """Return the leases of kube-scheduler and of dray's schedulers."""
    found = []
    for lease in facts.leases or ():
        name = _name(lease)
        if name == _KUBE_SCHEDULER_LEASE:
            scheduler = _DEFAULT_SCHEDULER
        elif name.startswith(SCHEDULER_LEASE_PREFIX):
            scheduler = name.removeprefix(SCHEDULER_LEASE_PREFIX)
        else:
            continue
        renewed = _time(_at(lease, "spec", "renewTime"))
        seconds = int(_at(lease, "spec", "leaseDurationSeconds") or _LEASE_SECONDS)
        # Twice the duration: the clocks of two machines differ, and a takeover takes one.
        is_live = renewed is not None and facts.now - renewed < timedelta(seconds=2 * seconds)
        found.append(_SchedulerLease(scheduler, _full_name(lease), is_live))
    return found


def _check_schedulers(facts: ClusterFacts) -> Iterator[Finding]:
    waiting: dict[str, list[str]] = defaultdict(list)
    with_claims: list[str] = []
    for pod in filter(_waits, _pods(facts)):
        waiting[str(_at(pod, "spec", "schedulerName") or _DEFAULT_SCHEDULER)].append(_full_name(pod))
        if _at(pod, "spec", "resourceClaims"):
            with_claims.append(_full_name(pod))
    leases = _scheduler_leases(facts)
    for scheduler, pods in waiting.items():
        # Without a lease of that name a scheduler may run without leader election: nobody can tell.
        known = [each for each in leases if each.scheduler == scheduler]
        if known and not any(each.is_live for each in known):
            yield Finding(
                "scheduler-absent",
                f"scheduler {scheduler}",
                f"{len(pods)} pods wait for it ({join_names(pods)}); nobody holds its lease {known[0].lease}",
                "start it (`kubectl get pods -A -l app.kubernetes.io/part-of=dray` shows those of the chart), "
                "or correct schedulerName of the pods",
            )
    if with_claims:
        yield Finding(
            "pods-waiting",
            join_names(f"pod {name}" for name in with_claims),
            f"{len(with_claims)} pods with claims are not bound to a node",
            f"dray explain pod {with_claims[0].partition('/')[2]} -n {with_claims[0].partition('/')[0]}",
        )


GUARD = "dray-guard"  # the name of its ValidatingWebhookConfiguration


def _check_guard(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.webhooks is None:
        return
    guard = next((each for each in facts.webhooks if _name(each) == GUARD), None)
    if guard is None:
        yield from _unguarded_schedulers(facts)
        return
    if not guard.get("webhooks"):
        yield Finding(
            "guard-inactive",
            f"ValidatingWebhookConfiguration {GUARD}",
            "it has no webhooks: the guard is installed and has never judged, so nothing is refused",
            f"start the guard's pods: kubectl get pods -A -l app.kubernetes.io/name={GUARD}",
        )
    for webhook in guard.get("webhooks") or ():
        service = _at(webhook, "clientConfig", "service")
        key = f"{service.get('namespace')}/{service.get('name')}" if isinstance(service, dict) else ""
        if facts.ready_endpoints.get(key) == 0 and webhook.get("failurePolicy") != "Ignore":
            yield Finding(
                "guard-unavailable",
                f"service {key}",
                "the webhook dray-guard has failurePolicy Fail, and its service has no ready endpoint",
                "start the guard's pods, or delete the ValidatingWebhookConfiguration dray-guard",
            )


def _unguarded_schedulers(facts: ClusterFacts) -> Iterator[Finding]:
    """Find schedulers that allocate the same devices, where no guard is installed."""
    live = sorted({each.scheduler for each in _scheduler_leases(facts) if each.is_live})
    if len(live) > 1:
        yield Finding(
            "two-schedulers-no-guard",
            f"schedulers {join_names(live)}",
            f"all of them hold a fresh lease and there is no ValidatingWebhookConfiguration {GUARD}",
            "install `dray guard`, or give each scheduler device classes or nodes of its own",
        )


def _check_permissions(facts: ClusterFacts) -> Iterator[Finding]:
    for what, reason in facts.forbidden.items():
        yield Finding(
            "not-permitted", what, reason, "its checks were left out; use credentials that may read it"
        )


def _check_class_findings(facts: ClusterFacts) -> Iterator[Finding]:
    yield from check_classes(facts.snapshot)


CHECKS: tuple[Callable[[ClusterFacts], Iterator[Finding]], ...] = (
    _check_api,
    _check_gates,
    _check_nodes,
    _check_pools,
    _check_devices,
    _check_driver_pods,
    _check_class_findings,
    _check_claims,
    _check_controller,
    _check_schedulers,
    _check_guard,
    _check_permissions,
)


# --- plain objects --------------------------------------------------------------


def _at(value: Any, *path: str) -> Any:
    """Return a value inside of nested objects, None where the path ends early."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _name(obj: JsonObject) -> str:
    return str(_at(obj, "metadata", "name") or "")


def _full_name(obj: JsonObject) -> str:
    return f"{_at(obj, 'metadata', 'namespace') or 'default'}/{_name(obj)}"


def _time(text: Any) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        found = parse_time(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
