"""Cases in the manner of Kubernetes' test/integration/scheduler, run from outside on kube-apiserver.

A case makes nodes, pods that run already, then the pods under test, and says where they may go. Names of nodes are written `@name` in specs,
because every case has nodes of its own.
"""

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
