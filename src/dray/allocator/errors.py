"""What can go wrong while allocating, as one tree.

    AllocationError              fatal for the pod: no other node can help
    ├── InvalidRequestError      the claim, its class or a gate forbids the request
    ├── SelectorError            a CEL expression does not compile or fails on a device
    ├── PoolUpdatingError        "all devices" of a pool that is not whole (or not valid)
    └── CapacityError            an amount that cannot be computed with

"Does not fit here" is not an error: it is the value `Unsatisfied`. The texts are those
of upstream, because users search for them.
"""

from __future__ import annotations


class AllocationError(Exception):
    """Allocation cannot go on, on any node; the text names claim, request and cause."""


class InvalidRequestError(AllocationError):
    """The claim asks for something that is switched off, unknown or impossible."""


class SelectorError(AllocationError):
    """A CEL expression failed; carries the underlying error as `__cause__`."""


class PoolUpdatingError(AllocationError):
    """All devices are wanted while a pool on the node is incomplete or invalid."""


class CapacityError(AllocationError):
    """A capacity is negative or beyond the arithmetic of the device's range."""
