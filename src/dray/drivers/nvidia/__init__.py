"""`gpu.nvidia.com`: NVIDIA GPUs through NVML: whole GPUs, MIG, time-slicing, MPS, health."""

from dray.drivers.nvidia.driver import NvidiaDriver
from dray.drivers.nvidia.nvml import load_nvml

__all__ = ["NvidiaDriver", "load_nvml"]
