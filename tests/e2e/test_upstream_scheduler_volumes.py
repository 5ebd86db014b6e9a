"""Pods with volumes: what makes one that waits worth another try, and who is evicted for a claim; in our own words.

Ported from test/integration/scheduler v1.37: queueing/queue.go (the part of TestCoreResourceEnqueue on volumes), filters_test.go
(TestUnschedulablePodBecomesSchedulable), preemption/misc (TestReadWriteOncePodPreemption), podgroup_pvc_test.go. As there, no controller binds claims: they are
made as bound ones, or it is seen that the scheduler has chosen a node for a volume that is to be made.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from upstream_scheduler import SCHEDULER, Node, Pod, Rig, running, wanting

from dray.control.scheduling.storage_informers import (
    ATTACHMENTS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    VOLUME_CLAIMS,
)
from dray.scheduler.volumes import SELECTED_NODE

ZONE = "topology.kubernetes.io/zone"
BOUND = {"pv.kubernetes.io/bind-completed": "true"}
MI = "1Mi"
WITHIN = 20.0


class Volumes(Rig):
    """A rig with the words for storage. Names that belong to the cluster carry its number."""

    def named(self, name):
        return f"{name}-{self.number}"

    async def made(self, kind, name, **body):
        body = {"metadata": {"name": self.named(name), **body.pop("metadata", {})}, **body}
        await self.client.create(kind, body)
        self._made.append((kind, self.named(name)))

    async def volume(self, name, *, zone=None, affinity=None, csi=False, storage_class=""):
        """Make a volume that claim `name` of the same number uses."""
        needs = [{"key": key, "operator": "In", "values": [value]} for key, value in (affinity or {}).items()]
        terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": needs}]}}
        source = {"csi": {"driver": self.named("csi"), "volumeHandle": name}}
        spec = {
            "capacity": {"storage": MI},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": storage_class and self.named(storage_class),
            **(source if csi else {"hostPath": {"path": "/tmp"}}),
            **({"nodeAffinity": terms} if needs else {}),
        }
        await self.made(
            PERSISTENT_VOLUMES, name, metadata={"labels": {ZONE: zone} if zone else {}}, spec=spec
        )

    async def claim(self, name, volume="", *, storage_class="", mode="ReadWriteMany"):
        """Make a claim; with a volume it is bound."""
        metadata = {"name": name, "annotations": BOUND if volume else {}}
        spec = {
            "accessModes": [mode],
            "resources": {"requests": {"storage": MI}},
            "storageClassName": storage_class and self.named(storage_class),
            **({"volumeName": self.named(volume)} if volume else {}),
        }
        await self.client.create(VOLUME_CLAIMS, {"metadata": metadata, "spec": spec}, self.namespace)

    async def bound_claim(self, number, **more):
        """Make a volume and a claim that is bound to it."""
        mode = more.pop("mode", "ReadWriteMany")
        await self.volume(f"pv{number}", **more)
        await self.claim(f"pvc{number}", f"pv{number}", mode=mode)

    async def bind(self, name, volume):
        patch = {"metadata": {"annotations": BOUND}, "spec": {"volumeName": self.named(volume)}}
        await self.client.patch(VOLUME_CLAIMS, name, patch, self.namespace)

    async def label_volume(self, name, **labels):
        await self.client.patch(PERSISTENT_VOLUMES, self.named(name), {"metadata": {"labels": labels}})

    async def remove_volume(self, name):
        await self.client.patch(PERSISTENT_VOLUMES, self.named(name), {"metadata": {"finalizers": None}})
        await self.client.delete(PERSISTENT_VOLUMES, self.named(name))
        self._made.remove((PERSISTENT_VOLUMES, self.named(name)))

    async def remove_claim(self, name):
        await self.client.patch(VOLUME_CLAIMS, name, {"metadata": {"finalizers": None}}, self.namespace)
        await self.client.delete(VOLUME_CLAIMS, name, self.namespace)

    async def storage_class(self, zones=(), mode="WaitForFirstConsumer", labels=None):
        terms = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}] if zones else None
        more = {"allowedTopologies": terms} if terms else {}
        await self.made(
            STORAGE_CLASSES,
            "sc",
            metadata={"labels": labels or {}},
            provisioner=self.named("csi"),
            volumeBindingMode=mode,
            **more,
        )

    async def change_class(self, **body):
        await self.client.patch(STORAGE_CLASSES, self.named("sc"), body)

    async def csi_driver(self, *, tells_capacity):
        spec = {"storageCapacity": tells_capacity}
        await self.made(CSI_DRIVERS, "csi", spec=spec)

    async def csi_node(self, name, *limits):
        drivers = [
            {
                "name": self.named("csi"),
                "nodeID": name,
                "topologyKeys": None,
                "allocatable": {"count": each},
            }
            for each in limits
        ]
        await self.made(CSI_NODES, name, spec={"drivers": drivers})

    async def space(self, amount):
        """Say how large volumes of the class can be."""
        body = {
            "metadata": {"name": "space"},
            "storageClassName": self.named("sc"),
            "capacity": amount,
            "nodeTopology": {},
        }
        await self.client.create(CSI_CAPACITIES, body, self.namespace)

    async def change_space(self, amount):
        await self.client.patch(CSI_CAPACITIES, "space", {"capacity": amount}, self.namespace)

    async def selected(self, name):
        """Return the node for which the volume of a claim is to be made."""
        found = await self.client.get(VOLUME_CLAIMS, name, self.namespace)
        return ((found["metadata"].get("annotations") or {}).get(SELECTED_NODE) or "").removesuffix(
            f"-{self.number}"
        )


@dataclass(frozen=True)
class Wake:
    upstream: str
    before: Callable[[Volumes], Awaitable]
    pods: dict  # that wait
    event: Callable[[Volumes], Awaitable]
    bound: dict = field(default_factory=dict)  # pod -> node, after the event; the others still wait
    selected: dict = field(default_factory=dict)  # claim -> node for which its volume is to be made
    nodes: dict = field(default_factory=lambda: {"a": Node({ZONE: "z1"})})
    placed: dict = field(default_factory=dict)

    def __str__(self):
        return self.upstream


def using(*claims, node="", **more):
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    return Pod({"volumes": volumes, **more}, node=node)


def steps(*each):
    """Return a function that does one step after the other; a step is a method's name with its arguments."""

    async def run(rig):
        for name, *args in each:
            named = args.pop() if args and isinstance(args[-1], dict) else {}
            await getattr(rig, name)(*args, **named)

    return run


nothing = steps()
IN_ZONE, ELSEWHERE = {"zone": "z1"}, {"zone": "z2"}
USER = {"pod1": using("pvc1"), "pod2": using("pvc2")}

ZONES = [
    Wake(
        "VolumeZone: the volume is created",
        steps(("claim", "pvc1", "pv1")),
        {"pod1": using("pvc1")},
        steps(("volume", "pv1", IN_ZONE)),
        {"pod1": "a"},
    ),
    Wake(
        "VolumeZone: the volume moves to the zone",
        steps(("bound_claim", 1, ELSEWHERE)),
        {"pod1": using("pvc1")},
        steps(("label_volume", "pv1", {ZONE: "z1"})),
        {"pod1": "a"},
    ),
    Wake(
        "VolumeZone: the claim is created",
        steps(("volume", "pv1", IN_ZONE)),
        USER,
        steps(("claim", "pvc1", "pv1")),
        {"pod1": "a"},
    ),
    Wake(
        "VolumeZone: the claim gets its volume",
        steps(("volume", "pv1", IN_ZONE), ("claim", "pvc1")),
        USER,
        steps(("bind", "pvc1", "pv1")),
        {"pod1": "a"},
    ),
    Wake(
        "VolumeZone: the volume changes and stays where it is",
        steps(("bound_claim", 1, ELSEWHERE)),
        {"pod1": using("pvc1")},
        steps(("label_volume", "pv1", {"unrelated": "label"})),
    ),
]

ONCE = {"mode": "ReadWriteOncePod"}
RESTRICTIONS = [
    Wake(
        "VolumeRestrictions: the claim is created",
        steps(("volume", "pv1")),
        USER,
        steps(("claim", "pvc1", "pv1", ONCE)),
        {"pod1": "a"},
    ),
    Wake(
        "VolumeRestrictions: the pod that has the claim goes",
        steps(("bound_claim", 1, ONCE)),
        {"pod2": using("pvc1"), "pod3": using("pvc2")},
        steps(("delete_pod", "pod1")),
        {"pod2": "a"},
        placed={"pod1": using("pvc1", node="a")},
    ),
]

AFFINE = {"affinity": {"aaa": "ccc"}}
CLASS = {"storage_class": "sc"}
LATE = {"pod1": using("pvc1")}
BINDING = [
    Wake(
        "VolumeBinding: a node comes from which the volume is reached",
        steps(("bound_claim", 1, AFFINE)),
        LATE,
        lambda rig: rig.furnish({"b": Node({"aaa": "ccc"})}),
        {"pod1": "b"},
    ),
    Wake(
        "VolumeBinding: the node gets the label",
        steps(("bound_claim", 1, AFFINE)),
        LATE,
        lambda rig: rig.label_node("a", aaa="ccc"),
        {"pod1": "a"},
    ),
    Wake(
        "VolumeBinding: another volume takes the place of the first",
        steps(("bound_claim", 1, AFFINE)),
        LATE,
        steps(("remove_volume", "pv1"), ("volume", "pv1")),
        {"pod1": "a"},
    ),
    Wake(
        "VolumeBinding: another claim takes the place of the first",
        steps(("volume", "pv1"), ("claim", "pvc1"), ("claim", "pvc2")),
        USER,
        steps(("remove_claim", "pvc1"), ("claim", "pvc1", "pv1")),
        {"pod1": "a"},
    ),
    Wake(
        "VolumeBinding: the StorageClass is created",
        steps(("claim", "pvc1", CLASS)),
        LATE,
        steps(("storage_class",)),
        selected={"pvc1": "a"},
    ),
    Wake(
        "VolumeBinding: the StorageClass allows the zone",
        steps(("storage_class", ["z3"]), ("claim", "pvc1", CLASS)),
        LATE,
        lambda rig: rig.change_class(
            allowedTopologies=[{"matchLabelExpressions": [{"key": ZONE, "values": ["z1"]}]}]
        ),
        selected={"pvc1": "a"},
    ),
    Wake(
        "VolumeBinding: the StorageClass changes otherwise",
        steps(("storage_class", ["z3"]), ("claim", "pvc1", CLASS)),
        LATE,
        lambda rig: rig.change_class(metadata={"labels": {"key": "updated"}}),
    ),
    Wake(
        "VolumeBinding: the driver does not tell its capacity any more",
        steps(("csi_driver", {"tells_capacity": True}), ("storage_class",), ("claim", "pvc1", CLASS)),
        LATE,
        lambda rig: rig.client.patch(CSI_DRIVERS, rig.named("csi"), {"spec": {"storageCapacity": False}}),
        selected={"pvc1": "a"},
    ),
    Wake(
        "VolumeBinding: a driver that has not told its capacity changes",
        steps(("csi_driver", {"tells_capacity": False}), ("storage_class", ["z3"]), ("claim", "pvc1", CLASS)),
        LATE,
        lambda rig: rig.client.patch(CSI_DRIVERS, rig.named("csi"), {"spec": {"storageCapacity": True}}),
    ),
    Wake(
        "VolumeBinding: the driver tells its capacity",
        steps(("csi_driver", {"tells_capacity": True}), ("storage_class",), ("claim", "pvc1", CLASS)),
        LATE,
        steps(("space", "10Mi")),
        selected={"pvc1": "a"},
    ),
    Wake(
        "VolumeBinding: there is more capacity",
        steps(
            ("csi_driver", {"tells_capacity": True}),
            ("storage_class",),
            ("space", "10Ki"),
            ("claim", "pvc1", CLASS),
        ),
        LATE,
        steps(("change_space", "20Mi")),
        selected={"pvc1": "a"},
    ),
    Wake(
        "VolumeBinding: there is less capacity",
        steps(
            ("csi_driver", {"tells_capacity": True}),
            ("storage_class",),
            ("space", "10Ki"),
            ("claim", "pvc1", CLASS),
        ),
        LATE,
        steps(("change_space", "5Ki")),
    ),
]

CSI = {"csi": True}


async def attached(rig):
    """Another volume is attached to the node."""
    await rig.volume("pv9", csi=True)
    spec = {
        "attacher": rig.named("csi"),
        "nodeName": rig.named("a"),
        "source": {"persistentVolumeName": rig.named("pv9")},
    }
    await rig.made(ATTACHMENTS, "attachment", spec=spec)
    await rig.csi_node("a", 1)
    await rig.bound_claim(1, csi=True)


async def detached(rig):
    await rig.client.delete(ATTACHMENTS, rig.named("attachment"))


async def without_limit(rig):
    await rig.client.delete(CSI_NODES, rig.named("a"))
    rig._made.remove((CSI_NODES, rig.named("a")))
    await rig.csi_node("a")


LIMITS = [
    Wake(
        "NodeVolumeLimits: a CSINode without the limit is created",
        steps(("csi_node", "a", 0), ("bound_claim", 1, CSI)),
        LATE,
        without_limit,
        {"pod1": "a"},
    ),
    Wake(
        "NodeVolumeLimits: the pod with the other volume goes",
        steps(("csi_node", "a", 1), ("bound_claim", 1, CSI), ("bound_claim", 2, CSI)),
        {"pod2": using("pvc2")},
        steps(("delete_pod", "pod1")),
        {"pod2": "a"},
        placed={"pod1": using("pvc1", node="a")},
    ),
    Wake(
        "NodeVolumeLimits: the claim is created, and the node has room",
        steps(("csi_node", "a", 2), ("bound_claim", 1, CSI), ("volume", "pv2", CSI)),
        {"pod2": using("pvc2"), "pod3": using("pvc3")},
        steps(("claim", "pvc2", "pv2")),
        {"pod2": "a"},
        placed={"pod1": using("pvc1", node="a")},
    ),
    Wake("NodeVolumeLimits: the attachment is deleted", attached, LATE, detached, {"pod1": "a"}),
]

FILTERS = [
    Wake(
        "filters/TestUnschedulablePodBecomesSchedulable: a pod with the claim for one pod goes",
        steps(("bound_claim", 1, ONCE)),
        {"pod2": using("pvc1")},
        steps(("delete_pod", "pod1")),
        {"pod2": "a"},
        placed={"pod1": using("pvc1", node="a")},
    ),
    Wake(
        "filters/TestUnschedulablePodBecomesSchedulable: the volume is on a node that does not exist",
        steps(("bound_claim", 1, {"affinity": {"kubernetes.io/hostname": "none"}})),
        LATE,
        lambda rig: rig.label_node("a", other="x"),
    ),
    Wake(
        "filters/TestUnschedulablePodBecomesSchedulable: the node of the volume gets its label",
        steps(("bound_claim", 1, {"affinity": {"foo": "bar"}})),
        LATE,
        lambda rig: rig.label_node("a", foo="bar"),
        {"pod1": "a"},
    ),
]


@pytest.mark.parametrize("case", [*ZONES, *RESTRICTIONS, *BINDING, *LIMITS, *FILTERS], ids=str)
async def test_an_event_helps_those_pods_whose_volumes_fit_then(api, case):
    async with Volumes(api) as rig:
        await rig.furnish(case.nodes)
        await case.before(rig)
        for name, each in case.placed.items():
            await rig.run(name, each)
        await rig.start_scheduler(**SCHEDULER)
        for name, each in case.pods.items():
            await rig.run(name, each)
        for name in case.pods:
            await rig.refused(name, words="")
        assert not any([await rig.selected(name) for name in case.selected])
        await case.event(rig)
        assert {name: await rig.bound(name, WITHIN) for name in case.bound} == case.bound
        for name, node in case.selected.items():

            async def chosen(name=name):
                return await rig.selected(name)

            assert await rig.until(chosen, f"a node for {name}", WITHIN) == node
        await asyncio.sleep(0.3)
        await rig.none_bound(*(name for name in case.pods if name not in case.bound))


# --- claims for one pod ---------------------------------------------------------------------------


def with_claims(pod, *claims):
    return Pod(using(*claims).spec, pod.labels, pod.cpu, pod.node, pod.priority, pod.group)


@pytest.mark.parametrize(
    ("placed", "wanted"),
    [
        ({"v1": ("pvc1",)}, ("pvc1",)),
        ({"v1": ("pvc1",), "v2": ("pvc2",)}, ("pvc1", "pvc2")),
        ({"v1": ("pvc1", "pvc2")}, ("pvc1", "pvc2")),
    ],
    ids=["one pod", "two pods", "one pod with two volumes"],
)
async def test_pods_that_have_the_claims_are_evicted(api, placed, wanted):
    """misc/TestReadWriteOncePodPreemption."""
    async with Volumes(api) as rig:
        await rig.furnish({"a": Node()})
        for number in (1, 2):
            await rig.bound_claim(number, mode="ReadWriteOncePod")
        for name, claims in placed.items():
            await rig.run(name, with_claims(running(), *claims))
        await rig.run("bystander", running())
        await rig.start_scheduler(**SCHEDULER)
        await rig.run("p", with_claims(wanting(), *wanted))
        assert await rig.bound("p") == "a"
        assert await rig.left("bystander", *placed) == ["bystander"]


@pytest.mark.parametrize("claims", [("pvc1", "pvc1"), ("pvc1", "pvc2")], ids=["one claim", "a claim each"])
async def test_pods_of_a_gang_do_not_share_a_claim_for_one_pod(api, claims):
    """podgroup_pvc_test/TestPodGroupSchedulingWithReadWriteOncePodPVC."""
    async with Volumes(api) as rig:
        await rig.furnish({"a": Node(), "b": Node()})
        for number in (1, 2):
            await rig.bound_claim(number, mode="ReadWriteOncePod")
        await rig.group("gang", 2)
        await rig.start_scheduler(**SCHEDULER)
        for number, claim in enumerate(claims):
            await rig.run(f"g{number}", with_claims(wanting(priority=0, group="gang"), claim))
        if len(set(claims)) == 2:
            await rig.where("g0", "g1")
            return
        for name in ("g0", "g1"):
            await rig.refused(name, words="")
        await rig.none_bound("g0", "g1")
