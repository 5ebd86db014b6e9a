"""Configs of dra-driver-cpu: the CPUs of a request, where the driver groups by machine.

Another scheduler writes them into the claim's allocation, or a user into the claim. The driver reads them in that mode
only; fields that it does not know are passed over.
"""

from __future__ import annotations

import re
from typing import Any

from dray.drivers.opaque_configs.decoding import OpaqueConfigError

API_VERSION = "v1alpha1"
_RANGES = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*")


def parse_cpu_config(parameters: Any) -> None:
    """Check one config; raise OpaqueConfigError with the driver's message."""
    if not isinstance(parameters, dict):
        raise OpaqueConfigError("failed to unmarshal opaque config: not an object")
    version = parameters.get("apiVersion", "")
    if version != API_VERSION:
        raise OpaqueConfigError(f'unsupported opaque config apiVersion: "{version}"', "apiVersion")
    config = parameters.get("cpuConfig", {})
    cpus = config.get("cpuset", "") if isinstance(config, dict) else None
    if not isinstance(cpus, str):
        raise OpaqueConfigError("failed to unmarshal opaque config: cpuConfig.cpuset is a text", "cpuConfig")
    if not cpus:
        raise OpaqueConfigError("opaque config: cpuConfig.cpuset is empty or missing", "cpuConfig")
    ranges = [part.partition("-") for part in cpus.split(",")]
    if not _RANGES.fullmatch(cpus) or any(end and int(start) > int(end) for start, _, end in ranges):
        raise OpaqueConfigError(f'opaque config: failed to parse cpuset "{cpus}"', "cpuConfig.cpuset")
