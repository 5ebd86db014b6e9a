"""Faults on demand for simulated devices, read from a file that may change while the driver runs.

    devices:
      gpu-0: {health: Unhealthy, message: fell off the bus}
      gpu-1: {taint: {key: gpu.nvidia.com/xid, value: "79", effect: NoExecute}}
      gpu-2: {vanish: true}
      gpu-3: {prepareError: no such firmware, prepareSeconds: 2}
      gpu-4: {prepareError: version mismatch, driverVersions: [580.2.0]}   # a fault of one version of the driver
    prepareSeconds: 0.5        # for every device

A file that cannot be read keeps the last good state: a typo must not make a device healthy.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dray.api.parsing import load_yaml
from dray.api.resource import DeviceTaint

log = logging.getLogger("dray.drivers")


class DeviceFault(
    msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What is wrong with one device."""

    health: str = "Healthy"  # Healthy, Unhealthy, Unknown
    message: str = ""
    taint: DeviceTaint | None = None
    vanish: bool = False
    prepare_error: str = ""
    unprepare_error: str = ""
    prepare_seconds: float = 0.0
    driver_versions: tuple[str, ...] = ()  # a driver of another version is not affected; empty means: all are


class Faults(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All faults of one simulated driver."""

    devices: dict[str, DeviceFault] = {}
    prepare_seconds: float = 0.0

    def of(self, device: str) -> DeviceFault:
        """Return the fault of a device; a fresh one means: nothing is wrong."""
        return self.devices.get(device, DeviceFault())

    def of_version(self, version: str) -> Faults:
        """Return the faults that a driver of this version has."""
        devices = {
            name: fault
            for name, fault in self.devices.items()
            if not fault.driver_versions or version in fault.driver_versions
        }
        return msgspec.structs.replace(self, devices=devices)


class FaultFile:
    """The faults in a file, or none while the file is absent."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._faults = Faults()

    def read(self) -> Faults:
        """Return the current faults; reads the file only when it changed."""
        if self.path is None:
            return self._faults
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self._stamp, self._faults = None, Faults()
            return self._faults
        stamp = (found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._faults = parse_faults(load_yaml(self.path.read_bytes()) or {})
            except ValueError as error:
                log.error("%s: %s; the faults stay as they were", self.path, error)
        return self._faults

    def change(self, device: str, fault: DeviceFault | None) -> None:
        """Write the fault of a device into the file; None heals it."""
        if self.path is None:
            raise ValueError("these faults are not kept in a file")
        devices = dict(self.read().devices)
        devices.pop(device, None)
        if fault is not None:
            devices[device] = fault
        changed = msgspec.structs.replace(self._faults, devices=devices)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(yaml.safe_dump(msgspec.to_builtins(changed)), "utf-8")
        temporary.replace(self.path)


def parse_faults(document: Any) -> Faults:
    """Check a faults document; raises ValueError with the path of what is wrong."""
    return msgspec.convert(document, Faults)
