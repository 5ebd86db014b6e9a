"""Devices that sit together, without the user having to know how the machine is wired.

The policy `topology` first asks for all devices of a claim behind one PCIe root, then on
one NUMA node, then anywhere. It does so by adding the constraint that a careful user
would have written, so whatever it finds is a correct answer to the claim as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from dray.api.resource import DeviceConstraint, ResourceClaim
from dray.api.well_known import NUMA_NODE, PCIE_ROOT

CLOSENESS = (PCIE_ROOT, NUMA_NODE)  # the closer first


def with_closeness(claims: Sequence[ResourceClaim]) -> Iterator[tuple[bytes, Sequence[ResourceClaim]]]:
    """Yield the claims with ever weaker ties between their devices, each with a name; the last are as they are."""
    if any(_wants_several(claim) for claim in claims):
        for attribute in CLOSENESS:
            yield (
                attribute.encode(),
                [_tied(claim, attribute) if _wants_several(claim) else claim for claim in claims],
            )
    yield b"", claims


def _wants_several(claim: ResourceClaim) -> bool:
    requests = claim.spec.devices.requests
    return len(requests) > 1 or any(
        max(
            [each.count for each in request.first_available]
            + [request.exactly.count if request.exactly else 0]
        )
        > 1
        for request in requests
    )


def _tied(claim: ResourceClaim, attribute: str) -> ResourceClaim:
    devices = claim.spec.devices
    together = DeviceConstraint(match_attribute=attribute)
    devices = msgspec.structs.replace(devices, constraints=[*devices.constraints, together])
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))
