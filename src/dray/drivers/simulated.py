"""The simulated driver: hardware that is not there, published and prepared as if it were.

It offers what a hardware profile models (`dray.drivers.hardware`) under the name of
the real driver, so claims written for real clusters work unchanged. A container gets
one environment variable per device, named after the device, with its identity; more
is not promised, because there is nothing to use. Faults come from a file (`faults`).

Opaque configs are checked as the real driver does: what it refuses fails `prepare` with its
message. The variables of the real driver (`simulated_variables`) are set as well.

Our own variables: for device `gpu-0` of a claim's request `gpu`
    DRAY_DEVICE_GPU_0=gpu.nvidia.com/node-1/gpu-0
    DRAY_DEVICE_GPU_0_REQUEST=gpu, _UUID=GPU-…, _MODEL=…, _SHARE=…, and _CAPACITY_<NAME>=… for shares.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dray.api.cdi import ContainerEdits
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
from dray.drivers.faults import FaultFile, Faults
from dray.drivers.hardware import PoolModel
from dray.drivers.hardware.attributes import version
from dray.drivers.opaque_configs import OpaqueConfigError, check_config
from dray.drivers.simulated_variables import variable_name, variables_of

DRIVER_VERSION = "driverVersion"  # the attribute
HEALTH_PERIOD = 10.0  # heartbeat; the node calls a device unknown after 30 s of silence
LOOK_PERIOD = 0.5  # how often the faults file is looked at


class SimulatedDriver:
    """One modelled driver on one node."""

    def __init__(
        self,
        model: PoolModel,
        faults: Path | None = None,
        *,
        folder: Path | None = None,
        others: Sequence[PoolModel] = (),
        reachable: Sequence[PoolModel] = (),
        interval: float = LOOK_PERIOD,
    ) -> None:
        """`others` are further pools to publish; devices of `reachable` pools are published by somebody else."""
        self.name = model.driver
        self.model = model
        self.folder = folder  # for files that containers see; None: they get no mounts
        self.models: tuple[PoolModel, ...] = ()
        self._reachable = tuple(reachable)
        self._fault_file = FaultFile(faults)
        self._device_by_id: dict[tuple[str, str], Device] = {}
        self._interval = interval
        self.set_models((model, *others))
        self._version = published_version(self.models)

    def set_models(self, models: Sequence[PoolModel]) -> None:
        """Publish these pools from now on."""
        self.models = tuple(models)
        self._device_by_id = {
            (each.name, device.name): device
            for each in (*self.models, *self._reachable)
            for device in each.devices
        }

    def _read_faults(self) -> Faults:
        return self._fault_file.read().of_version(self._version)

    def discover(self) -> list[Pool]:
        """Return the modelled pools, less what vanished, with the taints of faults."""
        faults = self._read_faults()
        pools = [model for model in self.models if model.devices or model.counter_sets]
        return [Pool(_present(model, faults), model.counter_sets, name=model.name) for model in pools]

    async def changes(self) -> AsyncIterator[object]:
        """Yield when the faults or the pools changed."""
        before = self._read_faults(), self.models
        while True:
            await asyncio.sleep(self._interval)
            now = self._read_faults(), self.models
            if now != before:
                before = now
                yield now

    async def health(self) -> AsyncIterator[Iterable[DeviceHealth]]:
        """Yield every device's health at each change, and as a heartbeat."""
        last: list[DeviceHealth] = []
        waited = HEALTH_PERIOD
        while True:
            now = self.device_health()
            if now != last or waited >= HEALTH_PERIOD:
                last, waited = now, 0.0
                yield now
            await asyncio.sleep(self._interval)
            waited += self._interval

    def device_health(self) -> list[DeviceHealth]:
        """Return every device's health now."""
        faults = self._read_faults()
        return [
            DeviceHealth(pool, name, faults.of(name).health, faults.of(name).message)
            for pool, name in self._device_by_id
        ]

    async def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Pretend to set up each device; fail or take long when a fault says so."""
        faults = self._read_faults()
        prepared = []
        for allocated in claim.devices:
            fault = faults.of(allocated.device)
            seconds = faults.prepare_seconds + fault.prepare_seconds
            if seconds:
                await asyncio.sleep(seconds)
            if fault.prepare_error:
                raise DriverError(f"device {allocated.device}: {fault.prepare_error}")
            device = self.device(allocated)
            if device is None:
                raise DriverError(f"there is no device {allocated.pool}/{allocated.device} on this node")
            try:
                for config in allocated.configs:
                    check_config(self.name, config.parameters)
                edits = await self.apply(claim, allocated)
                prepared.append(self._prepared(claim, allocated, device, edits))
            except OpaqueConfigError as error:
                raise DriverError(f"request {allocated.request}: opaque config: {error}") from error
        return prepared

    def device(self, allocated: AllocatedDevice) -> Device | None:
        """Return what is published of an allocated device; None if it is not this node's."""
        return self._device_by_id.get((allocated.pool, allocated.device))

    async def apply(self, claim: ClaimRequest, allocated: AllocatedDevice) -> ContainerEdits:
        """Do what this driver does with one device; return what a container gets for it.

        Raises OpaqueConfigError or DriverError when the driver would refuse. Called again until it succeeds.
        """
        return ContainerEdits()

    def status_data(self, allocated: AllocatedDevice) -> Any:
        """Return what to show of a device in the claim's `status.devices`, a small JSON object; None: nothing."""
        return None

    def _prepared(
        self, claim: ClaimRequest, allocated: AllocatedDevice, device: Device, edits: ContainerEdits
    ) -> PreparedDevice:
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
        env |= variables_of(self.name, allocated)
        ready = Condition(
            type="Ready", status="True", reason="Simulated", message="a simulated device is always ready"
        )
        # Binding conditions were written into the same entry before the pod was bound; they stay.
        bound = [
            condition
            for entry in claim.claim.status.devices
            if (entry.driver, entry.pool, entry.device, entry.share_id)
            == (self.name, allocated.pool, allocated.device, allocated.share_id)
            for condition in entry.conditions
            if condition.type in (device.binding_conditions or ())
        ]
        return PreparedDevice.of(
            allocated,
            edits,
            env=env,
            attributes=attributes,
            status=DeviceStatus(conditions=[*bound, ready], data=self.status_data(allocated)),
        )

    async def unprepare(self, claim: PreparedClaim) -> None:
        """Undo nothing; fail when a fault says so."""
        faults = self._read_faults()
        for device in claim.devices:
            message = faults.of(device.device).unprepare_error
            if message:
                raise DriverError(f"device {device.device}: {message}")


def _present(model: PoolModel, faults: Faults) -> list[Device]:
    devices: list[Device] = []
    for device in model.devices:
        fault = faults.of(device.name)
        if fault.vanish:
            continue
        if fault.taint is not None:
            device = msgspec.structs.replace(device, taints=[*device.taints, fault.taint])
        devices.append(device)
    return devices


def published_version(models: Iterable[PoolModel]) -> str:
    """Return the version of the driver that its devices publish; empty if they publish none."""
    for model in models:
        for device in model.devices:
            found = (device.attributes or {}).get(DRIVER_VERSION)
            if found is not None:
                return found.version or found.string or ""
    return ""


def with_version(model: PoolModel, driver_version: str) -> PoolModel:
    """Return the pool as a driver of another version publishes it; devices without a version stay without one."""
    devices = []
    for device in model.devices:
        attributes = device.attributes or {}
        if DRIVER_VERSION in attributes:
            attributes = {**attributes, DRIVER_VERSION: version(driver_version)}
            device = msgspec.structs.replace(device, attributes=attributes)
        devices.append(device)
    return replace(model, devices=tuple(devices))
