"""The DeviceClasses that come with the modelled drivers, as their real installers make them."""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.compute_domains import CHANNEL, CHANNEL_CLASS, DAEMON, DAEMON_CLASS
from dray.api.meta import ObjectMeta
from dray.api.resource import CELDeviceSelector, DeviceClass, DeviceClassSpec, DeviceSelector
from dray.drivers.driver_names import (
    AMD,
    ASCEND,
    COMPUTE_DOMAIN,
    CPU,
    EXAMPLE_CPU,
    EXAMPLE_GPU,
    EXAMPLE_NET,
    FPGA,
    GAUDI,
    HAMI,
    INTEL_GPU,
    INTEL_VFIO_CLASS,
    NETWORK,
    NVIDIA,
    QAT,
    REBELLIONS,
    SPYRE,
    SRIOV,
    TPU,
)


@dataclass(frozen=True, slots=True)
class _Class:
    """One class: whose devices, and which of them."""

    driver: str
    name: str = ""  # empty means: the driver's name
    condition: str = ""  # CEL beside the driver's name
    extended: str | None = None  # what pods of the device-plugin era ask for
    is_of_cloud: bool = False  # a cloud's cluster comes with it, whoever installs the driver


def _of_type(driver: str, kind: str) -> str:
    return f"device.attributes['{driver}'].type == '{kind}'"


_CLASSES = (
    _Class(NVIDIA, condition=_of_type(NVIDIA, "gpu"), extended="nvidia.com/gpu"),
    _Class(NVIDIA, "mig.nvidia.com", _of_type(NVIDIA, "mig")),
    _Class(NVIDIA, "vfio.gpu.nvidia.com", _of_type(NVIDIA, "vfio")),
    _Class(COMPUTE_DOMAIN, DAEMON_CLASS, _of_type(COMPUTE_DOMAIN, DAEMON)),
    _Class(
        COMPUTE_DOMAIN,
        CHANNEL_CLASS,
        f"{_of_type(COMPUTE_DOMAIN, CHANNEL)} && device.attributes['{COMPUTE_DOMAIN}'].id == 0",
    ),
    # Intel's installers leave the extended resources to their users, as comments with these names.
    _Class(INTEL_GPU, extended="intel.com/gpu"),
    _Class(INTEL_GPU, INTEL_VFIO_CLASS),
    _Class(GAUDI, extended="intel.com/gaudi"),
    _Class(QAT, extended="intel.com/qat"),
    # The value is empty in AMD's chart; its documentation uses this name.
    _Class(AMD, extended="amd.com/gpu"),
    _Class(REBELLIONS, extended="rebellions.ai/npu"),
    _Class(SPYRE),
    # The driver makes one class for each model that it finds.
    _Class(
        ASCEND,
        "npu-ascend310p.project-hami.io",
        f"device.attributes['{ASCEND}'].productName == 'Ascend310P' && {_of_type(ASCEND, 'NPU')}",
    ),
    # Its chart also claims nvidia.com/gpu, which is NVIDIA's here: two classes with one name would leave the choice to chance.
    _Class(HAMI, condition=_of_type(HAMI, "hami-gpu")),
    # dranet installs no class; its examples make one of these.
    _Class(NETWORK),
    _Class(NETWORK, "dranet.net"),
    _Class(NETWORK, "dranet"),
    # What GKE installs with its dranet, as its pages describe it: ports with RDMA, and the others.
    _Class(NETWORK, "mrdma.google.com", f"device.attributes['{NETWORK}'].rdma", is_of_cloud=True),
    _Class(NETWORK, "netdev.google.com", f"!device.attributes['{NETWORK}'].rdma", is_of_cloud=True),
    _Class(SRIOV),
    _Class(TPU, extended="google.com/tpu"),
    _Class(FPGA),
    _Class(CPU),
    # The installer leaves the extended resource to its user; its demo uses this one.
    _Class(EXAMPLE_GPU, extended="example.com/gpu"),
    _Class(EXAMPLE_NET),
    _Class(EXAMPLE_CPU),
)


def device_classes(drivers: frozenset[str] | None = None, *, with_clouds: bool = True) -> list[DeviceClass]:
    """Return the classes of all modelled drivers, or of those named.

    Whoever installs classes in a real cluster leaves out those of clouds: where they belong, they exist.
    """
    classes = []
    for each in _CLASSES:
        if (drivers is not None and each.driver not in drivers) or (each.is_of_cloud and not with_clouds):
            continue
        expression = " && ".join(filter(None, (f"device.driver == '{each.driver}'", each.condition)))
        selector = DeviceSelector(cel=CELDeviceSelector(expression=expression))
        spec = DeviceClassSpec(selectors=[selector], extended_resource_name=each.extended)
        classes.append(DeviceClass(metadata=ObjectMeta(name=each.name or each.driver), spec=spec))
    return classes
