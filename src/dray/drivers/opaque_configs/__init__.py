"""What real drivers accept as opaque parameters: typed, strict, one definition per driver.

The simulated drivers fail `prepare` with these errors, and `dray check` reports them before
a claim reaches a cluster. Drivers whose configs are not known here accept anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dray.drivers import driver_names
from dray.drivers.opaque_configs.amd import parse_amd_config
from dray.drivers.opaque_configs.ascend import parse_npu_config
from dray.drivers.opaque_configs.compute_domains import parse_domain_config
from dray.drivers.opaque_configs.cpus import parse_cpu_config
from dray.drivers.opaque_configs.decoding import OpaqueConfigError
from dray.drivers.opaque_configs.dranet import parse_network_config
from dray.drivers.opaque_configs.example import parse_gpu_config, parse_net_config, refuse_config
from dray.drivers.opaque_configs.nvidia import parse_nvidia_config
from dray.drivers.opaque_configs.sriov import parse_vf_config

__all__ = ["OpaqueConfigError", "check_config"]

_PARSERS: Mapping[str, Callable[[Any], object]] = {
    driver_names.NVIDIA: parse_nvidia_config,
    driver_names.AMD: parse_amd_config,
    driver_names.COMPUTE_DOMAIN: parse_domain_config,
    driver_names.EXAMPLE_GPU: parse_gpu_config,
    driver_names.EXAMPLE_NET: parse_net_config,
    driver_names.EXAMPLE_CPU: refuse_config,
    driver_names.CPU: parse_cpu_config,
    driver_names.SRIOV: parse_vf_config,
    driver_names.NETWORK: parse_network_config,
    driver_names.ASCEND: parse_npu_config,
    driver_names.HAMI: parse_nvidia_config,
}


def check_config(driver: str, parameters: Any) -> None:
    """Raise OpaqueConfigError when the driver would refuse the parameters; unknown drivers refuse nothing."""
    parser = _PARSERS.get(driver)
    if parser is not None:
        parser(parameters)
