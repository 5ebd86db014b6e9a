"""The names of the drivers that dray ships and models, as they stand in ResourceSlices."""

from __future__ import annotations

from typing import Final

NVIDIA: Final = "gpu.nvidia.com"
TPU: Final = "tpu.google.com"
NETWORK: Final = "dra.net"
FPGA: Final = "fpga.dray.dev"
CPU: Final = "dra.cpu"

# The short name of a shipped driver on the command line -> its name in the API.
NAME_BY_SHORT_NAME: Final = {"nvidia": NVIDIA, "tpu": TPU, "network": NETWORK, "fpga": FPGA, "cpu": CPU}
