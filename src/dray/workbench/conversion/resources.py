"""Which device class and selector stand for an extended resource of a device plugin.

The left side are names that vendors' plugins register (`nvidia.com/mig-1g.5gb`), the
right side what their DRA drivers publish. Names that carry a choice (a MIG profile, a
partition mode) become a selector.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from dray.drivers.driver_names import ASCEND, NETWORK, NVIDIA, TPU

MIG, AMD = "mig.nvidia.com", "gpu.amd.com"
SRIOV = "sriovnetwork.k8snetworkplumbingwg.io"
HAMI = "hami-core-gpu.project-hami.io"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What one device of an extended resource is in DRA."""

    device_class: str
    driver: str  # the domain of the attributes that selectors read
    name: str  # what to call the request
    selectors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    capacity: dict[str, str] = field(default_factory=dict)  # amounts of each device


_PLAIN: dict[str, DeviceRequest] = {
    "nvidia.com/gpu": DeviceRequest(NVIDIA, NVIDIA, "gpu"),
    "nvidia.com/gpu.shared": DeviceRequest(
        NVIDIA,
        NVIDIA,
        "gpu",
        notes=(
            "nvidia.com/gpu.shared stood for a time slice; a claim holds the whole GPU. To share, let several pods "
            "use one ResourceClaim, with an opaque GpuConfig of strategy TimeSlicing or MPS",
        ),
    ),
    "amd.com/gpu": DeviceRequest(AMD, AMD, "gpu"),
    "google.com/tpu": DeviceRequest(
        TPU,
        TPU,
        "tpu",
        notes=(
            "the driver gives all TPU chips of a host or none: the number must be that of the host's chips; "
            "allocationMode: All says the same without a number",
        ),
    ),
    "gpu.intel.com/i915": DeviceRequest(
        "gpu.intel.com",
        "gpu.intel.com",
        "gpu",
        ('device.attributes["gpu.intel.com"].driver == "i915"',),
    ),
    "gpu.intel.com/xe": DeviceRequest(
        "gpu.intel.com", "gpu.intel.com", "gpu", ('device.attributes["gpu.intel.com"].driver == "xe"',)
    ),
    "intel.com/gpu": DeviceRequest("gpu.intel.com", "gpu.intel.com", "gpu"),
    "intel.com/qat": DeviceRequest("qat.intel.com", "qat.intel.com", "qat"),
    "huawei.com/Ascend310P": DeviceRequest("npu-ascend310p.project-hami.io", ASCEND, "npu"),
    "vpc.amazonaws.com/efa": DeviceRequest(
        NETWORK,
        NETWORK,
        "efa",
        ('device.attributes["dra.net"].pciDevice == "Elastic Fabric Adapter (EFA)"',),
        ("vpc.amazonaws.com/efa becomes a claim for devices of dranet, which must run on the nodes",),
    ),
    "habana.ai/gaudi": DeviceRequest("gaudi.intel.com", "gaudi.intel.com", "gaudi"),
    "intel.com/gaudi": DeviceRequest("gaudi.intel.com", "gaudi.intel.com", "gaudi"),
    "qat.intel.com/generic": DeviceRequest("qat.intel.com", "qat.intel.com", "qat"),
    "qat.intel.com/dc": DeviceRequest(
        "qat.intel.com",
        "qat.intel.com",
        "qat",
        ('device.attributes["qat.intel.com"].services.contains("dc")',),
    ),
    "qat.intel.com/cy": DeviceRequest(
        "qat.intel.com",
        "qat.intel.com",
        "qat",
        ('device.attributes["qat.intel.com"].services.contains("sym")',),
    ),
    "furiosa.ai/rngd": DeviceRequest("npu.furiosa.ai", "npu.furiosa.ai", "npu"),
}
# HAMi asks for a share of a GPU with two more resources beside nvidia.com/gpu.
SHARES = {"nvidia.com/gpumem": ("memory", "{}Mi"), "nvidia.com/gpucores": ("cores", "{}")}
# Resources that belong to a device but have no counterpart.
WITHOUT_COUNTERPART = {
    "nvidia.com/gpumem-percentage": "a share in percent has no counterpart: ask for an amount of memory",
    "gpu.intel.com/millicores": "use a claim on a device that allows several allocations, with a capacity request",
    "gpu.intel.com/memory.max": "use a claim on a device that allows several allocations, with a capacity request",
    "gpu.intel.com/tiles": "tiles are not published by the DRA driver",
    "gpu.intel.com/i915_monitoring": "use a claim with adminAccess and allocationMode All in a namespace labelled "
    "resource.kubernetes.io/admin-access=true",
    "gpu.intel.com/xe_monitoring": "use a claim with adminAccess and allocationMode All in a namespace labelled "
    "resource.kubernetes.io/admin-access=true",
}
# Resources whose names a site chooses: virtual functions of a network device plugin, shared RDMA adapters.
_SRIOV_DOMAINS = frozenset(["intel.com", "mellanox.com", "openshift.io", "k8s.cni.cncf.io", "broadcom.com"])
_NOT_NETWORK = frozenset(["intel.com/gpu", "intel.com/gaudi", "mellanox.com/gpu"])
_MIG_NAME = re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb)(?:\.(me|gfx|me\.all))?")
_AMD_PARTITION = re.compile(r"amd\.com/((?:spx|dpx|qpx|cpx)_nps[1248])")


def request_for(resource: str, mapped: dict[str, str]) -> DeviceRequest | None:
    """Return what a resource stands for; None when nothing is known about it.

    >>> request_for("nvidia.com/mig-1g.5gb", {}).selectors
    ('device.attributes["gpu.nvidia.com"].profile == "1g.5gb"',)
    """
    if resource in mapped:
        return DeviceRequest(mapped[resource], mapped[resource], _request_name(resource))
    if resource in _PLAIN:
        return _PLAIN[resource]
    found = _MIG_NAME.fullmatch(resource)
    if found is not None:
        profile = f"{found[1]}+{found[2]}" if found[2] else found[1]
        selector = f'device.attributes["{NVIDIA}"].profile == {json.dumps(profile)}'
        return DeviceRequest(MIG, NVIDIA, "mig", (selector,))
    found = _AMD_PARTITION.fullmatch(resource)
    if found is not None:
        selector = f'device.attributes["{AMD}"].partitionProfile == {json.dumps(found[1])}'
        note = (
            f"{resource}: the spelling of partitionProfile differs between driver versions; "
            "check it with `dray get devices`"
        )
        return DeviceRequest(AMD, AMD, "gpu", (selector,), (note,))
    return _network_request(resource)


def _network_request(resource: str) -> DeviceRequest | None:
    domain, _, name = resource.partition("/")
    if domain == "rdma" and name:
        selector = f'device.attributes["{NETWORK}"].rdma == true'
        note = (
            f"{resource} is a shared RDMA adapter of a name that your site chose: the claim asks for any interface of "
            f"{NETWORK} with RDMA; add a selector for the right one"
        )
        return DeviceRequest(NETWORK, NETWORK, "rdma", (selector,), (note,))
    if domain in _SRIOV_DOMAINS and name and resource not in _NOT_NETWORK:
        selector = f'device.attributes["k8s.cni.cncf.io"].resourceName == {json.dumps(resource)}'
        note = (
            f"{resource} is a name that your site chose: the SR-IOV driver publishes it as resourceName where a "
            "SriovResourcePolicy says so"
        )
        return DeviceRequest(SRIOV, SRIOV, "vf", (selector,), (note,))
    return None


def _request_name(resource: str) -> str:
    name = re.sub(r"[^a-z0-9-]+", "-", resource.rpartition("/")[2].lower()).strip("-")
    return name[:40] or "device"


def looks_like_a_device(resource: str) -> bool:
    """Return whether a resource name is an extended resource and not one of Kubernetes' own."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io") and not resource.startswith("hugepages-")


def is_known(resource: str, mapped: dict[str, str]) -> bool:
    """Return whether a text is the name of a resource that some device plugin is known to register."""
    return (
        looks_like_a_device(resource)
        and (
            resource in SHARES
            or resource in WITHOUT_COUNTERPART
            or _OTHER_PLUGINS.fullmatch(resource) is not None
            or request_for(resource, mapped) is not None
        )
    )  # fmt: skip


# Device plugins without a DRA driver that is known here.
_OTHER_PLUGINS = re.compile(
    r"(aws\.amazon\.com/neuron\w*|huawei\.com/Ascend[\w-]+|cambricon\.com/[\w.]+|(dsa|iaa|dlb|fpga|npu|sgx)\.intel\.com/[\w.-]+"
    r"|qat\.intel\.com/[\w.-]+|gpu\.intel\.com/[\w.-]+|vpc\.amazonaws\.com/efa|aliyun\.com/gpu[\w.-]*|nvidia\.com/(gpu|mig|GPU)[\w.-]*"
    r"|nvidia\.com/[A-Z][A-Z0-9]+_[\w.-]+|devices\.kubevirt\.io/[\w-]+|xilinx\.com/[\w.-]+|amd\.com/gpu[\w.-]*)"
)
