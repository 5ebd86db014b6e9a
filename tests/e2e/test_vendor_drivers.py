"""What the demos of NVIDIA, dranet, Intel, AMD, SR-IOV, dra-driver-cpu, TPU and smaller drivers show: feature × profile × what pods see.

The manifests are our own; each row names the demo (of the newest version read) whose feature it is. Rows of one profile
run one after the other, profiles beside each other, all on one `dray up`.
"""

import asyncio

import pytest
import yaml
from device_features import Feature, RunningUp, check, play

from dray.client import Client
from dray.client.resources import PODS

NVIDIA, INTEL, GAUDI, QAT, AMD = (
    "gpu.nvidia.com",
    "gpu.intel.com",
    "gaudi.intel.com",
    "qat.intel.com",
    "gpu.amd.com",
)
SRIOV, NET, CPU, TPU = "sriovnetwork.k8snetworkplumbingwg.io", "dra.net", "dra.cpu", "tpu.google.com"


def ask(device_class, cel="", name="it", **fields):
    selectors = {"selectors": [{"cel": {"expression": cel}}]} if cel else {}
    return {"name": name, "exactly": {"deviceClassName": device_class, **selectors, **fields}}


def devices(*requests, config=(), match=""):
    constraints = [{"matchAttribute": match}] if match else []
    return yaml.safe_dump({"requests": list(requests), "config": list(config), "constraints": constraints})


def opaque(driver, api_version, kind, requests=("it",), **parameters):
    body = {"apiVersion": api_version, "kind": kind, **parameters}
    return {"requests": list(requests), "opaque": {"driver": driver, "parameters": body}}


def gpu_config(request, **sharing):
    return opaque(NVIDIA, "resource.nvidia.com/v1beta1", "GpuConfig", [request], sharing=sharing)


def mig(profile, name):
    return ask("mig.nvidia.com", f"device.attributes['{NVIDIA}'].profile == '{profile}'", name)


def partition(name):
    return ask(AMD, f"device.attributes['{AMD}'].type == 'amdgpu-partition'", name)


SLICES = gpu_config("slices", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
LIMITS = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}
MPS = gpu_config("mps", strategy="MPS", mpsConfig=LIMITS)

FEATURES = [
    # --- NVIDIA: demo/specs/quickstart, consumable-shares, extended-resources, fabric-manager-partitioning
    Feature("nv-two-pods", "dgx-h100", devices(ask(NVIDIA)), pods=2, shows=("_MODEL=NVIDIA H100",)),
    Feature("nv-two-gpus", "dgx-h100", devices(ask(NVIDIA, count=2)), devices=2),
    Feature("nv-slices-and-mps", "dgx-h100", devices(ask(NVIDIA, name="slices"), ask(NVIDIA, name="mps"), config=[SLICES, MPS]),
            shows=("_TIMESLICE_INTERVAL=Long", "_MPS_ACTIVE_THREAD_PERCENTAGE=50", "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"),
            devices=2),
    Feature("nv-extended", "dgx-h100", limits=(("nvidia.com/gpu", "1"),), shows=("DRAY_DEVICE_GPU_",)),
    Feature("nv-mig", "dgx-a100-mig", devices(mig("1g.5gb", "a"), mig("1g.5gb", "b"), mig("2g.10gb", "c"), mig("3g.20gb", "d"),
            match=f"{NVIDIA}/parentUUID"), pods=2, devices=4, shows=("_PROFILE=3g.20gb",)),
    Feature("nv-mig-extended-size", "gh200-mig", devices(mig("1g.12gb", "a")), devices=1, shows=("_PROFILE=1g.12gb",)),
    Feature("nv-selected", "dgx-a100-mig", devices(ask(NVIDIA,
            f"device.attributes['{NVIDIA}'].productName.lowerAscii().matches('^.*a100.*$')")), shows=("_MODEL=NVIDIA A100",)),
    # The driver does not publish `index` any more: its own quickstart 6 cannot run, and the scheduler says why.
    Feature("nv-index-is-gone", "dgx-a100-mig", devices(ask(NVIDIA, f"device.attributes['{NVIDIA}'].index == 0")), waits="index"),
    Feature("nv-memory-shares", "l40s-shared", devices(ask(NVIDIA, capacity={"requests": {"memory": "4Gi"}})), pods=2,
            shows=("_CAPACITY_MEMORY=4Gi",), distinct=False),
    Feature("nv-integer-shares", "l40s-timesliced", devices(ask(NVIDIA)), pods=2, shows=("_CAPACITY_SHARES=1",), distinct=False),
    Feature("nv-vfio", "h100-vfio", devices(ask("vfio.gpu.nvidia.com"), config=[opaque(
            NVIDIA, "resource.nvidia.com/v1beta1", "VfioDeviceConfig", iommu={"backendPolicy": "LegacyOnly", "enableAPIDevice": True})]),
            shows=("DRAY_DEVICE_GPU_VFIO_0=",)),
    Feature("nv-fabric-partition", "h100-vfio", devices(ask("vfio.gpu.nvidia.com", count=2), match=f"{NVIDIA}/partition2"), devices=2),
    # --- Intel: deployments/{gpu,gaudi,qat}/{examples,tests}
    Feature("intel-inline", "intel-flex170", devices(ask(INTEL)), pods=2, shows=("DRAY_DEVICE_0000_",)),
    Feature("intel-memory", "intel-flex170", devices(ask(INTEL, f"device.capacity['{INTEL}'].memory.compareTo(quantity('4Gi')) >= 0"))),
    Feature("intel-same-root", "intel-flex170", devices(ask(INTEL, count=2), match=f"{INTEL}/pciRoot"), devices=2),
    Feature("intel-sriov", "intel-flex170", devices(ask(INTEL, f"device.attributes['{INTEL}'].sriov == true"))),
    Feature("intel-driver", "intel-flex170", devices(ask(INTEL, f"device.attributes['{INTEL}'].driver == 'i915'"))),
    Feature("admin-intel", "intel-flex170", devices(ask(INTEL, adminAccess=True, allocationMode="All",
            tolerations=[{"effect": "NoExecute"}, {"effect": "NoSchedule"}])), devices=4, shows=("DRA_ADMIN_ACCESS=true",)),
    Feature("intel-extended", "intel-flex170", limits=(("intel.com/gpu", "1"),), shows=("DRAY_DEVICE_0000_",)),
    Feature("intel-vfio", "intel-flex170", devices(ask("gpu-vfio.intel.com"))),
    Feature("intel-family", "intel-b60", devices(ask(INTEL, f"device.attributes['{INTEL}'].family.startsWith('Arc')"))),
    Feature("intel-with-dranet", "intel-b60", devices(ask("dranet", "device.attributes['dra.net'].rdma == true", "nic"), ask(INTEL, name="gpu"),
            match="resource.kubernetes.io/pcieRoot"), devices=2),
    Feature("intel-alternatives", "gaudi3", devices({"name": "ai", "firstAvailable": [
            {"name": "gpu", "deviceClassName": INTEL}, {"name": "gaudi", "deviceClassName": GAUDI}]}), shows=("HABANA_VISIBLE_DEVICES=0",)),
    Feature("gaudi-two", "gaudi3", devices(ask(GAUDI, f"device.attributes['{GAUDI}'].model == 'Gaudi3'", count=2)),
            shows=("HL_VISIBLE_DEVICES=/dev/accel/accel",), devices=2),
    Feature("gaudi-extended", "gaudi3", limits=((f"deviceclass.resource.kubernetes.io/{GAUDI}", "1"),), shows=("HABANA_VISIBLE_MODULES=",)),
    Feature("qat-sym", "qat-gen4", devices(ask(QAT, f"device.attributes['{QAT}'].services == 'sym;asym'")), shows=("DRAY_DEVICE_QATVF_0000_6B_",)),
    Feature("qat-dc", "qat-gen4", devices(ask(QAT, f"device.attributes['{QAT}'].services == 'dc'")), shows=("DRAY_DEVICE_QATVF_0000_E8_",)),
    # --- AMD: example
    Feature("amd-whole", "mi300x", devices(ask(AMD)), pods=2, shows=("DRA_RESOURCE_DRIVER_NAME=gpu.amd.com",)),
    Feature("amd-same-parent", "mi300x-cpx", devices(partition("a"), partition("b"), match="resource.kubernetes.io/pciBusID"), devices=2),
    # Its examples name `deviceID`, which is that of the product: alike everywhere.
    Feature("amd-device-id", "mi300x-cpx", devices(partition("a"), partition("b"), match=f"{AMD}/deviceID"), devices=2),
    Feature("amd-extended", "mi300x", limits=(("amd.com/gpu", "1"),), shows=("DRAY_DEVICE_GPU_",)),
    Feature("amd-on-demand", "mi300x-auto", devices(ask(AMD, f"device.attributes['{AMD}'].computePartition == 'cpx' && "
            f"device.attributes['{AMD}'].memoryPartition == 'nps4'", capacity={"requests": {"partitions": "1"}})), pods=2,
            shows=("_CPX_NPS4_CAPACITY_PARTITIONS=1",), distinct=False),
    # --- SR-IOV: demo
    Feature("sriov-single", "sriov-nics", devices(ask(SRIOV), config=[opaque(
            SRIOV, f"{SRIOV}/v1alpha1", "VfConfig", ifName="net1", netAttachDefName="vf-test1")]), pods=2),
    Feature("sriov-two", "sriov-nics", devices(ask(SRIOV, count=2)), devices=2),
    Feature("sriov-resource", "sriov-nics", devices(ask(SRIOV, "device.attributes['k8s.cni.cncf.io'].resourceName == 'sriov_100g'"))),
    # --- dranet: examples and site
    Feature("net-by-name", "dranet", devices(ask("dranet.net", f"device.attributes['{NET}'].ifName == 'dummy0'")), shows=("DRAY_DEVICE_DUMMY0=",)),
    Feature("net-virtual", "dranet", devices(ask(NET, f"device.attributes['{NET}'].virtual == true"))),
    Feature("net-vf", "dranet", devices(ask(NET, f"has(device.attributes['{NET}'].isSriovVf) && device.attributes['{NET}'].isSriovVf")),
            shows=("DRAY_DEVICE_PCI_0000_06_00_1=",)),
    Feature("net-address", "dranet", devices(ask(NET, f"has(device.attributes['{NET}'].ipv4) && device.attributes['{NET}'].ipv4.startsWith('10.2.')")),
            shows=("DRAY_DEVICE_PCI_0000_86_00_0=",)),
    Feature("net-without-ebpf", "dranet", devices(ask(NET, f"!device.attributes['{NET}'].ebpf && device.attributes['{NET}'].state == 'up'"))),
    Feature("net-cloud", "dranet", devices(ask(NET, "'networkName' in device.attributes['gce.dra.net'] "
            "&& device.attributes['gce.dra.net'].networkName == 'net-1'")), shows=("DRAY_DEVICE_PCI_0000_06_00_0=",)),
    Feature("net-rdma-and-gpu", "dgx-h100", devices(ask(NVIDIA, name="gpu"), ask("dranet", f"device.attributes['{NET}'].rdma == true", "nic"),
            match="resource.kubernetes.io/pcieRoot"), devices=2),
    Feature("net-efa-and-gpu", "eks-p4d", devices(ask(NVIDIA, name="gpu"), ask(NET, f"device.attributes['{NET}'].pciDevice == "
            "'Elastic Fabric Adapter (EFA)'", "efa"), match="resource.kubernetes.io/pcieRoot"), devices=2),
    Feature("net-by-place", "aks-h100", devices(ask(NVIDIA, "device.attributes['resource.kubernetes.io'].pciBusID in "
            "['0001:00:00.0', '0008:00:00.0']", "gpu", count=2), ask(NET, f"device.attributes['{NET}'].numaNode == 1", "nic", count=4)),
            devices=6),
    Feature("net-rdma-port", "gke-a3-ultra", devices(ask("dranet", f"device.attributes['{NET}'].ifName == 'gpu2rdma0'")),
            shows=("DRAY_DEVICE_PCI_0000_98_00_0=",)),
    # --- dranet on clouds, and the classes of GKE
    Feature("oke-gpu-and-port", "oke-h100", devices(ask(NVIDIA, name="gpu"), ask(NET, f"device.attributes['{NET}'].rdma && "
            f"device.attributes['{NET}'].ifName.startsWith('rdma')", "nic"), match="resource.kubernetes.io/pcieRoot"), devices=2),
    Feature("aks-amd-nics-of-a-numa-node", "aks-mi300x", devices(ask("dranet.net", f"device.attributes['{NET}'].numaNode == 1", count=4)), devices=4),
    Feature("gke-rdma-ports", "gke-a3-ultra", devices(ask("mrdma.google.com", count=8)), devices=8),
    Feature("gke-netdev-of-tpu", "tpu-v6e-4x4", devices(ask("netdev.google.com", count=2)), devices=2),
    # --- dra-driver-cpu: docs and tests
    Feature("cpu-performance-cores", "cpu-individual", devices(ask(CPU, f"device.attributes['{CPU}'].coreType == 'p-core'", count=4)), devices=4),
    Feature("cpu-two", "cpu-numa", devices(ask(CPU, capacity={"requests": {f"{CPU}/cpu": "2"}})), pods=2, distinct=False,
            shows=("_CAPACITY_DRA_CPU_CPU=2",)),
    Feature("cpu-of-a-numa-node", "cpu-numa", devices(ask(CPU, f"device.attributes['{CPU}'].numaNodeID == 1",
            capacity={"requests": {f"{CPU}/cpu": "4"}})), devices=1),
    # --- Google: demo/specs
    Feature("tpu-all", "tpu-v5e", devices(ask(TPU, allocationMode="All")), devices=8,
            shows=("TPU_TOPOLOGY=2x4", "TPU_ACCELERATOR_TYPE=v5litepod-8", "DRAY_DEVICE_7=")),
    Feature("tpu-count-of-the-host", "tpu-v5p", devices(ask(TPU, count=4)), devices=4, shows=("TPU_CHIPS_PER_HOST_BOUNDS=2,2,1",)),
    Feature("tpu-v4-host", "tpu-v4", devices(ask(TPU, count=4)), devices=4, shows=("TPU_ACCELERATOR_TYPE=v4-8",)),
    Feature("tpu-host-of-a-slice", "tpu-v6e-4x4", limits=(("google.com/tpu", "4"),),
            shows=("TPU_ACCELERATOR_TYPE=v6e-16", "TPU_HOST_BOUNDS=2,2,1")),
    Feature("tpu-part", "tpu-v5e", devices(ask(TPU, count=4)), refused="claim requests partial tpu devices (4)"),
    # --- Rebellions, Spyre, Ascend, HAMi: examples and demo
    Feature("rbln-two", "rebellions-atom", devices(ask("npu.rebellions.ai", count=2)), devices=2, shows=("DRAY_DEVICE_RBLN0=",)),
    Feature("rbln-extended", "rebellions-atom", limits=(("rebellions.ai/npu", "1"),), shows=("DRAY_DEVICE_RBLN",)),
    Feature("spyre-chosen", "spyre", devices(ask("spyre.ibm.com", "device.attributes['spyre.ibm.com'].pciAddress == '0000:1a:00.0'")),
            shows=("DRAY_DEVICE_0000_1A_00_0=",)),
    Feature("spyre-one-numa-node", "spyre", devices(ask("spyre.ibm.com", count=4), match="spyre.ibm.com/numaInfo"), devices=4),
    Feature("ascend-card", "ascend-310p", devices(ask("npu-ascend310p.project-hami.io")), pods=2, shows=("ASCEND_VISIBLE_DEVICES=",)),
    Feature("hami-shares", "hami-l40s", devices(ask("hami-core-gpu.project-hami.io", capacity={"requests": {"cores": "30", "memory": "4Gi"}})),
            pods=2, shows=("CUDA_DEVICE_SM_LIMIT_0=30", "CUDA_DEVICE_MEMORY_LIMIT_0=4096m"), distinct=False),
]  # fmt: skip


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    profiles = sorted({feature.profile for feature in FEATURES})
    running = RunningUp(tmp_path_factory.mktemp("vendors"), *profiles)
    yield running
    running.stop()


async def run_features(client, features):
    """Run rows of one profile one after the other; return what went wrong."""
    wrong = []
    for feature in features:
        try:
            check(feature, await play(client, feature))
        except Exception as error:
            wrong.append(f"{feature.name} on {feature.profile}: {error}")
        for number in range(feature.pods):
            await client.delete(PODS, f"pod-{number}", feature.name, grace_seconds=0)
    return wrong


async def test_every_feature_of_the_demos_works_on_its_model(system):
    by_profile = {}
    for feature in FEATURES:
        by_profile.setdefault(feature.profile, []).append(feature)
    async with Client.connect(system.kubeconfig) as client:
        outcomes = await asyncio.gather(*(run_features(client, rows) for rows in by_profile.values()))
        assert [line for wrong in outcomes for line in wrong] == []
