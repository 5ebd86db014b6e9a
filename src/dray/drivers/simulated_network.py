"""The simulated `dra.net`: what dranet refuses at prepare, knowing the device.

Interfaces of a simulated node are not moved, because there are none.
"""

from __future__ import annotations

from dray.api.cdi import ContainerEdits
from dray.driver import AllocatedDevice, ClaimRequest
from dray.drivers.opaque_configs.dranet import parse_network_config, refuse_for_rdma_only
from dray.drivers.simulated import SimulatedDriver


class NetworkDriver(SimulatedDriver):
    """Interfaces and RDMA devices of one node."""

    async def apply(self, claim: ClaimRequest, allocated: AllocatedDevice) -> ContainerEdits:
        """Refuse settings of interfaces for a device that has none, as dranet does."""
        device = self.device(allocated)
        if device is not None and f"{self.name}/ifName" not in (device.attributes or {}):
            for config in allocated.configs:
                parsed = parse_network_config(config.parameters)
                if parsed is not None:
                    refuse_for_rdma_only(parsed)
        return ContainerEdits()
