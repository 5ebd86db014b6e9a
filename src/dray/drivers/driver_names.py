"""The names of the drivers that dray ships and models, as they stand in ResourceSlices."""

from __future__ import annotations

from typing import Final

from dray.api import compute_domains

NVIDIA: Final = "gpu.nvidia.com"
TPU: Final = "tpu.google.com"
NETWORK: Final = "dra.net"
FPGA: Final = "fpga.dray.dev"
CPU: Final = "dra.cpu"
# The three device profiles of kubernetes-sigs/dra-example-driver: modelled, not shipped.
EXAMPLE_GPU: Final = "gpu.example.com"
EXAMPLE_NET: Final = "net.example.com"
EXAMPLE_CPU: Final = "cpu.example.com"
# Modelled, not shipped.
INTEL_GPU: Final = "gpu.intel.com"
INTEL_VFIO_CLASS: Final = "gpu-vfio.intel.com"  # a class, not a driver
GAUDI: Final = "gaudi.intel.com"
QAT: Final = "qat.intel.com"
AMD: Final = "gpu.amd.com"
REBELLIONS: Final = "npu.rebellions.ai"
SPYRE: Final = "spyre.ibm.com"
ASCEND: Final = "ascend.project-hami.io"
HAMI: Final = "hami-core-gpu.project-hami.io"
SRIOV: Final = "sriovnetwork.k8snetworkplumbingwg.io"
COMPUTE_DOMAIN: Final = compute_domains.DRIVER

# The short name of a shipped driver on the command line -> its name in the API.
NAME_BY_SHORT_NAME: Final = {"nvidia": NVIDIA, "tpu": TPU, "network": NETWORK, "fpga": FPGA, "cpu": CPU}
