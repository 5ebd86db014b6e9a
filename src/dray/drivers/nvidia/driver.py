"""The NVIDIA driver: discover through NVML, cut MIG slices at prepare, share, watch the XIDs.

Preparing a MIG device creates the GPU instance at its placement and a compute
instance that fills it; both are found again if an earlier prepare was cut short, so
nothing is created twice. Unpreparing destroys them. At start everything that belongs
to no claim on record is destroyed (`recover`), because a crash between creating and
recording must not leak a slice for ever.

Health: a fatal XID taints the GPU and everything cut from it with
`gpu.nvidia.com/xid=<n>:NoSchedule`; XIDs that an application causes itself are shown
(effect None) but do not keep others away. A lost GPU gets `gpu.nvidia.com/gpu-lost`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dray.api.resource import Device, DeviceTaint
from dray.driver import (
    HEALTHY,
    UNHEALTHY,
    AllocatedDevice,
    ClaimRequest,
    ContainerEdits,
    DeviceHealth,
    DriverError,
    Pool,
    PreparedClaim,
    PreparedDevice,
)
from dray.drivers import driver_names
from dray.drivers.nvidia.configs import Config, effective_config
from dray.drivers.nvidia.edits import NodeFiles
from dray.drivers.nvidia.inventory import (
    Gpu,
    MigSlot,
    counter_set,
    mig_device,
    mig_slots,
    read_gpus,
    static_instances,
    whole_device,
)
from dray.drivers.nvidia.nvml import (
    EVENT_DOUBLE_BIT,
    EVENT_XID,
    GPU_IS_LOST,
    INSUFFICIENT_RESOURCES,
    NOT_FOUND,
    NOT_SUPPORTED,
    TIMEOUT,
    Handle,
    Nvml,
    as_text,
    code_of,
)
from dray.drivers.nvidia.sharing import Commands, MpsDaemons, run_command, set_time_slice
from dray.drivers.opaque_configs.nvidia import MpsConfig

NAME = driver_names.NVIDIA
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})  # the program's fault, not the GPU's
HEARTBEAT = 10.0


class NvidiaDriver:
    """Hands out NVIDIA GPUs and slices of them."""

    name = NAME

    def __init__(
        self,
        nvml: Nvml,
        *,
        state: Path,
        sysfs: Path = Path("/sys"),
        root: Path = Path("/"),
        run: Commands = run_command,
        static_mig: bool = False,
    ) -> None:
        self._nvml = nvml
        self._sysfs = sysfs
        self._files = NodeFiles(root)
        self._run = run
        self._static_mig = static_mig
        self._mps = MpsDaemons(state / "mps", run)
        self._lock = threading.Lock()  # NVML calls that create and destroy must not interleave
        self._taints: dict[str, list[DeviceTaint]] = {}  # GPU uuid -> taints from its health
        self._health_changed = asyncio.Event()

    # --- discovering ------------------------------------------------------------

    def discover(self) -> list[Pool]:
        """Return all GPUs and, for those in MIG mode, all slices."""
        devices: list[Device] = []
        counters = []
        for gpu in read_gpus(self._nvml, self._sysfs):
            found = [] if gpu.is_mig and self._static_mig else [whole_device(gpu)]
            if gpu.profiles and self._static_mig:
                found += [self._static_device(slot, info) for slot, info in static_instances(self._nvml, gpu)]
            elif gpu.profiles:
                counters.append(counter_set(gpu))
                found += [mig_device(slot) for slot in mig_slots(gpu)]
            taints = self._taints.get(gpu.uuid, [])
            devices += [
                msgspec.structs.replace(device, taints=taints) if taints else device for device in found
            ]
        # By name: the allocator takes the first match, and names sort small slices of one GPU together.
        return [Pool(sorted(devices, key=lambda device: device.name), counters)]

    def _static_device(self, slot: MigSlot, info: Any) -> Device:
        device = mig_device(slot)
        uuid = self._mig_uuid(slot.gpu, int(info.id))
        attributes = dict(device.attributes or {})
        if uuid is not None:
            attributes["uuid"] = type(attributes["type"])(string=uuid)
        return msgspec.structs.replace(device, attributes=attributes, consumes_counters=[])

    # --- preparing --------------------------------------------------------------

    def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Create slices, set up sharing, and say what containers need."""
        with self._lock:
            gpus = {gpu.name: gpu for gpu in read_gpus(self._nvml, self._sysfs)}
            slots = {slot.name: slot for gpu in gpus.values() for slot in mig_slots(gpu)}
            # Every config is read before anything is created.
            plans = [
                (allocated, effective_config(allocated.configs, is_mig=allocated.device not in gpus))
                for allocated in claim.devices
            ]
            made: list[tuple[AllocatedDevice, Config, ContainerEdits, dict[str, Any]]] = []
            try:
                for allocated, config in plans:
                    made.append((allocated, config, *self._ready(allocated, gpus, slots)))
            except Exception:
                for _, _, _, private in made:
                    self._destroy(private)
                raise
            shared = self._share(claim.uid, made)
        return [
            PreparedDevice.of(
                allocated, edits.plus(shared if position == 0 else ContainerEdits()), private=private
            )
            for position, (allocated, _config, edits, private) in enumerate(made)
        ]

    def _ready(
        self, allocated: AllocatedDevice, gpus: dict[str, Gpu], slots: dict[str, MigSlot]
    ) -> tuple[ContainerEdits, dict[str, Any]]:
        gpu = gpus.get(allocated.device)
        if gpu is not None:
            return self._files.for_gpu(gpu.minor, gpu.uuid), {"uuid": gpu.uuid, "gpu": gpu.uuid}
        slot = slots.get(allocated.device)
        if slot is None:
            raise DriverError(
                f"there is no device {allocated.device} on this node (was MIG mode switched off?)"
            )
        instance, compute = self._ensure_instances(slot)
        uuid = self._mig_uuid(slot.gpu, instance)
        if uuid is None:
            raise DriverError(f"{slot.name}: the MIG device does not appear in NVML")
        private = {"uuid": uuid, "gpu": slot.gpu.uuid, "instance": instance, "static": self._static_mig}
        return self._files.for_mig(slot.gpu.minor, instance, compute, uuid), private

    def _ensure_instances(self, slot: MigSlot) -> tuple[int, int]:
        """Create the GPU and compute instance of a slot, or find them; return their ids."""
        instance = self._instance_at(slot)
        created = instance is None
        if instance is None:
            if self._static_mig:
                raise DriverError(f"{slot.name} no longer exists")
            instance = self._create_instance(slot)
        info = self._nvml.nvmlGpuInstanceGetInfo(instance)
        try:
            compute = self._whole_compute_instance(instance)
        except Exception:
            if created:
                self._nvml.nvmlGpuInstanceDestroy(instance)
            raise
        return int(info.id), compute

    def _instance_at(self, slot: MigSlot) -> Handle | None:
        for instance in self._nvml.nvmlDeviceGetGpuInstances(slot.gpu.handle, slot.profile.id):
            if int(self._nvml.nvmlGpuInstanceGetInfo(instance).placement.start) == slot.start:
                return instance
        return None

    def _create_instance(self, slot: MigSlot) -> Handle:
        for placement in self._nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            slot.gpu.handle, slot.profile.id
        ):
            if int(placement.start) == slot.start:
                break
        else:
            raise DriverError(f"{slot.name}: NVML knows no placement at {slot.start}")
        try:
            return self._nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                slot.gpu.handle, slot.profile.id, placement
            )
        except self._nvml.NVMLError as error:
            if code_of(error) == INSUFFICIENT_RESOURCES:
                raise DriverError(
                    f"{slot.name}: another instance, which this driver does not know, is in the way; "
                    "look at `nvidia-smi mig -lgi`"
                ) from error
            raise

    def _whole_compute_instance(self, instance: Handle) -> int:
        """Return the id of the compute instance that fills the GPU instance, made if need be."""
        for number in range(32):
            try:
                profile = self._nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0)
            except self._nvml.NVMLError as error:
                if code_of(error) in (NOT_SUPPORTED, NOT_FOUND, 2):
                    continue
                raise
            if int(profile.instanceCount) != 1:
                continue  # only a profile that fits exactly once fills the instance
            existing = self._nvml.nvmlGpuInstanceGetComputeInstances(instance, profile.id)
            compute = (
                existing[0]
                if existing
                else self._nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile.id)
            )
            return int(self._nvml.nvmlComputeInstanceGetInfo(compute).id)
        raise DriverError("NVML offers no compute instance that fills the GPU instance")

    def _mig_uuid(self, gpu: Gpu, instance_id: int) -> str | None:
        for index in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
            try:
                handle = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, index)
            except self._nvml.NVMLError as error:
                if code_of(error) in (NOT_FOUND, 2):
                    continue
                raise
            if self._nvml.nvmlDeviceGetGpuInstanceId(handle) == instance_id:
                return as_text(self._nvml.nvmlDeviceGetUUID(handle))
        return None

    def _share(
        self, claim_uid: str, made: Sequence[tuple[AllocatedDevice, Config, ContainerEdits, dict[str, Any]]]
    ) -> ContainerEdits:
        edits = ContainerEdits()
        mps: MpsConfig | None = None
        mps_uuids = []
        for _allocated, config, _edits, private in made:
            sharing = config.sharing
            if sharing is None:
                continue
            if sharing.strategy == "MPS":
                mps = sharing.mps_config or MpsConfig()
                mps_uuids.append(str(private["uuid"]))
            elif "instance" not in private:  # time slices of a MIG device cannot be set
                interval = sharing.time_slicing_config.interval if sharing.time_slicing_config else "Default"
                set_time_slice(self._run, str(private["uuid"]), interval)
                private["timeSlice"] = interval
        if mps is not None:
            edits = edits.plus(self._mps.start(claim_uid, mps_uuids, mps))
        return edits

    # --- unpreparing --------------------------------------------------------------

    def unprepare(self, claim: PreparedClaim) -> None:
        """Stop sharing and destroy what prepare created."""
        with self._lock:
            self._mps.stop(claim.uid)
            for device in claim.devices:
                if device.private:
                    if device.private.get("timeSlice", "Default") != "Default":
                        set_time_slice(self._run, device.private["uuid"], "Default")
                    self._destroy(device.private)
            if not claim.is_complete:
                self._destroy_slots({device.device for device in claim.devices})

    def _destroy(self, private: dict[str, Any]) -> None:
        if "instance" not in private or private.get("static"):
            return
        for gpu in read_gpus(self._nvml, self._sysfs):
            if gpu.uuid == private["gpu"]:
                self._destroy_instance(gpu, int(private["instance"]))

    def _destroy_slots(self, names: set[str]) -> None:
        """Destroy the instances at the places of these devices: a prepare that was cut short left no id."""
        if self._static_mig:
            return
        for gpu in read_gpus(self._nvml, self._sysfs):
            for slot, info in static_instances(self._nvml, gpu):
                if slot.name in names:
                    self._destroy_instance(gpu, int(info.id))

    def _destroy_instance(self, gpu: Gpu, instance_id: int) -> None:
        try:
            instance = self._nvml.nvmlDeviceGetGpuInstanceById(gpu.handle, instance_id)
        except self._nvml.NVMLError as error:
            if code_of(error) in (NOT_FOUND, 2):
                return  # gone already
            raise
        for number in range(32):
            try:
                profile = self._nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0)
                computes = self._nvml.nvmlGpuInstanceGetComputeInstances(instance, profile.id)
            except self._nvml.NVMLError as error:
                if code_of(error) in (NOT_SUPPORTED, NOT_FOUND, 2):
                    continue
                raise
            for compute in computes:
                self._nvml.nvmlComputeInstanceDestroy(compute)
        self._nvml.nvmlGpuInstanceDestroy(instance)

    def recover(self, known: Sequence[PreparedClaim]) -> None:
        """Destroy MIG instances that belong to no claim on record."""
        if self._static_mig:
            return
        wanted = {
            (device.private["gpu"], int(device.private["instance"]))
            for claim in known
            for device in claim.devices
            if device.private and "instance" in device.private
        }
        # A claim whose prepare was cut short will be prepared again, and finds its instance by its place.
        unfinished = {device.device for claim in known if not claim.is_complete for device in claim.devices}
        with self._lock:
            for gpu in read_gpus(self._nvml, self._sysfs):
                for slot, info in static_instances(self._nvml, gpu):
                    if (gpu.uuid, int(info.id)) not in wanted and slot.name not in unfinished:
                        self._destroy_instance(gpu, int(info.id))

    # --- health ---------------------------------------------------------------------

    async def changes(self) -> AsyncIterator[object]:
        """Yield when the health, and with it the taints, changed."""
        while True:
            await self._health_changed.wait()
            self._health_changed.clear()
            yield None

    async def health(self) -> AsyncIterator[Iterable[DeviceHealth]]:
        """Follow NVML's events; yield at every change and as a heartbeat."""
        nvml = self._nvml
        gpus = {gpu.uuid: gpu for gpu in await asyncio.to_thread(read_gpus, nvml, self._sysfs)}
        events = nvml.nvmlEventSetCreate()
        try:
            for gpu in gpus.values():
                self._register(gpu, events)
            while True:
                yield self._report(gpus.values())
                event = await asyncio.to_thread(self._wait, events)
                if event is not None:
                    self._note(event)
                    self._health_changed.set()
        finally:
            nvml.nvmlEventSetFree(events)

    def _register(self, gpu: Gpu, events: Handle) -> None:
        try:
            self._nvml.nvmlDeviceRegisterEvents(gpu.handle, EVENT_XID | EVENT_DOUBLE_BIT, events)
        except self._nvml.NVMLError as error:
            if code_of(error) != NOT_SUPPORTED:
                raise
            self._taint(gpu.uuid, DeviceTaint(key=f"{NAME}/unmonitored", effect="None"))

    def _wait(self, events: Handle) -> tuple[str, int] | None:
        """Wait for one event: (GPU uuid, XID); XID -1 means the GPU is lost."""
        try:
            event = self._nvml.nvmlEventSetWait_v2(events, int(HEARTBEAT * 1000))
        except self._nvml.NVMLError as error:
            if code_of(error) == TIMEOUT:
                return None
            if code_of(error) == GPU_IS_LOST:
                return "", -1
            raise
        return as_text(self._nvml.nvmlDeviceGetUUID(event.device)), int(event.eventData)

    def _note(self, event: tuple[str, int]) -> None:
        uuid, xid = event
        if xid == -1:
            for index in range(self._nvml.nvmlDeviceGetCount()):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                try:
                    self._nvml.nvmlDeviceGetMemoryInfo(handle)
                except self._nvml.NVMLError as error:
                    if code_of(error) == GPU_IS_LOST:
                        lost = as_text(self._nvml.nvmlDeviceGetUUID(handle))
                        self._taint(lost, DeviceTaint(key=f"{NAME}/gpu-lost", effect="NoSchedule"))
            return
        effect = "None" if xid in APPLICATION_XIDS else "NoSchedule"
        self._taint(uuid, DeviceTaint(key=f"{NAME}/xid", value=str(xid), effect=effect))

    def _taint(self, uuid: str, taint: DeviceTaint) -> None:
        others = [entry for entry in self._taints.get(uuid, []) if entry.key != taint.key]
        self._taints[uuid] = [*others, taint]

    def _report(self, gpus: Iterable[Gpu]) -> list[DeviceHealth]:
        report = []
        for gpu in gpus:
            bad = [taint for taint in self._taints.get(gpu.uuid, []) if taint.effect == "NoSchedule"]
            message = ", ".join(f"{taint.key.rpartition('/')[2]} {taint.value}".strip() for taint in bad)
            health = UNHEALTHY if bad else HEALTHY
            names = [gpu.name, *(slot.name for slot in mig_slots(gpu))]
            report += [DeviceHealth("", name, health, message) for name in names]
        return report
