"""The controller of ComputeDomains (NVIDIA's multi-node GPU memory)."""

from dray.control.compute_domains.controller import ComputeDomainController

__all__ = ["ComputeDomainController"]
