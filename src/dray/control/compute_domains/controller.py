"""Reconciles ComputeDomains as NVIDIA's controller does.

    ComputeDomain ──► claim template of the workload (in the user's namespace)
                  └─► DaemonSet and claim template of the daemons (in the driver's namespace)
    a pod's channel is prepared ──► the driver labels its node ──► a daemon starts there
    daemon ready ──► its entry in the ComputeDomainClique ──► status.nodes ──► the channel is handed out

So a domain grows and shrinks with its pods; `numNodes` only decides when the status says Ready. Deletion runs
backwards, held by finalizers, so that no DaemonSet, template or node label outlives its domain.

Invariants (tests/unit/control/test_control_compute_domains.py):
  * a daemon keeps its index for as long as it is on its node;
  * the finalizer of a domain goes last;
  * a label of a domain that does not exist is removed from its node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from dray.api.compute_domains import (
    API_VERSION,
    DAEMON_TARGET,
    DOMAIN_LABEL,
    GROUP,
    NAMESPACE,
    NODE_CLIQUE_LABEL,
    POD_CLIQUE_LABEL,
    TARGET_LABEL,
    VERSION,
    WORKLOAD_TARGET,
    CliqueDaemon,
    ComputeDomain,
    ComputeDomainClique,
    clique_name,
)
from dray.api.core import Node, Pod
from dray.api.json_types import JsonObject
from dray.api.meta import ObjectMeta
from dray.api.resource import ResourceClaimTemplate
from dray.api.workloads import DaemonSet
from dray.client import AlreadyExists, EventRecorder, Informer, key_of
from dray.client.resources import CLAIM_TEMPLATES, DAEMON_SETS, NODES, PODS, Resource
from dray.control.compute_domains.desired import (
    clique_daemons,
    daemon_set,
    daemon_template,
    daemons_at_work,
    domain_nodes,
    overall_status,
    owners,
    workload_template,
)
from dray.control.reconcile_loop import Caches, Clock, Controller, ignoring_absence
from dray.host.clock import utc_now

log = logging.getLogger("dray.control")

DOMAINS = Resource(GROUP, VERSION, "computedomains", "ComputeDomain")
CLIQUES = Resource(GROUP, VERSION, "computedomaincliques", "ComputeDomainClique")
_NODE_KEY = "#"  # before the name of a node; a namespace cannot begin like that


class ComputeDomainController(Controller):
    """Makes what a ComputeDomain needs, reports on it, and takes it down."""

    name = "compute-domains"
    workers = 2

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.domains = caches.of(DOMAINS, ComputeDomain, optional=True)
        self.cliques = caches.of(CLIQUES, ComputeDomainClique, optional=True)
        self.templates = caches.of(CLAIM_TEMPLATES, ResourceClaimTemplate)
        self.sets = caches.of(DAEMON_SETS, DaemonSet)
        self.pods = caches.of(PODS, Pod)
        self.nodes = caches.of(NODES, Node)
        self.events = EventRecorder(caches.client, "compute-domain-controller")
        self._key_by_uid: dict[str, str] = {}  # of domains

    def watch(self) -> None:
        """Look at a domain when it, or anything with its label, changes."""
        self.domains.add_handler(self._domain_changed)
        for informer in (self.cliques, self.templates, self.sets, self.pods):
            informer.add_handler(self._labelled_changed)
        self.nodes.add_handler(self._node_changed)

    def _domain_changed(self, old: ComputeDomain | None, new: ComputeDomain | None) -> None:
        if new is not None:
            self._key_by_uid[new.metadata.uid] = key_of(new.metadata)
            self.enqueue(key_of(new.metadata))
        elif old is not None:
            self._key_by_uid.pop(old.metadata.uid, None)
            for name, node in self.nodes.items.items():
                if _domain_of(node.metadata) == old.metadata.uid:
                    self.enqueue(_NODE_KEY + name)

    def _labelled_changed(self, old: Any, new: Any) -> None:
        for thing in (old, new):
            uid = _domain_of(thing.metadata) if thing is not None else ""
            if uid in self._key_by_uid:
                self.enqueue(self._key_by_uid[uid])

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        before = (old.metadata.labels or {}) if old is not None else {}
        after = (new.metadata.labels or {}) if new is not None else {}
        names = (DOMAIN_LABEL, NODE_CLIQUE_LABEL)
        if [before.get(name) for name in names] == [after.get(name) for name in names]:
            return
        for uid in {before.get(DOMAIN_LABEL), after.get(DOMAIN_LABEL)}:
            if uid in self._key_by_uid:
                self.enqueue(self._key_by_uid[uid])
        if new is not None and after.get(DOMAIN_LABEL):
            self.enqueue(_NODE_KEY + new.metadata.name)

    async def run(self) -> None:
        """Work, and write events, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.events.run())
            group.create_task(super().run())

    async def reconcile(self, key: str) -> float | None:
        """Bring one domain a step further, or clean one node."""
        if key.startswith(_NODE_KEY):
            return await self._clean_node(key.removeprefix(_NODE_KEY))
        domain = self.domains.get(key)
        if domain is None:
            return None
        if domain.metadata.deletion_timestamp is not None:
            await self._take_down(domain)
            return None
        if DOMAIN_LABEL not in domain.metadata.finalizers:
            await self._set_finalizers(DOMAINS, domain.metadata, [*domain.metadata.finalizers, DOMAIN_LABEL])
            return None  # the change brings us back, with the new revision
        uid = domain.metadata.uid
        targets = {(each.metadata.labels or {}).get(TARGET_LABEL) for each in _labelled(self.templates, uid)}
        if DAEMON_TARGET not in targets:
            await self._make(CLAIM_TEMPLATES, daemon_template(domain), domain)
        if not _labelled(self.sets, uid):
            await self._make(DAEMON_SETS, daemon_set(domain), domain)
        if WORKLOAD_TARGET not in targets:
            await self._make(CLAIM_TEMPLATES, workload_template(domain), domain)
        await self._report(domain)
        return None

    async def _make(self, resource: Resource, body: JsonObject, domain: ComputeDomain) -> None:
        meta = body["metadata"]
        try:
            await self.client.create(resource, body, meta["namespace"])
        except AlreadyExists:
            found = await self.client.get(resource, meta["name"], meta["namespace"])
            if (found["metadata"].get("labels") or {}).get(DOMAIN_LABEL) == domain.metadata.uid:
                return  # our own; the cache does not show it yet
            message = (
                f"{resource.kind} {meta['namespace']}/{meta['name']} exists and does not belong to this ComputeDomain; "
                "delete it, or name another one in spec.channel.resourceClaimTemplate"
            )
            self.events.record(DOMAINS, domain.metadata, "Warning", "TemplateExists", message)
            raise

    # --- cliques and status -------------------------------------------------------

    async def _report(self, domain: ComputeDomain) -> None:
        """Enter the daemons in their cliques, and the cliques in the domain's status."""
        uid = domain.metadata.uid
        pods = daemons_at_work(_labelled(self.pods, uid, NAMESPACE))
        by_clique: dict[str, list[Pod]] = {
            (clique.metadata.labels or {}).get(POD_CLIQUE_LABEL, ""): []
            for clique in _labelled(self.cliques, uid, NAMESPACE)
        }
        for pod in pods:
            node = self.nodes.get(pod.spec.node_name)
            clique_id = ((node.metadata.labels or {}) if node is not None else {}).get(NODE_CLIQUE_LABEL, "")
            by_clique.setdefault(clique_id, []).append(pod)
            if (pod.metadata.labels or {}).get(POD_CLIQUE_LABEL) != clique_id:
                patch = {"metadata": {"labels": {POD_CLIQUE_LABEL: clique_id}}}
                await ignoring_absence(self.client.patch(PODS, pod.metadata.name, patch, NAMESPACE))
        without_fabric = by_clique.pop("", [])
        daemons = {clique: await self._write_clique(uid, clique, mine) for clique, mine in by_clique.items()}
        nodes = domain_nodes(daemons, without_fabric)
        status = overall_status(domain, nodes)
        if (domain.status.status, domain.status.nodes) == (status, nodes):
            return
        body = {"status": {"status": status, "nodes": msgspec.to_builtins(nodes)}}
        await ignoring_absence(
            self.client.patch(
                DOMAINS, domain.metadata.name, body, domain.metadata.namespace, subresource="status"
            )
        )

    async def _write_clique(self, uid: str, clique: str, pods: Sequence[Pod]) -> list[CliqueDaemon]:
        """Write a clique's daemons if they changed; return them."""
        name = clique_name(uid, clique)
        known = self.cliques.get(f"{NAMESPACE}/{name}")
        before = known.daemons if known is not None else []
        daemons = clique_daemons(before, pods, clique)
        if known is not None and daemons == before:
            return daemons
        metadata: JsonObject = {"ownerReferences": owners(pods)}
        body: JsonObject = {"metadata": metadata, "daemons": msgspec.to_builtins(daemons)}
        if known is not None:
            metadata["resourceVersion"] = known.metadata.resource_version
            await ignoring_absence(self.client.patch(CLIQUES, name, body, NAMESPACE))
        elif pods:
            labels = {DOMAIN_LABEL: uid, POD_CLIQUE_LABEL: clique}
            metadata |= {"name": name, "namespace": NAMESPACE, "labels": labels}
            made = {"apiVersion": API_VERSION, "kind": CLIQUES.kind, **body}
            await self.client.create(CLIQUES, made, NAMESPACE)
        return daemons

    # --- the end ----------------------------------------------------------------------

    async def _take_down(self, domain: ComputeDomain) -> None:
        """Remove what belongs to a deleted domain; when nothing is left, let the domain go."""
        meta = domain.metadata
        if DOMAIN_LABEL not in meta.finalizers:
            return
        left: list[tuple[Resource, ObjectMeta]] = [
            *((CLAIM_TEMPLATES, each.metadata) for each in _labelled(self.templates, meta.uid)),
            *((DAEMON_SETS, each.metadata) for each in _labelled(self.sets, meta.uid, NAMESPACE)),
        ]
        for resource, mine in left:
            await self._remove(resource, mine)
        for clique in _labelled(self.cliques, meta.uid, NAMESPACE):
            await ignoring_absence(self.client.delete(CLIQUES, clique.metadata.name, NAMESPACE))
        for name, node in list(self.nodes.items.items()):
            if _domain_of(node.metadata) == meta.uid:
                await self._remove_label(name, node.metadata)
        if not left:
            await self._set_finalizers(DOMAINS, meta, [f for f in meta.finalizers if f != DOMAIN_LABEL])

    async def _remove(self, resource: Resource, meta: ObjectMeta) -> None:
        """Delete an object and let it go; its change brings us back."""
        if meta.deletion_timestamp is None:
            await ignoring_absence(
                self.client.delete(
                    resource, meta.name, meta.namespace, uid=meta.uid, propagation="Background"
                )
            )
        found = await ignoring_absence(self.client.get(resource, meta.name, meta.namespace))
        finalizers = found["metadata"].get("finalizers", []) if found is not None else []
        if found is not None and found["metadata"]["uid"] == meta.uid and DOMAIN_LABEL in finalizers:
            revision = found["metadata"]["resourceVersion"]
            fresh = msgspec.structs.replace(meta, resource_version=revision)
            await self._set_finalizers(resource, fresh, [f for f in finalizers if f != DOMAIN_LABEL])

    async def _set_finalizers(self, resource: Resource, meta: ObjectMeta, finalizers: list[str]) -> None:
        patch = {"metadata": {"resourceVersion": meta.resource_version, "finalizers": finalizers}}
        await ignoring_absence(self.client.patch(resource, meta.name, patch, meta.namespace))

    async def _clean_node(self, name: str) -> float | None:
        """Remove the label of a domain that does not exist: it would keep the node from joining another."""
        node = self.nodes.get(name)
        uid = _domain_of(node.metadata) if node is not None else ""
        if node is None or not uid or uid in self._key_by_uid:
            return None
        # The cache of domains may be behind that of nodes: the server decides.
        found = await self.client.list(DOMAINS, view=ComputeDomain) if self.domains.is_available else None
        if found is None or any(domain.metadata.uid == uid for domain in found.items):
            return None
        log.info("node %s: ComputeDomain %s does not exist; removing its label", name, uid)
        await self._remove_label(name, node.metadata)
        return None

    async def _remove_label(self, name: str, meta: ObjectMeta) -> None:
        patch = {"metadata": {"resourceVersion": meta.resource_version, "labels": {DOMAIN_LABEL: None}}}
        await ignoring_absence(self.client.patch(NODES, name, patch))


def _domain_of(meta: ObjectMeta) -> str:
    """Return the uid of the domain that an object is labelled with; empty: none."""
    return (meta.labels or {}).get(DOMAIN_LABEL, "")


def _labelled(informer: Informer[Any], uid: str, namespace: str | None = None) -> list[Any]:
    """Return the objects of a domain, of one namespace or of all."""
    return [
        each
        for each in informer.items.values()
        if _domain_of(each.metadata) == uid and namespace in (None, each.metadata.namespace)
    ]
