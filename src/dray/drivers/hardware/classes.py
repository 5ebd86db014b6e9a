"""The DeviceClasses that come with the modelled drivers, as their real installers make them."""

from __future__ import annotations

from dray.api.meta import ObjectMeta
from dray.api.resource import CELDeviceSelector, DeviceClass, DeviceClassSpec, DeviceSelector

_NVIDIA_TYPE = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{}'"

# class name -> (selector, extended resource that pods of the device-plugin era ask for)
_CLASSES: dict[str, tuple[str, str | None]] = {
    "gpu.nvidia.com": (_NVIDIA_TYPE.format("gpu"), "nvidia.com/gpu"),
    "mig.nvidia.com": (_NVIDIA_TYPE.format("mig"), None),
    "dra.net": ("device.driver == 'dra.net'", None),
    "sriovnetwork.k8snetworkplumbingwg.io": ("device.driver == 'sriovnetwork.k8snetworkplumbingwg.io'", None),
    "tpu.google.com": ("device.driver == 'tpu.google.com'", "google.com/tpu"),
    "fpga.dray.dev": ("device.driver == 'fpga.dray.dev'", None),
    "dra.cpu": ("device.driver == 'dra.cpu'", None),
}


def device_classes(drivers: frozenset[str] | None = None) -> list[DeviceClass]:
    """Return the classes of all modelled drivers, or of those named."""
    classes = []
    for name, (expression, extended) in _CLASSES.items():
        driver = "gpu.nvidia.com" if name == "mig.nvidia.com" else name
        if drivers is not None and driver not in drivers:
            continue
        selector = DeviceSelector(cel=CELDeviceSelector(expression=expression))
        spec = DeviceClassSpec(selectors=[selector], extended_resource_name=extended)
        classes.append(DeviceClass(metadata=ObjectMeta(name=name), spec=spec))
    return classes
