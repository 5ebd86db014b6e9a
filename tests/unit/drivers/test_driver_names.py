"""Names of drivers: every shipped one has one, and classes and simulated hardware use it."""

from dray.drivers import cpu, fpga, tpu
from dray.drivers.driver_names import CPU, FPGA, NAME_BY_SHORT_NAME, NETWORK, NVIDIA, TPU
from dray.drivers.hardware import device_classes
from dray.drivers.network.driver import NAME as NETWORK_NAME
from dray.drivers.nvidia.driver import NAME as NVIDIA_NAME
from dray.drivers.shipped import SHIPPED


def test_every_shipped_driver_has_a_name_in_the_api():
    assert set(NAME_BY_SHORT_NAME) == set(SHIPPED)
    assert (
        (cpu.NAME, fpga.NAME, tpu.NAME) == (CPU, FPGA, TPU) == ("dra.cpu", "fpga.dray.dev", "tpu.google.com")
    )
    assert (NETWORK_NAME, NVIDIA_NAME) == (NETWORK, NVIDIA) == ("dra.net", "gpu.nvidia.com")


def test_every_shipped_driver_has_a_class_that_selects_its_devices():
    selectors = {entry.metadata.name: entry.spec.selectors[0].cel.expression for entry in device_classes()}
    for name in NAME_BY_SHORT_NAME.values():
        assert selectors[name].startswith(f"device.driver == '{name}'")
    assert selectors["mig.nvidia.com"] == (
        "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"
    )
