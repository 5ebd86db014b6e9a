"""An in-memory NVML: same function names, same error codes, and the same rules for MIG placements."""

import itertools
import queue
import uuid
from types import SimpleNamespace

from dray.drivers.hardware.gpus import GPU_MODELS


class NVMLError(Exception):
    def __init__(self, value, text=""):
        super().__init__(text or f"NVML error {value}")
        self.value = value


class Gpu:
    def __init__(self, index, model, mig, bus):
        self.index, self.model, self.mig, self.bus = index, GPU_MODELS[model], mig, bus
        self.uuid = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'gpu{index}')}"
        self.instances = {}
        self.lost = False


class Instance:
    def __init__(self, gpu, identity, profile, start):
        self.gpu, self.id, self.profile, self.start = gpu, identity, profile, start
        self.computes = {}
        self.uuid = f"MIG-{uuid.uuid4()}"


class FakeNvml:
    """`FakeNvml(["A100-40GB", ...], mig=True)`; `xid(0, 79)` makes an event, `lose(0)` takes a GPU away."""

    NVMLError = NVMLError

    def __init__(self, models, mig=False):
        self.gpus = [Gpu(i, model, mig, f"00000000:{0x1B + i:02X}:00.0") for i, model in enumerate(models)]
        self.events = queue.Queue()
        self.monitored = True
        self.created = self.destroyed = 0
        self._ids = itertools.count(1)
        self.fail_compute = False

    def _fields(self, handle):
        if handle.lost:
            raise NVMLError(15)
        return handle

    def nvmlInit(self):
        pass

    def nvmlSystemGetDriverVersion(self):
        return "580.82.07"

    def nvmlSystemGetCudaDriverVersion(self):
        return 13000

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle):
        return handle.uuid

    def nvmlDeviceGetName(self, handle):
        return handle.model.product_name

    def nvmlDeviceGetBrand(self, handle):
        return 15

    def nvmlDeviceGetArchitecture(self, handle):
        return {"Ampere": 7, "Hopper": 9, "Blackwell": 10}[handle.model.architecture]

    def nvmlDeviceGetMinorNumber(self, handle):
        return handle.index

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=self._fields(handle).model.memory_mib << 20)

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=handle.bus)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        major, minor, _ = handle.model.compute_capability.split(".")
        return int(major), int(minor)

    def nvmlDeviceGetMigMode(self, handle):
        if not handle.model.mig_profiles:
            raise NVMLError(3)
        return int(handle.mig), int(handle.mig)

    # --- MIG ------------------------------------------------------------------

    def _profile(self, handle, profile_id):
        for profile in handle.model.mig_profiles:
            if profile.instance_profile_id == profile_id:
                return profile
        raise NVMLError(2)

    def nvmlDeviceGetGpuInstanceProfileInfo(self, handle, profile, version):
        if profile >= len(handle.model.mig_profiles):
            raise NVMLError(2)
        found = handle.model.mig_profiles[profile]
        engines = found.engines
        return SimpleNamespace(
            id=found.instance_profile_id, name=f"MIG {found.name}", memorySizeMB=found.memory_mib,
            sliceCount=found.compute_slices, multiprocessorCount=engines.multiprocessors,
            copyEngineCount=engines.copy_engines, decoderCount=engines.decoders, encoderCount=engines.encoders,
            jpegCount=engines.jpeg_engines, ofaCount=engines.ofa_engines,
        )  # fmt: skip

    def nvmlDeviceGetGpuInstancePossiblePlacements(self, handle, profile_id):
        found = self._profile(handle, profile_id)
        return [SimpleNamespace(start=start, size=found.memory_slices) for start in found.starts]

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, handle, profile_id, placement):
        found = self._profile(handle, profile_id)
        if placement.start not in found.starts:
            raise NVMLError(2)
        wanted = set(range(placement.start, placement.start + found.memory_slices))
        used = {
            index
            for instance in handle.instances.values()
            for index in range(instance.start, instance.start + instance.profile.memory_slices)
        }
        compute = sum(instance.profile.compute_slices for instance in handle.instances.values())
        if wanted & used or compute + found.compute_slices > 7:
            raise NVMLError(23)
        instance = Instance(handle, next(self._ids), found, placement.start)
        handle.instances[instance.id] = instance
        self.created += 1
        return instance

    def nvmlDeviceGetGpuInstanceById(self, handle, instance_id):
        if instance_id not in handle.instances:
            raise NVMLError(6)
        return handle.instances[instance_id]

    def nvmlDeviceGetGpuInstances(self, handle, profile_id):
        found = self._profile(handle, profile_id)
        return [instance for instance in handle.instances.values() if instance.profile is found]

    def nvmlGpuInstanceGetInfo(self, instance):
        placement = SimpleNamespace(start=instance.start, size=instance.profile.memory_slices)
        return SimpleNamespace(
            id=instance.id, profileId=instance.profile.instance_profile_id, placement=placement
        )

    def nvmlGpuInstanceDestroy(self, instance):
        if instance.computes:
            raise NVMLError(19)  # in use
        del instance.gpu.instances[instance.id]
        self.destroyed += 1

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self, instance, profile, engine):
        slices = instance.profile.compute_slices
        sizes = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}
        if profile not in sizes or sizes[profile] > slices:
            raise NVMLError(3)
        return SimpleNamespace(id=profile, instanceCount=slices // sizes[profile], sliceCount=sizes[profile])

    def nvmlGpuInstanceCreateComputeInstance(self, instance, profile_id):
        if self.fail_compute:
            raise NVMLError(4, "Insufficient Permissions")
        compute = SimpleNamespace(id=len(instance.computes), instance=instance, profile=profile_id)
        instance.computes[compute.id] = compute
        return compute

    def nvmlGpuInstanceGetComputeInstances(self, instance, profile_id):
        return [compute for compute in instance.computes.values() if compute.profile == profile_id]

    def nvmlComputeInstanceGetInfo(self, compute):
        return SimpleNamespace(id=compute.id)

    def nvmlComputeInstanceDestroy(self, compute):
        del compute.instance.computes[compute.id]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        alive = [instance for instance in handle.instances.values() if instance.computes]
        if index >= len(alive):
            raise NVMLError(6)
        return alive[index]

    def nvmlDeviceGetGpuInstanceId(self, handle):
        return handle.id

    def nvmlDeviceSetComputeMode(self, handle, mode):
        pass

    # --- events ---------------------------------------------------------------

    def nvmlEventSetCreate(self):
        return object()

    def nvmlEventSetFree(self, events):
        self.events.put(None)

    def nvmlDeviceRegisterEvents(self, handle, kinds, events):
        if not self.monitored:
            raise NVMLError(3)

    def nvmlEventSetWait_v2(self, events, milliseconds):
        event = self.events.get()
        if event is None:
            raise NVMLError(10)
        if event == "lost":
            raise NVMLError(15)
        return event

    def xid(self, index, number):
        self.events.put(SimpleNamespace(device=self.gpus[index], eventData=number))

    def lose(self, index):
        self.gpus[index].lost = True
        self.events.put("lost")
