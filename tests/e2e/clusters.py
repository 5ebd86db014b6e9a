"""A cluster for one test: short words to make objects, wait, and judge the result."""

import asyncio
import itertools
import time

import checker

from dray.client import Client, Forbidden, NotFound
from dray.client import resources as kinds
from dray.control.scheduling import SchedulerOptions, SchedulingLoop

PATIENCE = 60.0  # seconds for what happens at once; a loaded machine is slow, not wrong

_numbers = itertools.count(int(time.time()) % 100_000)


class Cluster:
    """Objects of one test, with a name of its own so that tests do not meet."""

    def __init__(self, peer):
        self.peer = peer
        self.number = next(_numbers)
        self.namespace = f"case-{self.number}"
        self.driver = f"gpu-{self.number}.example.com"
        self.scheduler_name = f"dray-{self.number}"
        self.client = Client.connect(peer.kubeconfig)
        self.loops = []
        self._made = []
        self._tasks = []

    async def __aenter__(self):
        await self.client.create(kinds.NAMESPACES, {"metadata": {"name": self.namespace}})
        return self

    async def __aexit__(self, kind, *_):
        try:
            if kind is None:
                assert await self.problems() == []
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for pod in (await self.client.list(kinds.PODS, self.namespace)).items:
                await self._drop(kinds.PODS, pod["metadata"]["name"], self.namespace)
            for resource, name in reversed(self._made):
                await self._drop(resource, name)
            await self._drop(kinds.NAMESPACES, self.namespace)
            await self.client.close()

    async def _drop(self, resource, name, namespace=None):
        try:
            await self.client.delete(resource, name, namespace, grace_seconds=0)
        except NotFound:
            pass

    # --- making ---------------------------------------------------------------

    async def start_scheduler(self, *, wrap=None, now=None, **options):
        """Run a scheduler in this process, until the test ends.

        `wrap` puts something between the scheduler and the server, `now` is its wall clock.
        """
        options = {"name": self.scheduler_name, **options}
        client = Client.connect(self.peer.kubeconfig)
        client.transport = wrap(client.transport) if wrap is not None else client.transport
        clock = {"now": now} if now is not None else {}
        loop = SchedulingLoop(client, SchedulerOptions(**options), **clock)

        async def run():
            async with loop.client:
                await loop.run()

        task = asyncio.create_task(run())
        self._tasks.append(task)
        self.loops.append(loop)
        ready = asyncio.create_task(loop.is_ready.wait())
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        if task.done():
            task.result()
        assert loop.is_ready.is_set()
        return loop

    def stop_scheduler(self, position=-1):
        """Stop a scheduler as if it were killed: nothing is cleaned up."""
        self._tasks[position].cancel()

    async def node(self, name, labels=None, taints=(), allocatable=None, declared=(), **spec):
        """Make a node that is ready; `declared` are the features its kubelet can do."""
        name = f"{name}-{self.number}"
        allocatable = {"cpu": "8", "memory": "32Gi", "pods": "20", **(allocatable or {})}
        body = {
            "metadata": {
                "name": name,
                "labels": {"case": self.namespace, "kubernetes.io/hostname": name, **(labels or {})},
            },
            "spec": {"taints": list(taints), **spec},
            "status": {
                "capacity": allocatable,
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                **({"declaredFeatures": sorted(declared)} if declared else {}),
            },
        }
        await self.client.create(kinds.NODES, body)
        self._made.append((kinds.NODES, name))
        await self.client.patch(kinds.NODES, name, {"spec": {"taints": list(taints) or None}})
        return name

    async def devices(self, node, *devices, pool=None, generation=1, count=1, name=None, **spec):
        """Publish devices of a node; a device is a name or a dict."""
        name = name or f"{node or pool}-{next(_numbers)}"
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {
                "driver": self.driver,
                "nodeName": node,
                "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": count},
                "devices": [each if isinstance(each, dict) else {"name": each} for each in devices],
                **spec,
            },
        }
        if node is None:
            del body["spec"]["nodeName"]
        if not devices:
            del body["spec"]["devices"]
        await self.client.create(kinds.SLICES, body)
        self._made.append((kinds.SLICES, name))
        return name

    async def device_class(self, name="gpu", *selectors, **spec):
        """Offer the devices of this test's driver."""
        name = f"{name}-{self.number}"
        expressions = [f"device.driver == '{self.driver}'", *selectors]
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": each}} for each in expressions], **spec},
        }
        await self.client.create(kinds.DEVICE_CLASSES, body)
        self._made.append((kinds.DEVICE_CLASSES, name))
        return name

    async def claim(self, name, *requests, constraints=()):
        """Make a claim; a request is a dict as in the API (its `exactly` may be given flat)."""
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": claim_spec(*requests, constraints=constraints),
        }
        return await self.client.create(kinds.CLAIMS, body, self.namespace)

    async def template(self, name, *requests, constraints=()):
        """Make a template of claims."""
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name},
            "spec": {"spec": claim_spec(*requests, constraints=constraints)},
        }
        return await self.client.create(kinds.CLAIM_TEMPLATES, body, self.namespace)

    async def pod(self, name, claims=(), templates=(), resources=None, labels=None, pod_level=None, **spec):
        """Make a pod of this test's scheduler; claims and templates by name, `pod_level` are resources of the pod as a whole."""
        entries = [{"name": each, "resourceClaimName": each} for each in claims]
        entries += [{"name": each, "resourceClaimTemplateName": each} for each in templates]
        container = {"name": "main", "image": "registry.example/pause", "resources": dict(resources or {})}
        if entries:
            container["resources"]["claims"] = [{"name": each["name"]} for each in entries]
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {
                "schedulerName": self.scheduler_name,
                "containers": [container],
                "resourceClaims": entries,
                "terminationGracePeriodSeconds": 0,
                **({"resources": pod_level} if pod_level else {}),
                **spec,
            },
        }

        async def admitted():
            try:
                return await self.client.create(kinds.PODS, body, self.namespace)
            except Forbidden as error:
                # kube-apiserver admits pods from a cache: a class made a moment ago may not be there yet.
                if "no PriorityClass" not in str(error):
                    raise
                return None

        return await self.until(admitted, f"the priority class of pod {name}")

    async def delete_pod(self, name):
        """Delete a pod at once."""
        await self.client.delete(kinds.PODS, name, self.namespace, grace_seconds=0)

    # --- waiting and looking ---------------------------------------------------

    async def until(self, condition, what, timeout=PATIENCE):
        """Wait for an async condition; its true value is returned."""
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            value = await condition()
            if value:
                return value
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.result()
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"not within {timeout} s: {what}")
            await asyncio.sleep(0.05)

    async def get_pod(self, name):
        """Read a pod."""
        return await self.client.get(kinds.PODS, name, self.namespace)

    async def get_claim(self, name):
        """Read a claim."""
        return await self.client.get(kinds.CLAIMS, name, self.namespace)

    async def claim_of(self, pod):
        """Read the claim that was made for a pod's (first) template entry."""
        statuses = (await self.get_pod(pod))["status"].get("resourceClaimStatuses") or []
        return await self.get_claim(statuses[0]["resourceClaimName"])

    async def bound(self, name, timeout=PATIENCE):
        """Wait until a pod is bound; return the node's name as the test gave it."""

        async def condition():
            return (await self.get_pod(name))["spec"].get("nodeName")

        try:
            node = await self.until(condition, f"pod {name} bound", timeout)
        except AssertionError as error:
            status = (await self.get_pod(name))["status"]
            raise AssertionError(f"{error}; {status.get('conditions')}") from None
        return node.removesuffix(f"-{self.number}")

    async def delete_group(self, name):
        """Delete a PodGroup that pods use: servers protect it by a finalizer, which whoever uses force removes."""
        patch = {"metadata": {"finalizers": None}}
        await self.client.patch(kinds.POD_GROUPS, name, patch, self.namespace)
        await self.client.delete(kinds.POD_GROUPS, name, self.namespace)
        self._made = [each for each in self._made if each[0] != kinds.POD_GROUPS]

    async def refused(self, name, timeout=PATIENCE, *, words="0/"):
        """Wait until a pod is reported as unschedulable in these words; return the message.

        Before the verdict ("0/3 nodes ...") there may be others: that it waits for its claim, for example.
        """
        said = []

        async def condition():
            for each in (await self.get_pod(name))["status"].get("conditions") or ():
                if each["type"] == "PodScheduled" and each["status"] == "False":
                    said[:] = [each["message"]]
                    return each["message"] if words in each["message"] else None
            return None

        try:
            return await self.until(condition, f"pod {name} refused: {words}", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; {said}") from None

    async def held(self, claim):
        """Return the devices that a claim holds, sorted."""
        return sorted(each["device"] for each in checker.results_of(await self.get_claim(claim)))

    async def _used(self):
        """Read pods and claims."""
        pods = (await self.client.list(kinds.PODS, self.namespace)).items
        return pods, (await self.client.list(kinds.CLAIMS, self.namespace)).items

    async def problems(self):
        """Let the independent checker judge everything of this test."""
        for _ in range(50):
            pods, claims = await self._used()
            slices = [
                each
                for each in (await self.client.list(kinds.SLICES)).items
                if each["spec"]["driver"] == self.driver
            ]
            # What changed while it was read fits together by chance only: then look again.
            if (pods, claims) == await self._used():
                break
            await asyncio.sleep(0.1)
        published = {(each["spec"]["driver"], each["spec"]["pool"]["name"]) for each in slices}
        # Devices that a test withdrew on purpose are not the scheduler's fault.
        claims = [
            each
            for each in claims
            if all((r["driver"], r["pool"]) in published for r in checker.results_of(each))
        ]
        return checker.check_state(
            slices=slices,
            classes=(await self.client.list(kinds.DEVICE_CLASSES)).items,
            claims=claims,
            pods=[] if len(claims) == 0 else pods,
            nodes=(await self.client.list(kinds.NODES)).items,
        )


async def changes(client, resource, namespace, version):
    """Yield every change after a revision. A server may end a watch whenever it likes: it is resumed."""
    while True:
        async for event in client.watch(resource, namespace, resourceVersion=version):
            version = event.object["metadata"]["resourceVersion"]
            yield event


def claim_spec(*requests, constraints=()):
    """Spell the spec of a claim."""
    spelled = [
        each
        if "exactly" in each or "firstAvailable" in each
        else {"name": each["name"], "exactly": {k: v for k, v in each.items() if k != "name"}}
        for each in requests
    ]
    devices = {"requests": spelled}
    if constraints:
        devices["constraints"] = list(constraints)
    return {"devices": devices}


__all__ = ["PATIENCE", "Cluster", "claim_spec"]
