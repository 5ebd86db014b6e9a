"""The simulated driver: hardware that is not there, published and prepared as if it were.

It offers what a hardware profile models (`dray.drivers.hardware`) under the name of
the real driver, so claims written for real clusters work unchanged. A container gets
one environment variable per device, named after the device, with its identity; more
is not promised, because there is nothing to use. Faults come from a file (`faults`).

The variables: for device `gpu-0` of a claim's request `gpu`
    DRAY_DEVICE_GPU_0=gpu.nvidia.com/node-1/gpu-0
    DRAY_DEVICE_GPU_0_REQUEST=gpu, _UUID=GPU-…, _MODEL=…, _SHARE=…, and _CAPACITY_<NAME>=… for shares.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import msgspec

from dray.api.meta import Condition
from dray.api.resource import Device
from dray.driver import (
    AllocatedDevice,
    ClaimRequest,
    DeviceHealth,
    DeviceStatus,
    DriverError,
    Pool,
    PreparedClaim,
    PreparedDevice,
)
from dray.drivers.faults import FaultFile
from dray.drivers.hardware import PoolModel, Profile

HEALTH_PERIOD = 10.0  # heartbeat; the node calls a device unknown after 30 s of silence
LOOK_PERIOD = 0.5  # how often the faults file is looked at


def variable_name(device: str) -> str:
    """Return the name of a device's environment variable.

    >>> variable_name("pci-0000-1b-00-0")
    'DRAY_DEVICE_PCI_0000_1B_00_0'
    """
    return "DRAY_DEVICE_" + "".join(letter if letter.isalnum() else "_" for letter in device).upper()


class SimulatedDriver:
    """One modelled driver on one node."""

    def __init__(
        self, model: PoolModel, faults: Path | None = None, *, interval: float = LOOK_PERIOD
    ) -> None:
        self.name = model.driver
        self._model = model
        self._faults = FaultFile(faults)
        self._device_by_name = {device.name: device for device in model.devices}
        self._interval = interval

    def discover(self) -> list[Pool]:
        """Return the modelled pool, less what vanished, with the taints of faults."""
        faults = self._faults.read()
        devices: list[Device] = []
        for device in self._model.devices:
            fault = faults.of(device.name)
            if fault.vanish:
                continue
            if fault.taint is not None:
                device = msgspec.structs.replace(device, taints=[*device.taints, fault.taint])
            devices.append(device)
        return [Pool(devices, self._model.counter_sets, name=self._model.name)]

    async def changes(self) -> AsyncIterator[object]:
        """Yield when the faults changed."""
        before = self._faults.read()
        while True:
            await asyncio.sleep(self._interval)
            now = self._faults.read()
            if now != before:
                before = now
                yield now

    async def health(self) -> AsyncIterator[Iterable[DeviceHealth]]:
        """Yield every device's health at each change, and as a heartbeat."""
        last: list[DeviceHealth] = []
        waited = HEALTH_PERIOD
        while True:
            faults = self._faults.read()
            now = [
                DeviceHealth(self._model.name, name, faults.of(name).health, faults.of(name).message)
                for name in self._device_by_name
            ]
            if now != last or waited >= HEALTH_PERIOD:
                last, waited = now, 0.0
                yield now
            await asyncio.sleep(self._interval)
            waited += self._interval

    async def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Pretend to set up each device; fail or take long when a fault says so."""
        faults = self._faults.read()
        prepared = []
        for allocated in claim.devices:
            fault = faults.of(allocated.device)
            seconds = faults.prepare_seconds + fault.prepare_seconds
            if seconds:
                await asyncio.sleep(seconds)
            if fault.prepare_error:
                raise DriverError(f"device {allocated.device}: {fault.prepare_error}")
            device = self._device_by_name.get(allocated.device)
            if device is None or allocated.pool != self._model.name:
                raise DriverError(f"there is no device {allocated.pool}/{allocated.device} on this node")
            prepared.append(self._prepared(allocated, device))
        return prepared

    def _prepared(self, allocated: AllocatedDevice, device: Device) -> PreparedDevice:
        attributes = device.attributes or {}
        name = variable_name(device.name)
        env = {name: f"{self.name}/{allocated.pool}/{device.name}", f"{name}_REQUEST": allocated.request}
        for label, attribute in (("UUID", "uuid"), ("MODEL", "productName"), ("PROFILE", "profile")):
            if attribute in attributes:
                env[f"{name}_{label}"] = attributes[attribute].string or ""
        if allocated.admin_access:
            env["DRA_ADMIN_ACCESS"] = "true"
        if allocated.share_id is not None:
            env[f"{name}_SHARE"] = allocated.share_id
            for capacity, amount in allocated.consumed_capacity.items():
                env[f"{name}_CAPACITY_{variable_name(capacity).removeprefix('DRAY_DEVICE_')}"] = str(amount)
        for config in allocated.configs:
            env[f"{name}_CONFIG"] = json.dumps(config.parameters, separators=(",", ":"), sort_keys=True)
        ready = Condition(
            type="Ready", status="True", reason="Simulated", message="a simulated device is always ready"
        )
        return PreparedDevice.of(
            allocated, env=env, attributes=attributes, status=DeviceStatus(conditions=[ready])
        )

    async def unprepare(self, claim: PreparedClaim) -> None:
        """Undo nothing; fail when a fault says so."""
        faults = self._faults.read()
        for device in claim.devices:
            message = faults.of(device.device).unprepare_error
            if message:
                raise DriverError(f"device {device.device}: {message}")


def simulated_drivers(
    profile: Profile, node: str, faults_dir: Path | None = None
) -> Sequence[SimulatedDriver]:
    """Return the drivers of a simulated node; each has `faults_dir/<driver>.yaml` for its faults."""
    return [
        SimulatedDriver(model, None if faults_dir is None else faults_dir / f"{model.driver}.yaml")
        for model in profile.pools(node)
    ]
