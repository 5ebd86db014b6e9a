"""Cases in the manner of Kubernetes' test/integration/scheduler, run from outside on kube-apiserver.

A case makes nodes, pods that run already, then the pods under test, and says where they may go. Names of nodes are written `@name` in specs,
because every case has nodes of its own.
"""

import asyncio
from dataclasses import dataclass, field

from clusters import Cluster

from dray.api.features import Features
from dray.client import resources as kinds

GATES = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true,TaintTolerationComparisonOperators=true"
SCHEDULER = {"features": Features.default().switched(on=["GenericWorkload"])}
EXISTS_FOO = {"matchExpressions": [{"key": "foo", "operator": "Exists"}]}


@dataclass(frozen=True)
class Node:
    labels: dict = field(default_factory=dict)
    taints: tuple = ()
    cpu: str = "8"
    pods: str = "20"
    images: tuple = ()
    declared: tuple = ()
    unschedulable: bool = False


@dataclass(frozen=True)
class Pod:
    spec: dict = field(default_factory=dict)
    labels: dict = field(default_factory=dict)
    cpu: str = ""
    node: str = ""  # it runs there already
    priority: int = 0
    group: str = ""

    def on(self, node):
        return Pod(self.spec, self.labels, self.cpu, node, self.priority, self.group)


@dataclass(frozen=True)
class Case:
    upstream: str  # file and test, then the case in short
    nodes: dict
    placed: dict = field(default_factory=dict)
    pod: Pod = field(default_factory=Pod)
    to: tuple | None = None  # nodes of which one is taken; None means: it stays unschedulable
    services: tuple = ()  # selectors

    def __str__(self):
        return self.upstream


def located(value, number):
    """Replace `@name` by the name that the node has in this case."""
    if isinstance(value, dict):
        return {key: located(each, number) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [located(each, number) for each in value]
    return f"{value[1:]}-{number}" if isinstance(value, str) and value.startswith("@") else value


class Rig(Cluster):
    """A cluster with the words of the cases."""

    async def furnish(self, nodes):
        for name, each in nodes.items():
            full = await self.node(
                name,
                labels=located(each.labels, self.number),
                taints=each.taints,
                allocatable={"cpu": each.cpu, "pods": each.pods},
                declared=each.declared,
                unschedulable=each.unschedulable,
            )
            if each.images:
                images = [{"names": [image], "sizeBytes": size} for image, size in each.images]
                await self.client.patch(
                    kinds.NODES, full, {"status": {"images": images}}, subresource="status"
                )

    async def priority(self, value, policy="PreemptLowerPriority"):
        """Return the name of a class of this priority."""
        name = f"p{value}-{policy.lower()}-{self.number}"
        if (kinds.PRIORITY_CLASSES, name) not in self._made:
            body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            await self.client.create(kinds.PRIORITY_CLASSES, body)
            self._made.append((kinds.PRIORITY_CLASSES, name))
        return name

    async def run(self, name, each, **more):
        """Create a pod of a case."""
        spec = located({**each.spec, **more}, self.number)
        if each.priority:
            policy = spec.pop("preemptionPolicy", "PreemptLowerPriority")
            spec["priorityClassName"] = await self.priority(each.priority, policy)
        if each.node:
            spec["nodeName"] = f"{each.node}-{self.number}"
        if each.group:
            spec["schedulingGroup"] = {"podGroupName": each.group}
        resources = {"requests": {"cpu": each.cpu}} if each.cpu else None
        await self.pod(name, labels=each.labels, resources=resources, **spec)

    async def group(self, name, min_count=None, *, priority=0, topology=None, all_together=False, **spec):
        """Create a PodGroup; without `min_count` it has the basic policy."""
        body = {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {
                "schedulingPolicy": {"gang": {"minCount": min_count}} if min_count else {"basic": {}},
                **spec,
            },
        }
        if topology:
            body["spec"]["schedulingConstraints"] = {"topology": [{"key": topology}]}
        if all_together:
            body["spec"]["disruptionMode"] = {"all": {}}
        if priority:
            body["spec"]["priorityClassName"] = await self.priority(priority)

        async def admitted():
            try:
                return await self.client.create(kinds.POD_GROUPS, body, self.namespace)
            except Exception as error:
                if "no PriorityClass" not in str(error):
                    raise
                return None

        await self.until(admitted, f"the priority class of group {name}")

    async def where(self, *names):
        """Return the nodes of pods that must be bound."""
        return [await self.bound(name) for name in names]

    async def none_bound(self, *names):
        assert [(await self.get_pod(name))["spec"].get("nodeName") for name in names] == [None] * len(names)

    # --- what happens in a cluster ------------------------------------------------

    async def change_node(self, name, body, subresource=""):
        await self.client.patch(kinds.NODES, f"{name}-{self.number}", body, subresource=subresource)

    async def grow(self, name, **resources):
        """Change the capacity of a node."""
        status = {"capacity": resources, "allocatable": resources}
        await self.change_node(name, {"status": status}, "status")

    async def label_node(self, name, **labels):
        await self.change_node(name, {"metadata": {"labels": located(labels, self.number)}})

    async def taint_node(self, name, *taints):
        await self.change_node(name, {"spec": {"taints": list(taints) or None}})

    async def drop_node(self, name):
        await self.client.delete(kinds.NODES, f"{name}-{self.number}")

    async def change_pod(self, name, body, subresource=""):
        await self.client.patch(kinds.PODS, name, body, self.namespace, subresource=subresource)

    async def label_pod(self, name, **labels):
        await self.change_pod(name, {"metadata": {"labels": labels}})

    async def number_bound(self, count, *names):
        """Wait until so many of these pods are bound, and no more are a moment later; return their nodes."""

        async def condition():
            found = (await self.client.list(kinds.PODS, self.namespace)).items
            where = {
                each["metadata"]["name"]: each["spec"]["nodeName"].removesuffix(f"-{self.number}")
                for each in found
                if each["metadata"]["name"] in names and each["spec"].get("nodeName")
            }
            return where if len(where) >= count else None

        await self.until(condition, f"{count} pods bound")
        await asyncio.sleep(0.5)
        where = await condition()
        assert len(where) == count
        return where

    async def left(self, *names):
        """Return which of these pods are there and not ending."""
        found = (await self.client.list(kinds.PODS, self.namespace)).items
        return sorted(
            each["metadata"]["name"]
            for each in found
            if each["metadata"]["name"] in names and not each["metadata"].get("deletionTimestamp")
        )


async def judge(peer, case):
    """Run one case of a table."""
    async with Rig(peer) as rig:
        await rig.furnish(case.nodes)
        for name, each in case.placed.items():
            await rig.run(name, each)
        for number, selector in enumerate(case.services):
            body = {
                "metadata": {"name": f"s{number}"},
                "spec": {"selector": selector, "ports": [{"port": 80}]},
            }
            await rig.client.call("POST", f"/api/v1/namespaces/{rig.namespace}/services", body, view=None)
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", case.pod)
        if case.to is None:
            await rig.refused("p", words="")
            await rig.none_bound("p")
        else:
            assert await rig.bound("p") in case.to


# --- words of specs ------------------------------------------------------------------------------

HOST = "kubernetes.io/hostname"

TWO = {"a": Node({"zone": "x"}), "b": Node({"zone": "y"})}

FOO = {"foo": ""}
ONE = {"a": Node(cpu="1")}
WIDE = {"a": Node(cpu="2"), "b": Node(cpu="2")}


def term(selector, key="zone", **more):
    return {"labelSelector": selector, "topologyKey": key, **more}


def matching(**labels):
    return {"matchLabels": labels}


def near(*terms):
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def away(*terms):
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def both(near_terms, away_terms):
    return {"affinity": {**near(*near_terms)["affinity"], **away(*away_terms)["affinity"]}}


def prefer(kind, *terms):
    weighted = [{"weight": weight, "podAffinityTerm": each} for weight, each in terms]
    return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}}


def expression(key, operator, *values):
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def requiring(*needs, fields=()):
    terms = [{"matchExpressions": list(needs), **({"matchFields": list(fields)} if fields else {})}]
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        }
    }


def taint(value="v", effect="NoSchedule", key="k"):
    return {"key": key, "value": value, "effect": effect}


def tolerating(*tolerations):
    return {"tolerations": list(tolerations)}


def toleration(operator="Equal", value="v", key="k", effect="NoSchedule"):
    return {
        "key": key,
        "operator": operator,
        **({"value": value} if value is not None else {}),
        **({"effect": effect} if effect else {}),
    }


def spread(skew, key, selector=EXISTS_FOO, action="DoNotSchedule", **more):
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": action,
        "labelSelector": selector,
        **more,
    }


def rules(*constraints, **more):
    return {"topologySpreadConstraints": list(constraints), **more}


def ports(*numbers, init=(), sidecar=False):
    def container(name, number):
        return {"name": name, "image": "pause", "ports": [{"containerPort": 80, "hostPort": number}]}

    found = {"containers": [container(f"c{number}", each) for number, each in enumerate(numbers)]}
    if init:
        found["initContainers"] = [
            {**container(f"i{number}", each), **({"restartPolicy": "Always"} if sidecar else {})}
            for number, each in enumerate(init)
        ]
    return found


def running(cpu="1", node="a", priority=0, group="", app="", spec=None, **labels):
    return Pod(spec or {}, {**labels, **({"app": app} if app else {})}, cpu, node, priority, group)


def wanting(cpu="1", priority=100, group="", spec=None, **labels):
    return Pod(spec or {}, labels, cpu, "", priority, group)


def in_rack(*names, cpu="1", rack="r0"):
    return {name: Node({"rack": rack}, cpu=cpu) for name in names}
