"""Volumes for the chaos tests: who plays the volume controller and the provisioner, and a judge.

Claims wait for the node of their pod. Some are bound to local volumes of that node, some get a volume that is made for it (now and then that fails, and
another node must be chosen), and one claim is for one pod only. A claim goes with its pod; its local volume is free again then.

What may never be seen: a pod on a node whose claim has no volume, or one that the node cannot reach; a volume with two claims; two pods with the claim for one.
"""

import asyncio
import contextlib
from collections import Counter

from dray.client import ClientError, NotFound
from dray.client import resources as kinds
from dray.control.scheduling.storage_informers import PERSISTENT_VOLUMES, STORAGE_CLASSES, VOLUME_CLAIMS
from dray.scheduler.volumes import BIND_COMPLETED, SELECTED_NODE

LOCAL_PER_NODE = 3
FAILURES = 0.1  # of volumes that are to be made
_SIZE = {"storage": "1Gi"}


class Volumes:
    """Storage objects of one storm."""

    def __init__(self, cluster, client, chance):
        self.cluster, self.chance = cluster, chance
        self.client = client
        self.problems = []
        self.bound = 0  # claims that got a volume
        self.refused = 0  # volumes that could not be made

    def _name(self, text):
        return f"{text}-{self.cluster.number}"

    async def furnish(self, nodes):
        for name, provisioner in (("local", "kubernetes.io/no-provisioner"), ("made", "disk.example.com")):
            body = {"metadata": {"name": self._name(name)}, "provisioner": provisioner}
            await self.client.create(STORAGE_CLASSES, {**body, "volumeBindingMode": "WaitForFirstConsumer"})
            self.cluster._made.append((STORAGE_CLASSES, self._name(name)))
        for node in nodes:
            for number in range(LOCAL_PER_NODE):
                await self._volume(f"local-{node}-{number}", node, "local")
        await self._claim("solo", "made", "ReadWriteOncePod")

    async def _volume(self, name, node, storage_class, **spec):
        needs = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
        body = {
            "metadata": {"name": name},
            "spec": {
                "capacity": _SIZE,
                "accessModes": ["ReadWriteOncePod" if spec.pop("is_for_one", False) else "ReadWriteOnce"],
                "storageClassName": self._name(storage_class),
                "local": {"path": "/mnt"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": needs}]}},
                "persistentVolumeReclaimPolicy": "Retain",
                **spec,
            },
            "status": {"phase": "Available"},
        }
        await self.client.create(PERSISTENT_VOLUMES, body)
        await self._phase(name, "Available")
        self.cluster._made.append((PERSISTENT_VOLUMES, name))

    async def _phase(self, name, phase):
        await self.client.patch(PERSISTENT_VOLUMES, name, {"status": {"phase": phase}}, subresource="status")

    async def _claim(self, name, storage_class, mode="ReadWriteOnce"):
        spec = {
            "accessModes": [mode],
            "resources": {"requests": _SIZE},
            "storageClassName": self._name(storage_class),
        }
        body = {"metadata": {"name": name}, "spec": spec}
        await self.client.create(VOLUME_CLAIMS, body, self.cluster.namespace)

    async def of_pod(self, name):
        """Return what the spec of a new pod says of volumes; often nothing."""
        kind = self.chance.choice(["none"] * 5 + ["local", "local", "made", "solo"])
        if kind == "none":
            return {}
        if kind != "solo":
            await self._claim(name, kind)
        source = {"claimName": "solo" if kind == "solo" else name}
        return {"volumes": [{"name": "data", "persistentVolumeClaim": source}]}

    async def pod_left(self, name):
        with contextlib.suppress(NotFound):
            await self.client.delete(VOLUME_CLAIMS, name, self.cluster.namespace)

    # --- the controller -------------------------------------------------------------

    async def run(self):
        """Play the volume controller, and judge, until cancelled."""
        while True:
            with contextlib.suppress(ClientError):
                await self._judge()
                await self._turn()
            await asyncio.sleep(0.1)

    async def _listed(self):
        volumes = {
            each["metadata"]["name"]: each
            for each in (await self.client.list(PERSISTENT_VOLUMES)).items
            if each["spec"]["storageClassName"] in (self._name("local"), self._name("made"))
        }
        return volumes, (await self.client.list(VOLUME_CLAIMS, self.cluster.namespace)).items

    async def _turn(self):
        volumes, claims = await self._listed()
        uids = {each["metadata"]["uid"] for each in claims}
        for name, volume in volumes.items():
            reference = volume["spec"].get("claimRef")
            if reference is not None and reference["uid"] not in uids:
                await self._recycle(name, volume)
        by_claim = {
            each["spec"]["claimRef"]["uid"]: name
            for name, each in volumes.items()
            if each["spec"].get("claimRef")
        }
        for claim in claims:
            meta = claim["metadata"]
            annotations = meta.get("annotations") or {}
            if BIND_COMPLETED in annotations:
                continue
            if meta["uid"] in by_claim:
                await self._bind(meta, by_claim[meta["uid"]])
            elif annotations.get(SELECTED_NODE):
                await self._make(claim, annotations[SELECTED_NODE])

    async def _recycle(self, name, volume):
        """The claim is gone. The list may be older than a claim that the scheduler has chosen meanwhile."""
        guard = {"resourceVersion": volume["metadata"]["resourceVersion"]}
        if name.startswith("local-"):
            await self.client.patch(PERSISTENT_VOLUMES, name, {"metadata": guard, "spec": {"claimRef": None}})
            await self._phase(name, "Available")
        else:
            await self.client.delete(PERSISTENT_VOLUMES, name)

    async def _bind(self, meta, volume):
        await self._phase(volume, "Bound")
        body = {
            "metadata": {"uid": meta["uid"], "annotations": {BIND_COMPLETED: "yes"}},
            "spec": {"volumeName": volume},
        }
        await self.client.patch(VOLUME_CLAIMS, meta["name"], body, self.cluster.namespace)
        status = {"status": {"phase": "Bound"}}
        await self.client.patch(
            VOLUME_CLAIMS, meta["name"], status, self.cluster.namespace, subresource="status"
        )
        self.bound += 1

    async def _make(self, claim, node):
        meta, spec = claim["metadata"], claim["spec"]
        if self.chance.random() < FAILURES:
            body = {"metadata": {"uid": meta["uid"], "annotations": {SELECTED_NODE: None}}}
            await self.client.patch(VOLUME_CLAIMS, meta["name"], body, self.cluster.namespace)
            self.refused += 1
            return
        reference = {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            **{key: meta[key] for key in ("namespace", "name", "uid")},
        }
        is_for_one = "ReadWriteOncePod" in spec["accessModes"]
        await self._volume(f"made-{meta['uid']}", node, "made", claimRef=reference, is_for_one=is_for_one)

    # --- the judge ------------------------------------------------------------------

    async def _judge(self):
        """Look at pods first: what was there when a pod was bound is there later, too."""
        pods = (await self.client.list(kinds.PODS, self.cluster.namespace)).items
        volumes, claims = await self._listed()
        by_name = {each["metadata"]["name"]: each for each in claims}
        taken = Counter(each["spec"]["volumeName"] for each in claims if each["spec"].get("volumeName"))
        self.problems += [f"volume {name} has {count} claims" for name, count in taken.items() if count > 1]
        users = Counter()
        for pod in pods:
            node = pod["spec"].get("nodeName")
            for each in pod["spec"].get("volumes") or () if node else ():
                name = each.get("persistentVolumeClaim", {}).get("claimName", "")
                users[name] += 1
                if name in by_name:
                    self._check(pod["metadata"]["name"], node, by_name[name], volumes)
        if users["solo"] > 1:
            self.problems.append(f"{users['solo']} pods use the claim that is for one")

    def _check(self, pod, node, claim, volumes):
        name = claim["metadata"]["name"]
        volume = volumes.get(claim["spec"].get("volumeName", ""))
        if volume is None:
            self.problems.append(f"pod {pod} is bound to {node}, and its claim {name} has no volume")
            return
        [term] = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        if node not in term["matchExpressions"][0]["values"]:
            volume_name = volume["metadata"]["name"]
            self.problems.append(f"pod {pod} is bound to {node}, which cannot reach volume {volume_name}")
