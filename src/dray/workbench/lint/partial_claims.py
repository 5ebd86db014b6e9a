"""Claims for a part of what a driver gives as a whole only: all TPU chips of a host, or none.

The scheduler does not know that rule. It would allocate such a claim, and the driver would refuse to prepare
it on every node, so its pods never start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dray.api.json_types import JsonObject
from dray.drivers import driver_names
from dray.workbench.lint.findings import Problem, error
from dray.workbench.lint.objects import claim_spec_of

_CHIP_COUNT = (driver_names.TPU, "chipCount")


def check_whole_hosts(
    stored: JsonObject, published: Mapping[tuple[str, str], list[object]]
) -> Iterator[Problem]:
    """Yield a problem when a claim's number of TPU chips is that of no host; `published` are attributes with values."""
    found = claim_spec_of(stored)
    sizes = sorted(value for value in published.get(_CHIP_COUNT, []) if isinstance(value, int))
    if found is None or not sizes:
        return
    path, spec = found
    wanted, place = 0, ""
    for index, request in enumerate((spec.get("devices") or {}).get("requests") or []):
        exactly = request.get("exactly") or {}
        if exactly.get("deviceClassName") != driver_names.TPU:
            continue  # Other classes may reach TPUs as well: nothing is said about them.
        if exactly.get("allocationMode") == "All":
            return
        wanted += int(exactly.get("count") or 1)
        place = f"{path}.devices.requests[{index}].exactly.count"
    if wanted and wanted not in sizes:
        hosts = " or ".join(map(str, sizes))
        yield error(
            "partial-claim",
            place,
            f"the claim is for {wanted} TPU chips, and hosts have {hosts}: the driver gives all chips of a host or none",
            "write allocationMode: All instead of a count",
        )
