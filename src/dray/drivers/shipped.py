"""The drivers we ship, by name, and which of them have hardware on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dray.driver import Driver, DriverError
from dray.drivers.cpu import CpuDriver
from dray.drivers.fpga import FpgaDriver, find_cards
from dray.drivers.network import NetworkDriver
from dray.drivers.network.interfaces import find_interfaces
from dray.drivers.nvidia import NvidiaDriver, load_nvml
from dray.drivers.tpu import TpuDriver, find_chips

SYSFS = Path("/sys")
DEV = Path("/dev")


def _nvidia(node: str, state: Path) -> Driver:
    return NvidiaDriver(load_nvml(), state=state)


def _tpu(node: str, state: Path) -> Driver:
    return TpuDriver(node)


def _network(node: str, state: Path) -> Driver:
    return NetworkDriver(state=state)


def _cpu(node: str, state: Path) -> Driver:
    return CpuDriver(state)


def _fpga(node: str, state: Path) -> Driver:
    return FpgaDriver()


# short name -> (makes the driver for a node with a state folder, says whether there is hardware for it)
SHIPPED: dict[str, tuple[Callable[[str, Path], Driver], Callable[[], bool]]] = {
    "nvidia": (_nvidia, lambda: (DEV / "nvidiactl").exists()),
    "tpu": (_tpu, lambda: bool(find_chips(SYSFS, DEV))),
    "network": (_network, lambda: bool(find_interfaces(SYSFS))),
    "fpga": (_fpga, lambda: bool(find_cards(SYSFS))),
    "cpu": (_cpu, lambda: (SYSFS / "devices/system/cpu/online").exists()),
}


def make_driver(name: str, node: str, state: Path) -> Driver:
    """Make a shipped driver; raises DriverError that names the known ones."""
    if name not in SHIPPED:
        raise DriverError(f"no driver {name!r} is shipped with dray; there are: {', '.join(SHIPPED)}")
    return SHIPPED[name][0](node, state)


def drivers_with_hardware() -> list[str]:
    """Return the shipped drivers that would find something on this machine."""
    return [name for name, (_make, is_here) in SHIPPED.items() if is_here()]
