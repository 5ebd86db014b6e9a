"""The simulated driver `gpu.nvidia.com`: time slices and MPS that leave traces.

The code that shares GPUs is that of our real driver (`nvidia.sharing`); only the programs it would run are replaced.
What they were told stands in files of the node (`files/gpu.nvidia.com`): `nvidia-smi.log` for time slices and compute
modes, `mps/<uid of the claim>/log/control.log` for the limits of an MPS daemon. Containers get the daemon's pipe and shared
memory as the real driver mounts them, and the claim's `status.devices` says how its devices are shared.

A claim that holds all of a GPU may change its partitions with the config `PartitionLayout` (`dray fleet repartition`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dray.api.cdi import ContainerEdits
from dray.driver import AllocatedDevice, ClaimRequest, DriverError, PreparedClaim, PreparedDevice
from dray.drivers.changed_layouts import ChangedLayouts
from dray.drivers.hardware import PoolModel
from dray.drivers.hardware.mig_layouts import LayoutError, parse_layout, published_gpus
from dray.drivers.nvidia.sharing import MpsDaemons, set_time_slice
from dray.drivers.opaque_configs import OpaqueConfigError
from dray.drivers.opaque_configs.nvidia import MpsConfig
from dray.drivers.opaque_configs.partitions import is_partition_layout, parse_partition_layout
from dray.drivers.simulated import SimulatedDriver
from dray.drivers.simulated_variables import nvidia_sharing

MAX_LOG = 64 * 1024  # bytes of nvidia-smi.log; older lines are dropped


class RecordedCommands:
    """Writes down what NVIDIA's programs would be told."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, feed: str = ""
    ) -> str:
        """Record one call; a daemon's pipe appears as if it had started."""
        line = shlex.join(command)
        if env is None:
            self._append(self._folder / "nvidia-smi.log", line)
            return ""
        pipe, log = Path(env["CUDA_MPS_PIPE_DIRECTORY"]), Path(env["CUDA_MPS_LOG_DIRECTORY"])
        if feed:
            (log / "control.log").write_text(feed)
        else:
            (pipe / "control").touch()
            (log / "startup.log").write_text(f"{line} CUDA_VISIBLE_DEVICES={env['CUDA_VISIBLE_DEVICES']}\n")
        return ""

    @staticmethod
    def _append(path: Path, line: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if path.exists() else ""
        path.write_text((before + line + "\n")[-MAX_LOG:])


class NvidiaDriver(SimulatedDriver):
    """GPUs of one node, with their sharing and their partitions."""

    def __init__(self, model: PoolModel, faults: Path | None = None, **rest: Any) -> None:
        """Take the arguments of SimulatedDriver; layouts that were changed before are applied."""
        super().__init__(model, faults, **rest)
        self._layouts = ChangedLayouts(self.folder)
        self.set_models([self._layouts.applied(each) for each in self.models])

    async def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Prepare the devices, or change the layout of the GPU that the claim holds."""
        configs = [config.parameters for each in claim.devices for config in each.configs]
        wanted = next((each for each in reversed(configs) if is_partition_layout(each)), None)
        if wanted is None:
            return await super().prepare(claim)
        try:
            partitions = parse_partition_layout(wanted).partitions
        except OpaqueConfigError as error:
            raise DriverError(f"opaque config: {error}") from error
        if self._layouts.of_claim(claim.uid) is None:
            self._repartition(claim, partitions)
        return [PreparedDevice.of(each) for each in claim.devices]

    def _repartition(self, claim: ClaimRequest, partitions: Sequence[str]) -> None:
        """Change the layout of one GPU, all of whose devices the claim holds alone; raises DriverError."""
        held = {(each.pool, each.device) for each in claim.devices if not each.admin_access}
        for index, model in enumerate(self.models):
            for gpu in published_gpus(model.devices):
                of_gpu = {(model.name, device.name) for device in gpu.devices}
                if of_gpu.isdisjoint(held):
                    continue
                if of_gpu != held or len(held) != len(claim.devices):
                    raise DriverError(f"the claim must hold all devices of {gpu.name} and nothing else")
                if gpu.fixed_because or gpu.model is None:
                    raise DriverError(f"the layout of {gpu.name} cannot be changed: {gpu.fixed_because}")
                for device in gpu.devices:
                    fault = self._read_faults().of(device.name)
                    if fault.prepare_error:
                        raise DriverError(f"device {device.name}: {fault.prepare_error}")
                try:
                    layout = parse_layout(gpu.model, partitions)
                except LayoutError as error:
                    raise DriverError(str(error)) from error
                self._layouts.record(gpu.uuid, layout, claim.uid)
                changed = list(self.models)
                changed[index] = self._layouts.applied(model)
                self.set_models(changed)
                return
        raise DriverError("the claim holds no GPU of this node")

    async def apply(self, claim: ClaimRequest, allocated: AllocatedDevice) -> ContainerEdits:
        """Set the time slice, or start the claim's MPS daemon."""
        sharing = nvidia_sharing(allocated)
        if sharing is None or self.folder is None:
            return ContainerEdits()
        commands = RecordedCommands(self.folder)
        if sharing.strategy == "MPS":
            shared = self.folder / "mps" / claim.uid / "shm"
            shared.mkdir(parents=True, exist_ok=True)
            for uuid in self._uuids([allocated]):
                commands(["nvidia-smi", "-i", uuid, "-c", "EXCLUSIVE_PROCESS"])
            mine = [device for device in claim.devices if _is_mps(device)]
            daemons = MpsDaemons(self.folder / "mps", commands, shared)
            return daemons.start(claim.uid, self._uuids(mine), sharing.mps_config or MpsConfig())
        interval = sharing.time_slicing_config.interval if sharing.time_slicing_config else "Default"
        if "-mig-" not in allocated.device:  # a MIG device has no interval of its own
            for uuid in self._uuids([allocated]):
                commands(["nvidia-smi", "-i", uuid, "-c", "DEFAULT"])
                set_time_slice(commands, uuid, interval)
        return ContainerEdits()

    def status_data(self, allocated: AllocatedDevice) -> Any:
        """Return how the device is shared."""
        sharing = nvidia_sharing(allocated)
        if sharing is None:
            return None
        data: dict[str, Any] = {"sharingStrategy": sharing.strategy}
        if sharing.strategy == "MPS":
            mps = sharing.mps_config or MpsConfig()
            data |= {"computeMode": "EXCLUSIVE_PROCESS", "multiUser": mps.multi_user}
            if mps.default_active_thread_percentage is not None:
                data["activeThreadPercentage"] = mps.default_active_thread_percentage
        else:
            slicing = sharing.time_slicing_config
            data |= {
                "computeMode": "DEFAULT",
                "timeSliceInterval": slicing.interval if slicing else "Default",
            }
        return data

    async def unprepare(self, claim: PreparedClaim) -> None:
        """Stop the claim's MPS daemon, if it has one."""
        await super().unprepare(claim)
        if self.folder is not None:
            MpsDaemons(self.folder / "mps", RecordedCommands(self.folder)).stop(claim.uid)

    def _uuids(self, devices: Sequence[AllocatedDevice]) -> list[str]:
        """Return the identities of devices; one that prepare would create is known by its name."""
        found = []
        for each in devices:
            device = self._device_by_id.get((each.pool, each.device))
            attributes = (device.attributes or {}) if device is not None else {}
            found.append(str(attributes["uuid"].string) if "uuid" in attributes else each.device)
        return found


def _is_mps(allocated: AllocatedDevice) -> bool:
    sharing = nvidia_sharing(allocated)
    return sharing is not None and sharing.strategy == "MPS"
