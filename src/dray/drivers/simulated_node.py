"""The simulated drivers of one node: which class models which driver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dray.drivers import driver_names
from dray.drivers.accelerator_variables import (
    AmdDriver,
    AscendDriver,
    GaudiDriver,
    HamiDriver,
    TpuDriver,
)
from dray.drivers.compute_domains import ComputeDomainDriver
from dray.drivers.hardware import PoolModel, Profile
from dray.drivers.simulated import SimulatedDriver
from dray.drivers.simulated_network import NetworkDriver
from dray.drivers.simulated_nvidia import NvidiaDriver

# Drivers that do more at prepare than hand out what the profile says.
_CLASS_BY_DRIVER: dict[str, type[SimulatedDriver]] = {
    driver_names.AMD: AmdDriver,
    driver_names.ASCEND: AscendDriver,
    driver_names.COMPUTE_DOMAIN: ComputeDomainDriver,
    driver_names.GAUDI: GaudiDriver,
    driver_names.HAMI: HamiDriver,
    driver_names.NETWORK: NetworkDriver,
    driver_names.NVIDIA: NvidiaDriver,
    driver_names.TPU: TpuDriver,
}


def simulated_driver(
    model: PoolModel,
    faults: Path | None = None,
    folder: Path | None = None,
    *,
    others: Sequence[PoolModel] = (),
    reachable: Sequence[PoolModel] = (),
) -> SimulatedDriver:
    """Return the driver of a modelled pool; `folder` is for files that its containers see.

    `others` are further pools of the same driver, `reachable` those that somebody else publishes.
    """
    make = _CLASS_BY_DRIVER.get(model.driver, SimulatedDriver)
    return make(model, faults, folder=folder, others=others, reachable=reachable)


def simulated_drivers(
    profile: Profile,
    node: str,
    faults_dir: Path | None = None,
    files_dir: Path | None = None,
    reachable: Sequence[PoolModel] = (),
) -> Sequence[SimulatedDriver]:
    """Return the drivers of a simulated node; each has `faults_dir/<driver>.yaml` for its faults.

    `reachable` are pools that other nodes reach, too: their drivers run here to prepare their devices.
    """
    pools = profile.pools(node)
    drivers = []
    for name in dict.fromkeys(pool.driver for pool in (*pools, *reachable)):
        own = [pool for pool in pools if pool.driver == name] or [PoolModel(name, node, (), (), node)]
        drivers.append(
            simulated_driver(
                own[0],
                None if faults_dir is None else faults_dir / f"{name}.yaml",
                None if files_dir is None else files_dir / name,
                others=own[1:],
                reachable=[pool for pool in reachable if pool.driver == name],
            )
        )
    return drivers
