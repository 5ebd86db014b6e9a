"""Volumes on a real kube-apiserver: bound, bound to a free volume, made for the node, ephemeral, for one pod only.

Kubernetes' own volume controller binds claims; provisioners are played by the test.
"""

import asyncio

import pytest
from clusters import Cluster

from dray.client import resources as kinds
from dray.control.scheduling.storage_informers import PERSISTENT_VOLUMES, STORAGE_CLASSES, VOLUME_CLAIMS
from dray.scheduler.volumes import SELECTED_NODE

pytestmark = pytest.mark.kubernetes


class Storage:
    """Words for storage objects of one test."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.client = cluster.client
        self.class_name = f"class-{cluster.number}"

    async def storage_class(self, provisioner="kubernetes.io/no-provisioner", mode="WaitForFirstConsumer"):
        body = {
            "metadata": {"name": self.class_name},
            "provisioner": provisioner,
            "volumeBindingMode": mode,
        }
        await self.client.create(STORAGE_CLASSES, body)
        self.cluster._made.append((STORAGE_CLASSES, self.class_name))

    async def volume(self, name, node, size="1Gi", modes=("ReadWriteOnce",), **spec):
        """Make a volume that one node can reach."""
        name = f"{name}-{self.cluster.number}"
        needs = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
        body = {
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": list(modes),
                "storageClassName": self.class_name,
                "local": {"path": "/mnt"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": needs}]}},
                "persistentVolumeReclaimPolicy": "Retain",
                **spec,
            },
        }
        await self.client.create(PERSISTENT_VOLUMES, body)
        self.cluster._made.append((PERSISTENT_VOLUMES, name))

        async def is_known():
            phase = (await self.client.get(PERSISTENT_VOLUMES, name))["status"].get("phase")
            return phase in ("Available", "Bound")

        await self.cluster.until(is_known, f"volume {name} available")
        return name

    async def claim(self, name, size="1Gi", modes=("ReadWriteOnce",)):
        body = {
            "metadata": {"name": name},
            "spec": {
                "accessModes": list(modes),
                "resources": {"requests": {"storage": size}},
                "storageClassName": self.class_name,
            },
        }
        await self.client.create(VOLUME_CLAIMS, body, self.cluster.namespace)

    async def get_claim(self, name):
        return await self.client.get(VOLUME_CLAIMS, name, self.cluster.namespace)

    async def selected(self, name):
        """Wait until the scheduler has chosen a node for the volume of a claim."""

        async def condition():
            return ((await self.get_claim(name))["metadata"].get("annotations") or {}).get(SELECTED_NODE)

        return await self.cluster.until(condition, f"a node for claim {name}")

    async def provision(self, name, node):
        """Do what a provisioner does: make a volume for the claim."""
        claim = (await self.get_claim(name))["metadata"]
        reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "uid": claim["uid"]}
        reference |= {"namespace": claim["namespace"], "name": name}
        return await self.volume(f"made-{name}", node, claimRef=reference)


def using(*claims):
    return [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]


async def test_a_bound_volume_pins_the_pod_to_its_node(kubernetes_peer):
    async with Cluster(kubernetes_peer) as cluster:
        storage = Storage(cluster)
        await storage.storage_class(mode="Immediate")
        await cluster.node("a")
        node = await cluster.node("b")
        await cluster.start_scheduler()
        await cluster.pod("user", volumes=using("data"), nodeSelector={"case": cluster.namespace})
        await cluster.refused("user", words='persistentvolumeclaim "data" not found')
        await storage.claim("data")
        await cluster.refused("user", words="pod has unbound immediate PersistentVolumeClaims")
        await storage.volume("pv", node)
        assert await cluster.bound("user") == "b"


async def test_a_claim_that_waits_is_bound_to_a_free_volume_of_the_node_with_the_device(kubernetes_peer):
    async with Cluster(kubernetes_peer) as cluster:
        storage = Storage(cluster)
        await storage.storage_class()
        first, second = await cluster.node("a"), await cluster.node("b")
        await cluster.device_class()
        await cluster.devices(second, "gpu-0")
        for node in (first, second):
            await storage.volume(f"disk-{node}", node)
        await storage.claim("data")
        await cluster.claim("gpu", {"name": "gpu", "deviceClassName": f"gpu-{cluster.number}"})
        await cluster.start_scheduler()
        await cluster.pod("train", claims=["gpu"], volumes=using("data"))
        assert await cluster.bound("train") == "b"
        claim = await storage.get_claim("data")
        assert claim["spec"]["volumeName"] == f"disk-{second}-{cluster.number}"
        assert claim["status"]["phase"] == "Bound"
        await storage.claim("more")
        await cluster.pod("late", volumes=using("more"), nodeSelector={"kubernetes.io/hostname": second})
        text = await cluster.refused("late", words="didn't find available persistent volumes to bind")
        assert text.startswith("0/")
        await storage.volume("another", second)
        assert await cluster.bound("late") == "b"


async def test_a_volume_is_made_for_the_node_and_elsewhere_when_that_fails(kubernetes_peer):
    async with Cluster(kubernetes_peer) as cluster:
        storage = Storage(cluster)
        await storage.storage_class("disk.example.com")
        names = [await cluster.node("a"), await cluster.node("b")]
        await storage.claim("data")
        await cluster.start_scheduler()
        await cluster.pod("user", volumes=using("data"), nodeSelector={"case": cluster.namespace})
        node = await storage.selected("data")
        assert node in names
        await asyncio.sleep(0.5)
        assert "nodeName" not in (await cluster.get_pod("user"))["spec"], "not before the volume is there"
        # The provisioner fails: it removes the annotation.
        await cluster.client.patch(
            VOLUME_CLAIMS, "data", {"metadata": {"annotations": {SELECTED_NODE: None}}}, cluster.namespace
        )
        await cluster.client.patch(kinds.NODES, node, {"spec": {"unschedulable": True}})
        other = next(each for each in names if each != node)

        async def moved():
            return await storage.selected("data") == other

        await cluster.until(moved, "another node")
        await storage.provision("data", other)
        assert await cluster.bound("user") == other.removesuffix(f"-{cluster.number}")


async def test_an_ephemeral_volume_is_made_for_its_pod(kubernetes_peer):
    async with Cluster(kubernetes_peer) as cluster:
        storage = Storage(cluster)
        await storage.storage_class("disk.example.com")
        await cluster.node("a")
        await cluster.start_scheduler()
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage.class_name,
        }
        volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]
        await cluster.pod("job", volumes=volumes, nodeSelector={"case": cluster.namespace})

        async def selected():
            claims = (await cluster.client.list(VOLUME_CLAIMS, cluster.namespace)).items
            return claims and (claims[0]["metadata"].get("annotations") or {}).get(SELECTED_NODE)

        node = await cluster.until(selected, "a node for the ephemeral volume")
        await storage.provision("job-scratch", node)
        assert await cluster.bound("job") == "a"


async def test_a_claim_for_one_pod_waits_until_that_pod_is_gone(kubernetes_peer):
    async with Cluster(kubernetes_peer) as cluster:
        storage = Storage(cluster)
        await storage.storage_class()
        node = await cluster.node("a")
        await storage.volume("pv", node, modes=("ReadWriteOncePod",))
        await storage.claim("data", modes=("ReadWriteOncePod",))
        await cluster.start_scheduler()
        await cluster.pod("first", volumes=using("data"))
        assert await cluster.bound("first") == "a"
        await cluster.pod("second", volumes=using("data"))
        await cluster.refused("second", words="ReadWriteOncePod access mode already in-use by another pod")
        await cluster.delete_pod("first")
        assert await cluster.bound("second") == "a"
