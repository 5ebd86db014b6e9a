"""What should stand behind a ComputeDomain: its templates, its DaemonSet, its cliques and its status. Pure.

Names, labels and configs are those of NVIDIA's controller, so that workloads and tools find what they look for. The
daemons differ: there is no fabric to serve, so a daemon's container only says where it runs, and the controller
enters it in its clique, which the real daemon does itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dray.api.compute_domains import (
    API_VERSION,
    CHANNEL,
    CHANNEL_CLASS,
    CHANNEL_CONFIG,
    DAEMON,
    DAEMON_CLASS,
    DAEMON_CONFIG,
    DAEMON_TARGET,
    DOMAIN_LABEL,
    DRIVER,
    MAX_NODES,
    NAMESPACE,
    NOT_READY,
    READY,
    SERVICE_ACCOUNT,
    TARGET_LABEL,
    WORKLOAD_TARGET,
    CliqueDaemon,
    ComputeDomain,
    DomainNode,
)
from dray.api.core import Pod
from dray.api.json_types import JsonObject
from dray.api.well_known import TERMINAL_PHASES
from dray.control.pod_templates import is_ready

# Runs wherever there is a shell; ends at once when it is told to.
_DAEMON_SCRIPT = (
    'echo "simulated IMEX daemon of ComputeDomain $COMPUTE_DOMAIN_NAMESPACE/$COMPUTE_DOMAIN_NAME '
    '($COMPUTE_DOMAIN_UUID) on $NODE_NAME, clique ${CLIQUE_ID:-none}"; '
    "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
)


def daemon_name(uid: str) -> str:
    """Return the name of a domain's DaemonSet and of the template of its claims."""
    return f"computedomain-daemon-{uid}"


def _template(domain: ComputeDomain, *, name: str, namespace: str, daemon: bool) -> JsonObject:
    uid = domain.metadata.uid
    request = DAEMON if daemon else CHANNEL
    parameters = {
        "apiVersion": API_VERSION,
        "kind": DAEMON_CONFIG if daemon else CHANNEL_CONFIG,
        "domainID": uid,
    }
    if not daemon:
        parameters["allocationMode"] = domain.spec.channel.allocation_mode
    devices = {
        "requests": [
            {"name": request, "exactly": {"deviceClassName": DAEMON_CLASS if daemon else CHANNEL_CLASS}}
        ],
        "config": [{"requests": [request], "opaque": {"driver": DRIVER, "parameters": parameters}}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "finalizers": [DOMAIN_LABEL],
            "labels": {DOMAIN_LABEL: uid, TARGET_LABEL: DAEMON_TARGET if daemon else WORKLOAD_TARGET},
        },
        "spec": {"spec": {"devices": devices}},
    }


def workload_template(domain: ComputeDomain) -> JsonObject:
    """Return the template whose claims give a pod of the workload its channel."""
    name = domain.spec.channel.resource_claim_template.name
    return _template(domain, name=name, namespace=domain.metadata.namespace, daemon=False)


def daemon_template(domain: ComputeDomain) -> JsonObject:
    """Return the template of the daemons' claims."""
    return _template(domain, name=daemon_name(domain.metadata.uid), namespace=NAMESPACE, daemon=True)


def daemon_set(domain: ComputeDomain) -> JsonObject:
    """Return the DaemonSet that puts a daemon on each node with the domain's label."""
    uid = domain.metadata.uid
    mark = {DOMAIN_LABEL: uid}
    fields = (("NODE_NAME", "spec.nodeName"), ("POD_IP", "status.podIP"), ("POD_NAME", "metadata.name"))
    container = {
        "name": "compute-domain-daemon",
        "image": "busybox",
        "command": ["sh", "-c", _DAEMON_SCRIPT],
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for name, path in fields
        ],
        "resources": {"claims": [{"name": "compute-domain-daemon"}]},
    }
    effects = ("NoSchedule", "NoExecute", "PreferNoSchedule")
    spec = {
        "serviceAccountName": SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "nodeSelector": mark,
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "tolerations": [{"operator": "Exists", "effect": effect} for effect in effects],
        "resourceClaims": [{"name": "compute-domain-daemon", "resourceClaimTemplateName": daemon_name(uid)}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": daemon_name(uid),
            "namespace": NAMESPACE,
            "finalizers": [DOMAIN_LABEL],
            "labels": mark,
        },
        "spec": {"selector": {"matchLabels": mark}, "template": {"metadata": {"labels": mark}, "spec": spec}},
    }


# --- cliques and status ---------------------------------------------------------


def daemons_at_work(pods: Iterable[Pod]) -> list[Pod]:
    """Return the daemons that have a node and an address and are not going away, by node."""
    there = (
        pod
        for pod in pods
        if pod.spec.node_name
        and pod.status.pod_ip
        and pod.metadata.deletion_timestamp is None
        and pod.status.phase not in TERMINAL_PHASES
    )
    return sorted(there, key=lambda pod: pod.spec.node_name)


def clique_daemons(before: Sequence[CliqueDaemon], pods: Sequence[Pod], clique: str) -> list[CliqueDaemon]:
    """Return the daemons of a clique: those that stay keep their index, new ones take the lowest free.

    More nodes than a clique may have are left out: their daemons get no index, and stay not ready.
    """
    pod_by_node = {pod.spec.node_name: pod for pod in pods}
    index_by_node = {daemon.node_name: daemon.index for daemon in before if daemon.node_name in pod_by_node}
    taken = set(index_by_node.values())
    for node in pod_by_node:
        free = next((index for index in range(MAX_NODES) if index not in taken), None)
        if node not in index_by_node and free is not None:
            index_by_node[node] = free
            taken.add(free)
    return [
        CliqueDaemon(
            node_name=node,
            ip_address=pod_by_node[node].status.pod_ip,
            clique_id=clique,
            index=index,
            status=READY if is_ready(pod_by_node[node]) else NOT_READY,
        )
        for node, index in sorted(index_by_node.items(), key=lambda item: item[1])
    ]


def domain_nodes(
    daemons_by_clique: Mapping[str, Sequence[CliqueDaemon]], without_fabric: Sequence[Pod]
) -> list[DomainNode]:
    """Return the nodes of a domain: by clique and index, then those without fabric."""
    nodes = [
        DomainNode(
            name=daemon.node_name,
            ip_address=daemon.ip_address,
            clique_id=clique,
            index=daemon.index,
            status=daemon.status,
        )
        for clique, daemons in sorted(daemons_by_clique.items())
        for daemon in daemons
    ]
    nodes += [
        DomainNode(
            name=pod.spec.node_name,
            ip_address=pod.status.pod_ip,
            index=-1,
            status=READY if is_ready(pod) else NOT_READY,
        )
        for pod in without_fabric
    ]
    return nodes


def overall_status(domain: ComputeDomain, nodes: Sequence[DomainNode]) -> str:
    """Return Ready when there are enough nodes and all are ready."""
    is_ready = len(nodes) >= domain.spec.num_nodes and all(node.status == READY for node in nodes)
    return READY if is_ready else NOT_READY


def owners(pods: Sequence[Pod]) -> list[dict[str, Any]]:
    """Return the owner references of a clique: it goes when the last of its daemons goes."""
    return [
        {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        for pod in pods
    ]
