"""The controller of ComputeDomains (NVIDIA's multi-node GPU memory)."""

from dray.control.compute_domains.controller import ComputeDomainController
from dray.control.compute_domains.desired import workload_template

__all__ = ["ComputeDomainController", "workload_template"]
