"""What a device and a pool are called: one type each, for all packages.

A device name is unique within its pool only, and a pool name within its driver only; so
both identities carry the whole path. They are plain tuples underneath: cheap keys, ordered
by driver, pool and name.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class PoolId(NamedTuple):
    """The identity of a pool; prints as driver/pool."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class DeviceId(NamedTuple):
    """The identity of a device; prints as driver/pool/device.

    >>> print(DeviceId("gpu.example.com", "node-1", "gpu-0"))
    gpu.example.com/node-1/gpu-0
    """

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"

    @property
    def pool_id(self) -> PoolId:
        """Return the pool that the device belongs to."""
        return PoolId(self.driver, self.pool)


class NamesDevice(Protocol):
    """Anything with the three names, such as one result of an allocation."""

    @property
    def driver(self) -> str:
        """The driver's name."""

    @property
    def pool(self) -> str:
        """The pool's name."""

    @property
    def device(self) -> str:
        """The device's name within the pool."""


def device_id_of(named: NamesDevice) -> DeviceId:
    """Return the identity of the device that an object names."""
    return DeviceId(named.driver, named.pool, named.device)
