"""Short words for pods, nodes, claims and slices in tests of the scheduler."""

import itertools

import msgspec

from dray.allocator import Allocator
from dray.api.core import Node, Pod, PodDisruptionBudget
from dray.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dray.scheduler import ClusterState, Devices, InterPodAffinity, Placer, PodClaims, shape_of

_uids = itertools.count(1)
DRIVER = "gpu.example.com"


def container(cpu=None, memory=None, limits=None, restart_policy=None, ports=(), name="c", **requests):
    """Spell a container."""
    wanted = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None} | requests
    found = {"name": name, "resources": {"requests": wanted}, "ports": list(ports)}
    if limits:
        found["resources"]["limits"] = limits
    if restart_policy:
        found["restartPolicy"] = restart_policy
    return found


def pod(name, *, namespace="ns", labels=None, containers=None, init_containers=(), priority=None, **spec):
    """Make a pod; spec words as in the API, in camelCase or with underscores."""
    body = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels or {}},
        "spec": {
            "containers": containers if containers is not None else [container()],
            "initContainers": list(init_containers),
            **{_camel(key): value for key, value in spec.items()},
        },
    }
    if priority is not None:
        body["spec"]["priority"] = priority
    return msgspec.convert(body, Pod)


def node(name, *, labels=None, taints=(), unschedulable=False, declares=(), **allocatable):
    """Make a node with 8 cpus, 32 GiB and room for 10 pods unless told otherwise."""
    amounts = {
        "cpu": "8",
        "memory": "32Gi",
        "pods": "10",
        **{k.replace("__", "/"): v for k, v in allocatable.items()},
    }
    body = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
        },
        "spec": {"taints": list(taints), "unschedulable": unschedulable},
        "status": {"allocatable": amounts, "declaredFeatures": list(declares)},
    }
    return msgspec.convert(body, Node)


def resource_slice(node_name, *devices, pool=None, name=None, **spec):
    """Publish devices; a device is a name or a dict."""
    body = {
        "metadata": {"name": name or f"slice-{node_name or pool}"},
        "spec": {
            "driver": DRIVER,
            "pool": {"name": pool or node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [each if isinstance(each, dict) else {"name": each} for each in devices],
            **spec,
        },
    }
    if node_name:
        body["spec"]["nodeName"] = node_name
    return msgspec.convert(body, ResourceSlice)


def device_class(name="gpu", **spec):
    """Offer all devices of the driver."""
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    body = {
        "metadata": {"name": name},
        "spec": {"selectors": selectors, **{_camel(k): v for k, v in spec.items()}},
    }
    return msgspec.convert(body, DeviceClass)


def claim(name, count=1, *, namespace="ns", owner=None, selector=None, device_class="gpu", **metadata):
    """Make a claim for some devices of a class."""
    exactly = {"deviceClassName": device_class, "count": count, "allocationMode": "ExactCount"}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    owners = [{"uid": owner, "controller": True}] if owner else []
    body = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "ownerReferences": owners,
            **metadata,
        },
        "spec": {"devices": {"requests": [{"name": "req", "exactly": exactly}]}},
    }
    return msgspec.convert(body, ResourceClaim)


def allocated(wanted, allocation, *consumers):
    """Return the claim with an allocation, reserved for pods by uid."""
    reserved = [{"resource": "pods", "name": each, "uid": each} for each in consumers]
    body = msgspec.to_builtins(wanted)
    body["status"] = {"allocation": msgspec.to_builtins(allocation), "reservedFor": reserved}
    return msgspec.convert(body, ResourceClaim)


def budget(name, labels, allowed, namespace="ns"):
    """Make a disruption budget that allows so many evictions now."""
    body = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }
    return msgspec.convert(body, PodDisruptionBudget)


class SmallCluster:
    """State, devices and a placer, with shortcuts."""

    def __init__(self, *nodes, policy=None):
        self.state = ClusterState()
        self.devices = Devices(Allocator(), self.state)
        self.affinity = InterPodAffinity(self.state)
        self.placer = Placer(self.state, self.devices, self.affinity, policy=policy)
        self.claims_by_pod = {}
        for each in nodes:
            self.add(each)

    def add(self, *objects):
        """Add nodes, slices or classes."""
        for each in objects:
            if isinstance(each, Node):
                self.state.set_node(each)
                self.devices.set_node(each)
            elif isinstance(each, ResourceSlice):
                self.devices.set_slice(each)
            else:
                self.devices.set_class(each)
        return self

    def place(self, wanted, *pending, allocated=()):
        """Ask for a place; nothing changes."""
        return self.placer.place(wanted, shape_of(wanted), PodClaims(tuple(allocated), tuple(pending)))

    def run(self, wanted, *pending):
        """Place and keep: the pod is bound, its claims allocated and reserved for it."""
        answer = self.place(wanted, *pending)
        assert answer, answer.explain()
        self.state.assume(wanted, answer.node)
        held = []
        for each, allocation in zip(answer.claims, answer.allocations, strict=True):
            found = allocated(each, allocation, wanted.metadata.uid)
            self.devices.set_claim(found, each)
            held.append(found)
        self.claims_by_pod[wanted.metadata.uid] = held
        return answer

    def end(self, wanted):
        """Let a pod end and release its claims."""
        self.state.forget(wanted.metadata.uid)
        for each in self.claims_by_pod.pop(wanted.metadata.uid, ()):
            self.devices.delete_claim(each)


def _camel(name):
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
