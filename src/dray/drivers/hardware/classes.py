"""The DeviceClasses that come with the modelled drivers, as their real installers make them."""

from __future__ import annotations

from dray.api.meta import ObjectMeta
from dray.api.resource import CELDeviceSelector, DeviceClass, DeviceClassSpec, DeviceSelector
from dray.drivers.driver_names import CPU, FPGA, NETWORK, NVIDIA, TPU

_NVIDIA_TYPE = f"device.driver == '{NVIDIA}' && device.attributes['{NVIDIA}'].type == '{{}}'"

# class name -> (selector, extended resource that pods of the device-plugin era ask for)
_CLASSES: dict[str, tuple[str, str | None]] = {
    NVIDIA: (_NVIDIA_TYPE.format("gpu"), "nvidia.com/gpu"),
    "mig.nvidia.com": (_NVIDIA_TYPE.format("mig"), None),
    NETWORK: (f"device.driver == '{NETWORK}'", None),
    "sriovnetwork.k8snetworkplumbingwg.io": ("device.driver == 'sriovnetwork.k8snetworkplumbingwg.io'", None),
    TPU: (f"device.driver == '{TPU}'", "google.com/tpu"),
    FPGA: (f"device.driver == '{FPGA}'", None),
    CPU: (f"device.driver == '{CPU}'", None),
}


def device_classes(drivers: frozenset[str] | None = None) -> list[DeviceClass]:
    """Return the classes of all modelled drivers, or of those named."""
    classes = []
    for name, (expression, extended) in _CLASSES.items():
        driver = NVIDIA if name == "mig.nvidia.com" else name
        if drivers is not None and driver not in drivers:
            continue
        selector = DeviceSelector(cel=CELDeviceSelector(expression=expression))
        spec = DeviceClassSpec(selectors=[selector], extended_resource_name=extended)
        classes.append(DeviceClass(metadata=ObjectMeta(name=name), spec=spec))
    return classes
