"""Builders for tests of node and driver: a vendor's driver, allocated claims, pods."""

import asyncio

from dray.api.resource import Device
from dray.driver import HEALTHY, DeviceHealth, DriverError, Pool, PreparedDevice

DRIVER = "lamp.example.com"
NODE = "worker"


class Lamps:
    """A driver of lamps, as a vendor would write it, that remembers how it was called."""

    def __init__(self, name=DRIVER, n_devices=2):
        self.name = name
        self.n_devices = n_devices
        self.calls = []
        self.is_broken = False

    def discover(self):
        return [Pool(devices=[Device(name=f"lamp-{index}") for index in range(self.n_devices)])]

    def prepare(self, claim):
        self.calls.append(("prepare", claim.name))
        if self.is_broken:
            raise DriverError("the fuse is blown")
        return [
            PreparedDevice.of(
                device, env={f"LAMP_{device.device[-1]}": device.device}, private={"lit": device.device}
            )
            for device in claim.devices
        ]

    def unprepare(self, claim):
        self.calls.append(("unprepare", claim.name, [device.private for device in claim.devices]))
        if self.is_broken:
            raise DriverError("the switch is stuck")


class WatchedLamps(Lamps):
    """Lamps whose health can be set."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.reports = asyncio.Queue()

    async def health(self):
        yield [DeviceHealth("", f"lamp-{index}", HEALTHY) for index in range(self.n_devices)]
        while True:
            yield await self.reports.get()


def claim(name="light", devices=(("lamp", "lamp-0"),), *, driver=DRIVER, pool=NODE, pod=None, **metadata):
    """An allocated claim as the API server shows it; devices are (request, device) or (request, device, share)."""
    results = [
        {
            "request": entry[0],
            "driver": driver,
            "pool": pool,
            "device": entry[1],
            **({"shareID": entry[2]} if len(entry) > 2 else {}),
        }
        for entry in devices
    ]
    status = {"allocation": {"devices": {"results": results}}}
    if pod is not None:
        status["reservedFor"] = [
            {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        ]
    requests = [
        {"name": request, "exactly": {"deviceClassName": "lamp"}}
        for request in dict.fromkeys(e[0].split("/")[0] for e in devices)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": {"devices": {"requests": requests}},
        "status": status,
    }


def claim_path(name="light", namespace="default"):
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


async def eventually(check, seconds=60.0, what=""):
    """Wait until the check holds; its value is returned."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        value = check()
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"did not happen within {seconds} s: {what or check}")
        await asyncio.sleep(0.01)


def pod(name="reader", *, containers=None, claims=("light",), node=NODE, restart="Never", **spec):
    """A pod that is bound to the node; by default one container that uses the first claim whole."""
    if containers is None:
        containers = [container(claims=[{"name": entry} for entry in claims])]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "restartPolicy": restart,
            "containers": containers,
            "resourceClaims": [{"name": entry, "resourceClaimName": entry} for entry in claims],
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def container(name="main", script="env; sleep 30", *, claims=(), **more):
    """A container that runs a shell script."""
    return {
        "name": name,
        "image": "busybox",
        "command": ["/bin/sh", "-c", script],
        "resources": {"claims": list(claims)},
        **more,
    }


def pod_path(name="reader", namespace="default"):
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def add_pod(api, name="reader", devices=(("lamp", "lamp-0"),), **more):
    """Store a pod with one claim of its own, allocated and reserved for it; returns the pod's uid."""
    stored = api.put(pod_path(name), pod(name, claims=(f"{name}-light",), **more))
    api.put(claim_path(f"{name}-light"), claim(f"{name}-light", devices, pod=stored))
    return stored["metadata"]["uid"]
