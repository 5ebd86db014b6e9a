"""What the drivers of Intel, AMD, Ascend, HAMi and Google's TPUs tell a container in its environment, for the simulated ones.

Device nodes are not modelled; the variables are those that the real drivers write into their CDI specs. Gaudi's name
all accelerators of a claim at once, so they are made for the claim and not for one device.
"""

from __future__ import annotations

from dray.api.cdi import ContainerEdits
from dray.api.quantity import parse_quantity
from dray.api.resource import Device
from dray.driver import AllocatedDevice, ClaimRequest, DriverError, PreparedDevice
from dray.drivers.simulated import SimulatedDriver
from dray.drivers.tpu_topology import common_variables, partial_claim


class GaudiDriver(SimulatedDriver):
    """Gaudi accelerators of one node."""

    async def apply(self, claim: ClaimRequest, allocated: AllocatedDevice) -> ContainerEdits:
        """Return the variables of Habana's runtime, the same for every device of the claim."""
        names = [device.name for device in self.model.devices]
        indexes = [names.index(device.device) for device in claim.devices if device.device in names]
        numbers = ",".join(map(str, indexes))
        return ContainerEdits(
            env=[
                f"HABANA_VISIBLE_DEVICES={numbers}",
                f"HABANA_VISIBLE_MODULES={numbers}",
                f"HL_VISIBLE_DEVICES={','.join(f'/dev/accel/accel{index}' for index in indexes)}",
            ]
        )


class AmdDriver(SimulatedDriver):
    """AMD GPUs and partitions of one node."""

    async def apply(self, claim: ClaimRequest, allocated: AllocatedDevice) -> ContainerEdits:
        """Return the variables that come with every claim."""
        return ContainerEdits(
            env=[f"KUBERNETES_NODE_NAME={self.model.node_name}", f"DRA_RESOURCE_DRIVER_NAME={self.name}"]
        )


class AscendDriver(SimulatedDriver):
    """Ascend NPUs of one node, as whole cards."""

    async def apply(self, claim: ClaimRequest, allocated: AllocatedDevice) -> ContainerEdits:
        """Return the numbers of the cards of the claim, which Huawei's runtime reads."""
        numbers = ",".join(device.device.split("-")[1] for device in claim.devices)
        return ContainerEdits(env=[f"ASCEND_VISIBLE_DEVICES={numbers}"])


class HamiDriver(SimulatedDriver):
    """NVIDIA GPUs that HAMi's library shares."""

    async def apply(self, claim: ClaimRequest, allocated: AllocatedDevice) -> ContainerEdits:
        """Return the limits that HAMi's library enforces: a percentage of the cores, and memory in MiB."""
        index = claim.devices.index(allocated)
        cores = allocated.consumed_capacity.get("cores", "100")
        env = [f"CUDA_DEVICE_SM_LIMIT_{index}={cores}"]
        memory = allocated.consumed_capacity.get("memory")
        if memory is not None:
            env.append(f"CUDA_DEVICE_MEMORY_LIMIT_{index}={parse_quantity(memory).ceil_value() // 2**20}m")
        return ContainerEdits(env=env)


class TpuDriver(SimulatedDriver):
    """The TPU chips of one host, which go to one claim together."""

    async def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Refuse a claim for a part of the chips, as Google's driver does."""
        chips = _chips_of_host(self.model.devices)
        refusal = partial_claim(len(claim.devices), chips) if chips else ""
        if refusal:
            raise DriverError(refusal)
        return await super().prepare(claim)

    async def apply(self, claim: ClaimRequest, allocated: AllocatedDevice) -> ContainerEdits:
        """Return the variables of the host once, and the one of the chip."""
        env = [f"TPU_DEVICE_{allocated.device}_RESOURCE_CLAIM={claim.uid}"]
        if allocated == claim.devices[0] and self.model.devices:
            attributes = self.model.devices[0].attributes or {}
            accelerator, topology = (
                attributes[name].string or "" if name in attributes else ""
                for name in ("accelerator", "topology")
            )
            chips = _chips_of_host(self.model.devices)
            common = common_variables(accelerator, topology, chips, self.model.node_name or "")
            env += [f"{key}={value}" for key, value in common.items()]
        return ContainerEdits(env=env)


def _chips_of_host(devices: tuple[Device, ...]) -> int:
    """Return how many chips a host has; 0 if its devices do not say it."""
    counts = [(device.attributes or {}).get("chipCount") for device in devices[:1]]
    return next((count.int_value or 0 for count in counts if count is not None), 0)
